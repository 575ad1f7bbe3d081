#include "cuda/nccl_exchange.h"
#include "nccl_exchange.h"

#include <cuda_runtime_api.h>

#include <numeric>
#include <vector>

#include "gpu/nccl_library.h"
#include "octet/base/error.h"
#include "octet/device/cuda.h"
#include "octet/device/gpus.h"

#ifdef OCTET_HAVE_NCCL
#include <nccl.h>

#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include "job/injected_faults.h"
#include "octet/base/log.h"

namespace octet::comm {

bool built_with_nccl() {
  return true;
}

struct NcclExchange::Functions {
  explicit Functions(const NcclLibrary& library) {
    library.find(init, "ncclCommInitRankConfig");
    library.find(finalize, "ncclCommFinalize");
    library.find(destroy, "ncclCommDestroy");
    library.find(error_string, "ncclGetErrorString");
    library.find(last_error, "ncclGetLastError");
    library.find(async_error, "ncclCommGetAsyncError");
    library.find(group_start, "ncclGroupStart");
    library.find(group_end, "ncclGroupEnd");
    library.find(send, "ncclSend");
    library.find(receive, "ncclRecv");
    library.find(reduce_scatter, "ncclReduceScatter");
    library.find(all_gather, "ncclAllGather");
  }

  decltype(&::ncclCommInitRankConfig) init = nullptr;
  decltype(&::ncclCommFinalize) finalize = nullptr;
  decltype(&::ncclCommDestroy) destroy = nullptr;
  decltype(&::ncclGetErrorString) error_string = nullptr;
  decltype(&::ncclGetLastError) last_error = nullptr;
  decltype(&::ncclCommGetAsyncError) async_error = nullptr;
  decltype(&::ncclGroupStart) group_start = nullptr;
  decltype(&::ncclGroupEnd) group_end = nullptr;
  decltype(&::ncclSend) send = nullptr;
  decltype(&::ncclRecv) receive = nullptr;
  decltype(&::ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&::ncclAllGather) all_gather = nullptr;
};

std::string make_nccl_id(const NcclLibrary& library) {
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclGetErrorString) error_string = nullptr;
  decltype(&::ncclGetLastError) last_error = nullptr;
  library.find(get_unique_id, "ncclGetUniqueId");
  library.find(error_string, "ncclGetErrorString");
  library.find(last_error, "ncclGetLastError");
  ncclUniqueId id{};
  if (const ncclResult_t code = get_unique_id(&id); code != ncclSuccess) {
    throw Error(nccl_problem({.call = "ncclGetUniqueId",
                              .code = code,
                              .reason = error_string(code),
                              .detail = last_error(nullptr),
                              .library = library.description()}));
  }
  return {id.internal, sizeof id.internal};
}

NcclExchange::NcclExchange(const NcclLibrary& library, Device& device, const NcclGroup& group)
    : library_(library), device_(device), group_(group), nccl_(std::make_unique<Functions>(library)) {
  check(device.kind() == DeviceKind::cuda, "NCCL carries bytes between GPUs");
  check(group.size >= 1 && group.member >= 0 && group.member < group.size, "a member of a group is in it");
  ncclUniqueId id{};
  check(group.id.size() == sizeof id.internal, "NCCL's groups have ids of their own");
  std::memcpy(id.internal, group.id.data(), sizeof id.internal);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  // NCCL takes the calling thread's current GPU, and native() makes the device current.
  const auto stream = device.make_stream({.name = "nccl"});
  cuda::native(*stream);
  require(nccl_->init(&communicator_, group.size, id, group.member, &config), "ncclCommInitRankConfig");
}

NcclExchange::~NcclExchange() {
  if (failed_ || std::uncaught_exceptions() > 0) return;
  ncclResult_t code = nccl_->finalize(communicator_);
  if (code == ncclSuccess) code = nccl_->destroy(communicator_);
  if (code != ncclSuccess) {
    log::warn(std::string("a communicator of NCCL did not end well: ") + nccl_->error_string(code));
  }
}

void NcclExchange::require(int code, const char* call, int peer) {
  if (code == ncclSuccess) return;
  failed_ = true;
  throw Error(nccl_problem({.call = call,
                            .code = code,
                            .reason = nccl_->error_string(static_cast<ncclResult_t>(code)),
                            .detail = nccl_->last_error(communicator_),
                            .library = library_.description(),
                            .member = group_.member,
                            .members = group_.size,
                            .peer = peer}));
}

void NcclExchange::exchange(Stream& stream, std::span<const Outgoing> out, std::span<const Incoming> in) {
  std::size_t bytes = 0;
  const auto examine = [&](int peer, const void* place, std::size_t size) {
    check(peer >= 0 && peer < group_.size, "messages go to members of the group");
    check(peer != group_.member, "members send nothing to themselves");
    check(size == 0 || place != nullptr, "messages have a place in memory");
    bytes += size;
  };
  for (const Outgoing& piece : out) examine(piece.peer, piece.from, piece.bytes);
  for (const Incoming& piece : in) examine(piece.peer, piece.to, piece.bytes);
  if (bytes == 0) return;

  CUstream_st* const native = cuda::native(stream);
  require(nccl_->group_start(), "ncclGroupStart");
  // A started NCCL group must be ended on this thread, even after a failure, and the end then reports only
  // that something failed. The first failure is therefore kept.
  struct {
    ncclResult_t code = ncclSuccess;
    const char* call = "ncclGroupEnd";
    int peer = -1;
  } first;
  const auto note = [&](ncclResult_t code, const char* call, int peer) {
    if (first.code == ncclSuccess && code != ncclSuccess) first = {code, call, peer};
  };
  for (const Outgoing& piece : out) {
    if (piece.bytes == 0) continue;
    note(nccl_->send(piece.from, piece.bytes, ncclUint8, piece.peer, communicator_, native), "ncclSend",
         piece.peer);
  }
  for (const Incoming& piece : in) {
    if (piece.bytes == 0) continue;
    note(nccl_->receive(piece.to, piece.bytes, ncclUint8, piece.peer, communicator_, native), "ncclRecv",
         piece.peer);
  }
  note(nccl_->group_end(), "ncclGroupEnd", -1);
  if (BrokenStep::nccl_fails()) note(ncclSystemError, "ncclGroupEnd", -1);
  require(first.code, first.call, first.peer);
}

