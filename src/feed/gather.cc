#include "octet/feed/gather.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace octet::feed {
namespace {

// Gathers a distributed list to all ranks, in rank order. If the list is long, the lowest rank of a node
// stores it in a file, and the other ranks of the node map that file.
template <typename T>
class Gathering {
 public:
  Gathering(comm::Channel& channel, std::int64_t own, const GatherLimits& limits)
      : channel_(channel), message_bytes_(limits.message_bytes), whole_(limits.in_memory / sizeof(T)) {
    begins_.push_back(0);
    for (const std::int64_t size : channel.all_gather_int(own)) begins_.push_back(begins_.back() + size);
  }

  LongArray<T> gather(LongArray<T> own) {
    const comm::Place& place = channel_.place();
    const bool leads = place.local_rank == 0;
    channel_.together([&] {
      if (leads) whole_.resize(static_cast<std::size_t>(begins_.back()));
    });
    const std::vector<std::string> files = channel_.all_gather_bytes(leads ? whole_.address() : "");
    const auto leader = std::ranges::find(place.node_of, place.node) - place.node_of.begin();
    const std::string& file = files.at(static_cast<std::size_t>(leader));
    const bool shares = !leads && is_shared_file(file);
    channel_.together([&] {
      if (!leads && !shares) whole_.resize(static_cast<std::size_t>(begins_.back()));
    });
    send(own, shares);
    own = {};
    // All data are written: the pieces are collectives, and this is a later collective.
    channel_.together([&] {
      if (shares) whole_ = view_shared_file<T>(file, static_cast<std::size_t>(begins_.back()));
    });
    return std::move(whole_);
  }

 private:
  void send(const LongArray<T>& own, bool only_sends) {
    const auto step =
        std::max<std::int64_t>(1, message_bytes_ / channel_.size() / static_cast<std::int64_t>(sizeof(T)));
    std::int64_t most = 0;
    for (std::size_t r = 0; r + 1 < begins_.size(); ++r) most = std::max(most, begins_[r + 1] - begins_[r]);
    const auto size = static_cast<std::int64_t>(own.size());
    for (std::int64_t from = 0; from < most; from += step) {
      const std::int64_t first = std::min(from, size), last = std::min(from + step, size);
      const auto pieces =
          channel_.all_gather_bytes(std::string(reinterpret_cast<const char*>(own.data() + first),
                                                static_cast<std::size_t>(last - first) * sizeof(T)));
      for (std::size_t r = 0; r < pieces.size() && !only_sends; ++r) {
        if (pieces[r].empty()) continue;
        std::memcpy(whole_.writable().data() + begins_[r] + from, pieces[r].data(), pieces[r].size());
      }
    }
  }

  comm::Channel& channel_;
  std::int64_t message_bytes_;
  std::vector<std::int64_t> begins_;
  LongArray<T> whole_;
};

template <typename T>
LongArray<T> gather(comm::Channel& channel, LongArray<T>& own, const GatherLimits& limits) {
  Gathering<T> gathering(channel, static_cast<std::int64_t>(own.size()), limits);
  return gathering.gather(std::move(own));
}

}  // namespace

data::Encoded gather_parts(comm::Channel& channel, data::Encoded own, const GatherLimits& limits) {
  if (channel.size() == 1) return own;
  data::Encoded whole;
  const std::vector<std::int64_t> tokens = channel.all_gather_int(static_cast<std::int64_t>(own.ids.size()));
  whole.ids = gather(channel, own.ids, limits);
  whole.labels = gather(channel, own.labels, limits);
  whole.rows = gather(channel, own.rows, limits);
  // Ends of documents, as offsets from the first token of all ranks. The first rank adds the leading 0.
  const std::int64_t shift = std::accumulate(tokens.begin(), tokens.begin() + channel.rank(), INT64_C(0));
  LongArray<std::int64_t> ends;
  for (std::size_t d = channel.rank() == 0 ? 0 : 1; d < own.begins.size(); ++d) {
    ends.push_back(own.begins[d] + shift);
  }
  whole.begins = gather(channel, ends, limits);
  for (const std::string& counts : channel.all_gather_bytes(own.counts.to_bytes())) {
    whole.counts.add(data::EncodingCounts::from_bytes(counts));
  }
  return whole;
}

}  // namespace octet::feed
