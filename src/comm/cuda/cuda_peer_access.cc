#include "gpu/peer_access.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <map>
#include <thread>
#include <vector>

#include "cuda/peer_kernels.h"
#include "octet/base/error.h"
#include "octet/device/cuda.h"

namespace octet::comm {
namespace {

struct Driver {
  decltype(&cuStreamWriteValue32) write =
      cuda::driver_function<decltype(&cuStreamWriteValue32)>("cuStreamWriteValue32");
  decltype(&cuStreamWaitValue32) wait =
      cuda::driver_function<decltype(&cuStreamWaitValue32)>("cuStreamWaitValue32");
  decltype(&cuStreamBatchMemOp) batch =
      cuda::driver_function<decltype(&cuStreamBatchMemOp)>("cuStreamBatchMemOp");
  decltype(&cuMemGetAddressRange) range =
      cuda::driver_function<decltype(&cuMemGetAddressRange)>("cuMemGetAddressRange");
  decltype(&cuGetErrorString) text = cuda::driver_function<decltype(&cuGetErrorString)>("cuGetErrorString");

  void must(CUresult code, const char* what) const {
    if (code == CUDA_SUCCESS) return;
    const char* words = nullptr;
    text(code, &words);
    throw Error(
        Problem{.what = std::string(what) + " failed: " + (words != nullptr ? words : "unknown error"),
                .where = "the GPU of this process"});
  }
};

/// The message for a peer: the handle of a whole allocation, and the offset of the address in it.
struct Handle {
  cudaIpcMemHandle_t allocation;
  std::uint64_t offset;
};

class CudaPeerAccess final : public PeerAccess {
 public:
  explicit CudaPeerAccess(Device& device) : stream_(device.make_stream({.name = "peer access"})) {
    cuda::native(*stream_);
    cuda::check(load_move(), "loading a kernel of small messages");  // not while streams wait for each other
  }
  ~CudaPeerAccess() override {
    cuda::native(*stream_);
    for (const auto& [handle, allocation] : opened_) cudaIpcCloseMemHandle(allocation.address);
  }
  CudaPeerAccess(const CudaPeerAccess&) = delete;
  CudaPeerAccess& operator=(const CudaPeerAccess&) = delete;

  void write(Stream& stream, std::uint32_t* counter, std::uint32_t value) override {
    driver_.must(driver_.write(cuda::native(stream), reinterpret_cast<CUdeviceptr>(counter), value,
                               CU_STREAM_WRITE_VALUE_DEFAULT),
                 "writing a counter");
  }

  void wait(Stream& stream, const std::uint32_t* counter, std::uint32_t value) override {
    driver_.must(driver_.wait(cuda::native(stream), reinterpret_cast<CUdeviceptr>(counter), value,
                              CU_STREAM_WAIT_VALUE_GEQ),
                 "waiting for a counter");
  }

  void steps(Stream& stream, std::span<const CounterStep> steps) override {
    if (steps.empty()) return;
    if (steps.size() == 1) {  // cheaper for the host than a batch
      const CounterStep& only = steps.front();
      only.waits ? wait(stream, only.counter, only.value) : write(stream, only.counter, only.value);
      return;
    }
    batch_.assign(steps.size(), CUstreamBatchMemOpParams{});
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const auto address = reinterpret_cast<CUdeviceptr>(steps[i].counter);
      if (steps[i].waits) {
        auto& wait = batch_[i].waitValue;
        wait.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
        wait.address = address;
        wait.value = steps[i].value;
        wait.flags = CU_STREAM_WAIT_VALUE_GEQ;
      } else {
        auto& write = batch_[i].writeValue;
        write.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
        write.address = address;
        write.value = steps[i].value;
        write.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
      }
    }
    driver_.must(driver_.batch(cuda::native(stream), static_cast<unsigned>(batch_.size()), batch_.data(), 0),
                 "writing and waiting for counters");
  }

  void move(Stream& stream, const std::optional<CounterStep>& first, std::span<const Piece> pieces,
            std::span<const CounterStep> then, std::uint32_t* ticket) override {
    check(pieces.size() <= most_moved && then.size() <= most_moved,
          "the number of pieces is below its limit");
    MoveArgs args;
    if (first) args.first = *first;
    for (const Piece& piece : pieces) args.pieces[args.piece_count++] = piece;
    for (const CounterStep& step : then) args.then[args.then_count++] = step;
    args.ticket = ticket;
    enqueue_move(cuda::native(stream), args);
    cuda::check(cudaGetLastError(), "moving small messages");
  }

  void delay(Stream& stream, std::chrono::microseconds time) override {
    // The function receives the time in place of a pointer.
    const auto sleep = [](void* microseconds) {
      std::this_thread::sleep_for(std::chrono::microseconds(reinterpret_cast<std::intptr_t>(microseconds)));
    };
    cuda::check(cudaLaunchHostFunc(cuda::native(stream), sleep,
                                   reinterpret_cast<void*>(static_cast<std::intptr_t>(time.count()))),
                "delaying a stream");
  }

  void fault(Stream& stream) override { enqueue_fault(cuda::native(stream)); }

  std::string handle(void* address) override {
    cuda::native(*stream_);
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
    driver_.must(driver_.range(&base, &bytes, reinterpret_cast<CUdeviceptr>(address)),
                 "finding an allocation");
    Handle handle{};
    cuda::check(cudaIpcGetMemHandle(&handle.allocation, reinterpret_cast<void*>(base)),
                "sharing memory of the GPU with other processes");
    handle.offset = reinterpret_cast<CUdeviceptr>(address) - base;
    return {reinterpret_cast<const char*>(&handle), sizeof handle};
  }

  void* open(const std::string& bytes) override {
    check(bytes.size() == sizeof(Handle), "a handle of memory has its size");
    Handle handle{};
    std::memcpy(&handle, bytes.data(), sizeof handle);
    cuda::native(*stream_);
    const std::string key(bytes.data(), sizeof handle.allocation);
    auto found = opened_.find(key);
    if (found == opened_.end()) {
      void* address = nullptr;
      cuda::check(cudaIpcOpenMemHandle(&address, handle.allocation, cudaIpcMemLazyEnablePeerAccess),
                  "opening the memory of another process's GPU");
      found = opened_.emplace(key, Allocation{.address = address}).first;
    }
    ++found->second.uses;
    void* const given = static_cast<std::byte*>(found->second.address) + handle.offset;
    given_.emplace(given, key);
    return given;
  }

  void close(void* opened) override {
    const auto given = given_.find(opened);
    check(given != given_.end(), "only opened memory is closed");
    const auto allocation = opened_.find(given->second);
    given_.erase(given);
    if (--allocation->second.uses > 0) return;
    cuda::native(*stream_);
    cuda::check(cudaIpcCloseMemHandle(allocation->second.address),
                "closing the memory of another process's GPU");
    opened_.erase(allocation);
  }

 private:
  std::unique_ptr<Stream> stream_;  ///< makes the device the thread's current one
  Driver driver_;
  std::vector<CUstreamBatchMemOpParams> batch_;
  /// An allocation of another process. It is opened once, even if several parts are used.
  struct Allocation {
    void* address = nullptr;
    int uses = 0;
  };
  std::map<std::string, Allocation> opened_;  ///< by handle
  std::multimap<void*, std::string> given_;   ///< addresses that open() returned, with their handles
};

}  // namespace

std::unique_ptr<PeerAccess> make_cuda_peer_access(Device& device) {
  return std::make_unique<CudaPeerAccess>(device);
}

}  // namespace octet::comm
