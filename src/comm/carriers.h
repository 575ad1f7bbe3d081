// Which carrier moves the bytes between the ranks of a group, and what it needs: handles opened, links tried,
// pinned memory. All ranks choose alike: what one of them cannot use, none does.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "exchange.h"
#include "host_exchange.h"
#include "octet/comm/collectives.h"
#include "peer_access.h"
#include "peer_exchange.h"
#include "rank_group.h"
#include "staging_budget.h"

namespace octet::comm {

/// What carries the exchanges of one queue.
struct Way {
  std::unique_ptr<Exchange> exchange;
  HostExchange* host = nullptr;  ///< it, or the part of it, that the host carries
  /// What sums in its own order, and which values; null: nothing does, sums are ours.
  Exchange* sums = nullptr;
  bool sums_bf16 = false;
  std::unique_ptr<Exchange> summing = nullptr;  ///< it, where it is not what carries
};

class Carriers {
 public:
  /// What is given outlives it.
  Carriers(Device& device, RankGroup& group);
  ~Carriers();
  Carriers(const Carriers&) = delete;
  Carriers& operator=(const Carriers&) = delete;

  /// Collective. Chooses, and warns of what was wanted, or is faster, and does not work. `memory` is laid out
  /// as the budget says. Throws Error where nothing works that was asked for.
  void choose(Carrying wanted, std::byte* memory, const StagingBudget& budget);
  /// That of a queue, gather or reduce; once each.
  Way take(Queue queue);
  /// Collective, both.
  void share(const std::vector<SharedMemory>& memory);
  void unshare(const std::vector<SharedMemory>& memory);
  PeerAccess& access() { return *access_; }
  /// Direct sums (Collectives::sum_directly).
  bool sums_directly(std::int64_t count, DType dtype) const;
  void sum_directly(Stream& stream, const DirectSumArgs& args);
  /// "peer, 368 GB/s", "peer, 368 GB/s, sums by nccl".
  std::string words() const;

 private:
  using Ways = std::array<Way, 2>;
  std::string try_carrier(Carrier carrier, Ways& ways, std::span<const Queue> queues);
  void choose_carrier(Carrier wanted);
  void choose_sums(Sums wanted);
  void open_peers();
  void prepare_direct_sums();
  std::vector<void*> open_alike(void* address, const std::vector<std::string>& handles);
  std::unique_ptr<Exchange> make_peer(Queue queue);
  /// Sends a pattern both ways and looks whether it came whole and in time; then takes the time of a larger
  /// one.
  void probe(Queue queue, Exchange& exchange);
  DeviceStaging staging_of(Queue queue) const;

  Device& device_;
  RankGroup& group_;
  std::unique_ptr<PeerAccess> access_;
  SharedRegions regions_;
  bool peers_ = false;  ///< memory of the ranks of this host is opened
  std::byte* memory_ = nullptr;
  StagingBudget budget_;
  std::vector<void*> memory_of_;        ///< by rank, as this one reaches it
  std::vector<std::byte*> sum_places_;  ///< of direct sums, by rank, as this one reaches them; or none
  Ways ways_;
  std::string name_;
  std::string sums_;  ///< in words, behind the name
  double bytes_per_second_ = 0;
};

}  // namespace octet::comm