void NcclExchange::connect(std::span<const int> peers) {
  if (peers.empty()) return;
  Arena arena(device_);
  auto* const bytes = arena.reserve_as<unsigned char>("nccl/connect", 2 * peers.size());
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  for (std::size_t i = 0; i < peers.size(); ++i) {
    out.push_back({.peer = peers[i], .from = bytes + i, .bytes = 1});
    in.push_back({.peer = peers[i], .to = bytes + peers.size() + i, .bytes = 1});
  }
  const auto stream = device_.make_stream({.name = "nccl"});
  exchange(*stream, out, in);
  stream->synchronize();
}

void NcclExchange::reduce_scatter(Stream& stream, const void* from, void* to, std::int64_t count,
                                  DType dtype) {
  check(dtype == DType::f32 || dtype == DType::bf16, "NCCL sums f32 and bf16");
  check(count >= 0, "a slice has a size");
  if (count == 0) return;
  const std::size_t slice = static_cast<std::size_t>(count) * size_of(dtype);
  const auto source = reinterpret_cast<std::uintptr_t>(from), target = reinterpret_cast<std::uintptr_t>(to);
  check(target + slice <= source || source + slice * static_cast<std::size_t>(group_.size) <= target ||
            target == source + slice * static_cast<std::size_t>(group_.member),
        "a sum overwrites only the addend of its own slice");
  CUstream_st* const native = cuda::native(stream);
  require(
      nccl_->reduce_scatter(from, to, static_cast<std::size_t>(count),
                            dtype == DType::f32 ? ncclFloat32 : ncclBfloat16, ncclSum, communicator_, native),
      "ncclReduceScatter");
}

void NcclExchange::sum(Stream& stream, void* values, std::int64_t count, DType dtype) {
  auto* const own =
      static_cast<std::byte*>(values) + static_cast<std::size_t>(group_.member * count) * size_of(dtype);
  reduce_scatter(stream, values, own, count, dtype);
}

void NcclExchange::all_gather(Stream& stream, const void* from, void* to, std::size_t bytes) {
  if (bytes == 0) return;
  CUstream_st* const native = cuda::native(stream);
  require(nccl_->all_gather(from, to, bytes, ncclUint8, communicator_, native), "ncclAllGather");
}

void NcclExchange::check_health() {
  ncclResult_t met = ncclSuccess;
  require(nccl_->async_error(communicator_, &met), "ncclCommGetAsyncError");
  require(met, "a transfer of NCCL");
}

}  // namespace octet::comm

#else

namespace octet::comm {
namespace {

[[noreturn]] void refuse() {
  throw Error(Problem{.what = "this program was built without NCCL",
                      .fix = "build it with -DOCTET_NCCL=ON",
                      .code = ExitCode::usage});
}

}  // namespace

struct NcclExchange::Functions {};

bool built_with_nccl() {
  return false;
}
std::string make_nccl_id(const NcclLibrary&) {
  refuse();
}
NcclExchange::NcclExchange(const NcclLibrary& library, Device& device, const NcclGroup&)
    : library_(library), device_(device) {
  refuse();
}
NcclExchange::~NcclExchange() = default;
void NcclExchange::exchange(Stream&, std::span<const Outgoing>, std::span<const Incoming>) {
  refuse();
}
void NcclExchange::connect(std::span<const int>) {
  refuse();
}
void NcclExchange::reduce_scatter(Stream&, const void*, void*, std::int64_t, DType) {
  refuse();
}
void NcclExchange::sum(Stream&, void*, std::int64_t, DType) {
  refuse();
}
void NcclExchange::all_gather(Stream&, const void*, void*, std::size_t) {
  refuse();
}
void NcclExchange::check_health() {
  refuse();
}

}  // namespace octet::comm
#endif

namespace octet::comm {

int load_nccl() {
  if (!built_with_nccl()) {
    throw Error(Problem{.what = "this program was built without NCCL", .fix = "build with -DOCTET_NCCL=ON"});
  }
  return nccl_library().version();
}

std::string gpu_uuid(Device& device) {
  cuda::native(*device.make_stream({.name = "uuid"}));  // makes the device the thread's current one
  int ordinal = 0;
  cudaDeviceProp found{};
  cuda::check(cudaGetDevice(&ordinal), "asking which GPU this is");
  cuda::check(cudaGetDeviceProperties(&found, ordinal), "asking what the GPU is");
  return uuid_text(reinterpret_cast<const unsigned char*>(found.uuid.bytes));
}

std::string make_nccl_id() {
  return make_nccl_id(nccl_library());
}

std::unique_ptr<Exchange> make_nccl_exchange(Device& device, const std::string& id, int rank, int size) {
  auto made = std::make_unique<NcclExchange>(nccl_library(), device,
                                             NcclGroup{.id = id, .size = size, .member = rank});
  std::vector<int> peers(static_cast<std::size_t>(size));
  std::iota(peers.begin(), peers.end(), 0);
  std::erase(peers, rank);
  made->connect(peers);
  return made;
}

}  // namespace octet::comm
