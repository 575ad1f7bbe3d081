// The carrier between GPUs that works on every system: NCCL, over NVLink, PCIe, shared memory, InfiniBand or
// sockets, as NCCL selects. This code sets no environment variables; NCCL_* variables are left to the user.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "gpu/exchange.h"
#include "gpu/nccl_library.h"
#include "octet/device/device.h"

struct ncclComm;

namespace octet::comm {

/// Returns false if the program was built without NCCL (OCTET_NCCL=OFF). All functions below then throw
/// Error.
bool built_with_nccl();

/// Returns the bytes that identify one group of one queue. Called by its member 0, broadcast to all members,
/// used once.
std::string make_nccl_id(const NcclLibrary& library);

/// Identifies a group and one of its members.
struct NcclGroup {
  std::string id;  ///< result of make_nccl_id(), equal on all members
  int size = 1;
  int member = 0;
};

/// A communicator of NCCL; each queue has its own. Creating, connecting and destroying a communicator waits
/// for the other members. One thread per rank must do this for several queues, in the same order on every
/// rank.
///
/// The first exchange between two members blocks the host until both have opened a connection. A connection
/// takes memory on both sides. connect() opens the connections earlier.
class NcclExchange final : public Exchange {
 public:
  /// Collective: all members construct it together, each on a different GPU, and it returns when all have
  /// arrived. Ranks that may fail earlier should first agree that none did. Throws Error. `library` and
  /// `device` must outlive the object.
  NcclExchange(const NcclLibrary& library, Device& device, const NcclGroup& group);
  /// All enqueued work must be complete, except while an exception unwinds or after a failed call. In these
  /// two cases the communicator is not destroyed, because NCCL would wait for members that may be gone. The
  /// process is about to end.
  ~NcclExchange() override;
  NcclExchange(const NcclExchange&) = delete;
  NcclExchange& operator=(const NcclExchange&) = delete;

  void exchange(Stream& stream, std::span<const Outgoing> out, std::span<const Incoming> in) override;
  /// NCCL can reach any memory.
  bool reaches(const void*, std::size_t) const override { return true; }
  bool sums() const override { return true; }
  void sum(Stream& stream, void* values, std::int64_t count, DType dtype) override;

  /// Opens the connections to these members by an exchange of one byte with each, and waits for it. All
  /// members call it together. If a member names another, the other must name it too.
  void connect(std::span<const int> peers);

  // NCCL's own collectives, only for deterministic: false. The summation order depends on the slice's owner,
  // the group and slice sizes, and NCCL's version. bf16 sums are rounded to bf16 at every member that they
  // pass. The first call of a kind opens connections that connect() does not open.
  /// to[count] = sum of all members' slices of this member; from [size * count]. `to` is the own slice of
  /// `from`, or disjoint from it. dtype: f32 or bf16.
  void reduce_scatter(Stream& stream, const void* from, void* to, std::int64_t count, DType dtype);
  /// to [size * bytes] = every member's `from` [bytes]. `from` may be the own slice of `to`.
  void all_gather(Stream& stream, const void* from, void* to, std::size_t bytes);

  /// Throws Error if the network or a thread of NCCL has failed. Neither uses a GPU nor waits, so any thread
  /// may call it.
  void check_health();

  int size() const { return group_.size; }
  int member() const { return group_.member; }

 private:
  struct Functions;
  /// Throws Error unless `code` (an ncclResult_t) is success.
  void require(int code, const char* call, int peer = -1);

  const NcclLibrary& library_;
  Device& device_;
  NcclGroup group_;
  std::unique_ptr<const Functions> nccl_;
  ncclComm* communicator_ = nullptr;
  std::atomic<bool> failed_ = false;
};

}  // namespace octet::comm
