// Selects the carrier that moves the bytes between the ranks of a group, and prepares it: opens handles,
// tests links and reserves pinned memory. All ranks select the same carrier. If one rank cannot use a
// carrier, no rank does.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gpu/device_staging.h"
#include "gpu/exchange.h"
#include "gpu/host_exchange.h"
#include "gpu/peer_access.h"
#include "gpu/peer_exchange.h"
#include "job/rank_group.h"
#include "octet/comm/collectives.h"

namespace octet::comm {

/// The carrier of one queue's exchanges.
struct Way {
  std::unique_ptr<Exchange> exchange;
  HostExchange* host = nullptr;  ///< the host carrier, if it carries all or some bytes
  /// The exchange that sums in its own order, and the values that it sums; null: our kernels sum.
  Exchange* sums = nullptr;
  bool sums_bf16 = false;
  std::unique_ptr<Exchange> summing = nullptr;  ///< owns `sums` if it is not the carrier
};

class Carriers {
 public:
  /// The arguments must outlive this object.
  Carriers(Device& device, RankGroup& group);
  ~Carriers();
  Carriers(const Carriers&) = delete;
  Carriers& operator=(const Carriers&) = delete;

  /// Collective. Selects the carrier. Warns if a requested or faster carrier does not work. `memory` is laid
  /// out as the budget describes. Throws Error if no requested carrier works.
  void choose(Carrying wanted, std::byte* memory, const StagingBudget& budget);
  /// Returns the carrier of a queue, gather or reduce. Call once per queue.
  Way take(Queue queue);
  /// share() and unshare() are collective.
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
  /// Sends a pattern both ways and checks that it arrives complete and in time. Then measures the time of a
  /// larger message.
  void probe(Queue queue, Exchange& exchange);
  DeviceStaging staging_of(Queue queue) const;

  Device& device_;
  RankGroup& group_;
  std::unique_ptr<PeerAccess> access_;
  SharedRegions regions_;
  bool peers_ = false;  ///< memory of the ranks of this host is opened
  std::byte* memory_ = nullptr;
  StagingBudget budget_;
  std::vector<void*> memory_of_;        ///< by rank, as addresses in this rank
  std::vector<std::byte*> sum_places_;  ///< for direct sums, by rank, as addresses in this rank; may be empty
  Ways ways_;
  std::string name_;
  std::string sums_;  ///< suffix of the carrier name in words()
  double bytes_per_second_ = 0;
};

}  // namespace octet::comm
