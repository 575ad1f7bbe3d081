#include "logs/rank_log.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "octet/base/error.h"

namespace octet::train {
namespace {

/// OwnFacts in a message.
struct Message {
  double loss = 0;
  std::int64_t has_loss = 0, reserved_bytes = 0, used_bytes = 0;
};

}  // namespace

std::int64_t memory_in_use(const Device& device) {
  if (device.host_reaches_memory()) {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
  }
  const MemoryInfo info = device.memory();
  return static_cast<std::int64_t>(info.total - info.free);
}

void OwnLoss::add(const RankLoss& step) {
  if (step.label_tokens == 0) return;
  sum_ += step.sum / static_cast<double>(step.label_tokens);
  ++steps_;
}

std::optional<double> OwnLoss::mean() const {
  if (steps_ == 0) return std::nullopt;
  return sum_ / static_cast<double>(steps_);
}

AllFacts exchange_facts(comm::Channel& channel, const OwnFacts& own) {
  const Message mine{.loss = own.loss.value_or(0),
                     .has_loss = own.loss ? 1 : 0,
                     .reserved_bytes = own.reserved_bytes,
                     .used_bytes = own.used_bytes};
  AllFacts all;
  const std::string bytes(reinterpret_cast<const char*>(&mine), sizeof mine);
  for (const std::string& text : channel.all_gather_bytes(bytes)) {
    Message said;
    check(text.size() == sizeof said, "all ranks describe their hosts in the same way");
    std::memcpy(&said, text.data(), sizeof said);
    all.losses.push_back(said.has_loss != 0 ? std::optional(said.loss) : std::nullopt);
    all.reserved_bytes = std::max(all.reserved_bytes, said.reserved_bytes);
    all.used_bytes = std::max(all.used_bytes, said.used_bytes);
  }
  return all;
}

}  // namespace octet::train
