// Reads the event files of TensorBoard, by the formats' own descriptions: TFRecord frames of Event messages.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>

#include "support/program.h"

namespace octet::test {

/// Contents of a folder's event files.
struct Events {
  std::map<std::string, std::map<std::int64_t, double>> scalars;  ///< by tag, by step
  std::map<std::int64_t, double> wall_time;  ///< when the first event of a step was written

  double at(const std::string& tag, std::int64_t step) const {
    const auto found = scalars.find(tag);
    if (found == scalars.end() || !found->second.contains(step)) {
      throw std::out_of_range("no value of " + tag + " at step " + std::to_string(step));
    }
    return found->second.at(step);
  }
};

/// Fields of a protocol buffer: numbers, and fields with a length.
class Fields {
 public:
  explicit Fields(std::string_view message) : bytes_(message) {}
  bool next() {
    if (bytes_.empty()) return false;
    const std::uint64_t key = varint();
    number = key >> 3;
    const std::uint64_t type = key & 7;
    if (type == 0) {
      whole = varint();
    } else {
      bytes = take(type == 1 ? 8 : type == 5 ? 4 : varint());
    }
    return true;
  }
  template <typename T>
  T as() const {
    T value{};
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::uint64_t number = 0, whole = 0;
  std::string_view bytes;

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1).front());
      value |= static_cast<std::uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
  }
  std::string_view take(std::uint64_t n) {
    if (n > bytes_.size()) throw std::out_of_range("a message is cut short");
    const std::string_view taken = bytes_.substr(0, n);
    bytes_.remove_prefix(n);
    return taken;
  }
  std::string_view bytes_;
};

inline void read_event(std::string_view message, Events& events) {
  constexpr std::uint64_t wall_time = 1, step_number = 2, summary = 5, value = 1, tag = 1, simple_value = 2;
  double time = 0;
  std::int64_t step = 0;
  std::string_view all;
  for (Fields event(message); event.next();) {
    if (event.number == wall_time) time = event.as<double>();
    if (event.number == step_number) step = static_cast<std::int64_t>(event.whole);
    if (event.number == summary) all = event.bytes;
  }
  if (all.empty()) return;
  events.wall_time.emplace(step, time);
  for (Fields values(all); values.next();) {
    if (values.number != value) continue;
    std::string name;
    double number = 0;
    for (Fields one(values.bytes); one.next();) {
      if (one.number == tag) name = one.bytes;
      if (one.number == simple_value) number = one.as<float>();
    }
    events.scalars[name][step] = number;
  }
}

/// All event files below a folder, in the order of their names: later ones replace what earlier ones said.
inline Events read_events(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files[entry.path().string()] = slurp(entry.path().string());
  }
  Events events;
  for (const auto& [path, bytes] : files) {
    for (std::size_t at = 0; at + 16 <= bytes.size();) {
      std::uint64_t length = 0;
      std::memcpy(&length, bytes.data() + at, sizeof length);
      read_event(std::string_view(bytes).substr(at + 12, length), events);
      at += 16 + length;
    }
  }
  return events;
}

}  // namespace octet::test
