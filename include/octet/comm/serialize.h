// Serialization of values for messages between ranks. Supports strings, structs with a member or free
// function `serialize` of Boost.Serialization, and containers if the caller includes their header of
// <boost/serialization/>.
#pragma once

#include <boost/archive/binary_iarchive.hpp>
#include <boost/archive/binary_oarchive.hpp>
#include <boost/serialization/string.hpp>
#include <boost/serialization/vector.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/comm/channel.h"

namespace octet::comm {

/// Read by the same program on a machine of the same kind, so without what tells versions apart.
inline constexpr unsigned kArchive = boost::archive::no_header | boost::archive::no_tracking;

template <typename T>
std::string to_bytes(const T& value) {
  std::ostringstream out;
  boost::archive::binary_oarchive(out, kArchive) << value;
  return std::move(out).str();
}

/// Throws Error for bytes that to_bytes() has not produced from a T.
template <typename T>
T from_bytes(const std::string& bytes) {
  try {
    std::istringstream in(bytes);
    T value{};
    boost::archive::binary_iarchive(in, kArchive) >> value;
    return value;
  } catch (const std::exception& error) {
    throw Error(Problem{.what = "a message between ranks cannot be read",
                        .found = std::to_string(bytes.size()) + " bytes: " + error.what(),
                        .fix = "start the same program on all hosts"});
  }
}

/// Returns the value of `root` on all ranks of a channel; other ranks' values are not read.
template <typename T>
T broadcast_value(Channel& channel, const T& value, int root) {
  return from_bytes<T>(channel.broadcast(channel.rank() == root ? to_bytes(value) : std::string(), root));
}

/// Returns every rank's value, by rank, on every rank of a channel.
template <typename T>
std::vector<T> all_gather_value(Channel& channel, const T& value) {
  std::vector<T> values;
  for (const std::string& bytes : channel.all_gather_bytes(to_bytes(value))) {
    values.push_back(from_bytes<T>(bytes));
  }
  return values;
}

}  // namespace octet::comm
