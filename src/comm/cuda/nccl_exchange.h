// The carrier between GPUs that works on every system: NCCL, over NVLink, PCIe, shared memory, InfiniBand or
// sockets, as NCCL selects. This code sets no environment variables; NCCL_* variables are left to the user.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "exchange.h"
#include "nccl_library.h"
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
  std::string id;  ///< make_nccl_id's, the same on all members
  int size = 1;
  int member = 0;
};

/// One communicator of NCCL, so one for each queue. On every rank the same thread makes, connects and
/// destroys those of several queues in the same order: each of these waits for the other members.
///
/// Enqueueing blocks the host the first time that two members meet, until both have come and a connection is
/// made, with memory taken on both sides. connect() does that beforehand.
class NcclExchange final : public Exchange {
 public:
  /// All members construct together, each on a different GPU. Returns when all have arrived. Ranks that may
  /// fail before should first agree that none did. Throws Error. `library` and `device` must outlive the
  /// object.
  NcclExchange(const NcclLibrary& library, Device& device, const NcclGroup& group);
  /// Nothing that was enqueued may still be under way. While an exception passes through, and after a call
  /// that failed, it may be (with members that are gone), and then the communicator is left as it is: the
  /// process is about to end, and NCCL would wait.
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

  // NCCL's own collectives. They sum in NCCL's own order, which depends on the member that owns a slice, the
  // size of the group and of the slice, and the version: for deterministic: false only. Sums of bf16 are
  // rounded to bf16 again at every member that they pass. The first of a kind connects members too, which
  // connect() does not do for them.
  /// to[count] = the sum of all members' slices of this member; from [size * count]. `to` is the own slice of
  /// `from`, or apart from it. dtype: f32 or bf16.
  void reduce_scatter(Stream& stream, const void* from, void* to, std::int64_t count, DType dtype);
  /// to [size * bytes] = every member's `from` [bytes]; `from` may be the own slice of `to`.
  void all_gather(Stream& stream, const void* from, void* to, std::size_t bytes);

  /// Throws Error when the network, or a thread of NCCL, has met a failure since. It asks no GPU and waits
  /// for nothing, so any thread may call it.
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
