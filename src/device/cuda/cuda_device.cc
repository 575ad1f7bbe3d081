// GPUs through the CUDA runtime, which is linked statically and looks for the driver at its first call. The
// program therefore also starts on machines without a driver.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "host_pages.h"
#include "octet/base/error.h"
#include "octet/device/cuda.h"
#include "octet/device/device.h"
#include "octet/device/gpu_choice.h"
#include "octet/device/gpus.h"
#include "octet/device/profile.h"

namespace octet {

namespace cuda {
namespace {

std::string reason(cudaError_t code) {
  return std::string(cudaGetErrorString(code)) + " (" + cudaGetErrorName(code) + ")";
}

/// Makes `ordinal` the calling thread's current device.
void use(int ordinal) {
  thread_local int current = -1;
  if (current == ordinal) return;
  check(cudaSetDevice(ordinal), "choosing a GPU");
  current = ordinal;
}

GpuAnswers ask_driver() {
  GpuAnswers answers{.program = CUDART_VERSION};
  if (cudaDriverGetVersion(&answers.driver) != cudaSuccess) answers.driver = 0;
  if (answers.driver == 0) answers.others = amd_gpus_text();
  if (const std::string unused = nvidia_files_text(); answers.driver == 0 && !unused.empty()) {
    answers.others = unused +
                     ", but its library libcuda.so.1 cannot be loaded: start the container with GPUs (--gpus "
                     "all), install the driver's libraries, or set device: cpu";
  }
  cudaGetLastError();
  return answers;
}

GpuAnswers ask(int ordinal) {
  GpuAnswers answers = ask_driver();
  answers.ordinal = ordinal;
  if (!why_no_driver(answers).empty()) return answers;
  if (const cudaError_t code = cudaGetDeviceCount(&answers.count); code != cudaSuccess) {
    cudaGetLastError();
    answers.count = 0;
    if (code != cudaErrorNoDevice) answers.count_error = reason(code);
  }
  if (ordinal < 0 || ordinal >= answers.count) return answers;
  cudaDeviceProp found{};
  if (const cudaError_t code = cudaGetDeviceProperties(&found, ordinal); code != cudaSuccess) {
    cudaGetLastError();
    answers.properties_error = reason(code);
    return answers;
  }
  answers.name = found.name;
  answers.capability = 10 * found.major + found.minor;
  answers.built_for = OCTET_CUDA_BUILT_FOR;
  return answers;
}

/// Creates the driver's context on a GPU. This fails if the GPU's memory is full.
void open_context(int ordinal, const std::string& name) {
  cudaError_t code = cudaSetDevice(ordinal);
  if (code == cudaSuccess) code = cudaFree(nullptr);
  if (code == cudaSuccess) return;
  cudaGetLastError();
  const GpuRefusal refusal = code == cudaErrorMemoryAllocation ? GpuRefusal::full
                             : code == cudaErrorDevicesUnavailable || code == cudaErrorDeviceUninitialized
                                 ? GpuRefusal::taken
                                 : GpuRefusal::other;
  const GpuRefusalText text =
      text_of(refusal, "GPU " + std::to_string(ordinal) + " (" + name + ")", reason(code));
  throw Error({.what = text.what, .fix = text.fix});
}

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(bool timed) {
    check(cudaEventCreateWithFlags(&event_, timed ? cudaEventDefault : cudaEventDisableTiming),
          "making an event");
  }
  ~CudaEvent() override { cudaEventDestroy(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  cudaEvent_t get() const { return event_; }
  /// Whether its latest record is on a background stream.
  bool of_background = false;

 private:
  cudaEvent_t event_ = nullptr;
};

/// Errors of kernels appear when the host waits for them.
[[noreturn]] void fail_for_work(cudaError_t code, const std::string& where) {
  throw Error({.what = "work on the GPU failed: " + reason(code),
               .where = where,
               .fix = "run again with CUDA_LAUNCH_BLOCKING=1, and report the message of that run"});
}

/// Allocates memory of the current GPU and sets all bits, immediately and outside of the stream's recording.
unsigned* words_of_ones(std::int64_t words) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check(cudaThreadExchangeStreamCaptureMode(&mode), "allowing memory to be reserved during a recording");
  const std::size_t bytes = static_cast<std::size_t>(words) * sizeof(unsigned);
  unsigned* all = nullptr;
  cudaStream_t apart = nullptr;
  check(cudaMalloc(reinterpret_cast<void**>(&all), bytes), "taking memory for a stream's exchange");
  check(cudaStreamCreateWithFlags(&apart, cudaStreamNonBlocking), "making a stream");
  check(cudaMemsetAsync(all, 0xFF, bytes, apart), "setting a stream's exchange");
  check(cudaStreamSynchronize(apart), "setting a stream's exchange");
  check(cudaStreamDestroy(apart), "removing a stream");
  check(cudaThreadExchangeStreamCaptureMode(&mode), "going back to the mode of recordings");
  return all;
}

class CudaStream final : public Stream {
 public:
  CudaStream(Device& device, int ordinal, const StreamOptions& options)
      : device_(device), ordinal_(ordinal), name_(options.name), background_(options.background) {
    use(ordinal_);
    int least = 0, greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for priorities of streams");
    check(
        cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, options.background ? least : greatest),
        "making a stream");
  }
  ~CudaStream() override {
    cudaStreamDestroy(stream_);
    if (exchange_ != nullptr) cudaFree(exchange_);
    if (chain_words_ != nullptr) cudaFree(chain_words_);
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  Device& device() const override { return device_; }
  const std::string& name() const override { return name_; }
  void record(Event& event) override {
    auto& own = static_cast<CudaEvent&>(event);
    check(cudaEventRecord(own.get(), get()), "recording an event");
    own.of_background = background_;
  }
  void wait(Event& event) override {
    const auto& own = static_cast<CudaEvent&>(event);
    cudaEvent_t awaited = own.get();
    if (!measures_waits_ || own.of_background || cudaEventQuery(awaited) == cudaSuccess) {
      check(cudaStreamWaitEvent(get(), awaited, 0), "waiting for an event");
      return;
    }
    cudaGetLastError();  // "not ready" is no error
    if (open_waits_.size() >= most_open_waits) seconds_waited();
    Wait& wait = open_waits_.emplace_back(Wait{timed_event(), timed_event()});
    check(cudaEventRecord(wait.begin->get(), get()), "recording an event");
    check(cudaStreamWaitEvent(get(), awaited, 0), "waiting for an event");
    check(cudaEventRecord(wait.end->get(), get()), "recording an event");
  }
  void measure_waits() override { measures_waits_ = true; }
  double seconds_waited() override {
    get();
    // In the order of enqueueing, which is the order of completion.
    for (; !open_waits_.empty(); open_waits_.pop_front()) {
      Wait& wait = open_waits_.front();
      const cudaError_t code = cudaEventQuery(wait.end->get());
      if (code == cudaErrorNotReady) break;
      check(code, "asking for an event");
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, wait.begin->get(), wait.end->get()),
            "taking the time between events");
      waited_ += 1e-3 * static_cast<double>(milliseconds);
      spare_.push_back(std::move(wait.begin));
      spare_.push_back(std::move(wait.end));
    }
    return waited_;
  }
  void synchronize() override {
    const cudaError_t code = cudaStreamSynchronize(get());
    if (code != cudaSuccess) fail_for_work(code, device_.description() + ", stream '" + name_ + "'");
  }
  cudaStream_t get() const {
    use(ordinal_);
    return stream_;
  }
  unsigned* exchange() {
    if (exchange_ == nullptr) exchange_ = words_of_ones(kExchangeWords);
    return exchange_;
  }
  unsigned* chain_words() {
    if (chain_words_ == nullptr) chain_words_ = words_of_ones(kChainWords);
    return chain_words_;
  }

 private:
  struct Wait {
    std::unique_ptr<CudaEvent> begin, end;
  };
  /// If seconds_waited() is not called, the events of waits must not accumulate.
  static constexpr std::size_t most_open_waits = 1024;
  std::unique_ptr<CudaEvent> timed_event() {
    if (spare_.empty()) return std::make_unique<CudaEvent>(true);
    auto last = std::move(spare_.back());
    spare_.pop_back();
    return last;
  }

  Device& device_;
  int ordinal_;
  std::string name_;
  bool background_;
  cudaStream_t stream_ = nullptr;
  unsigned* exchange_ = nullptr;
  unsigned* chain_words_ = nullptr;
  bool measures_waits_ = false;
  std::deque<Wait> open_waits_;
  std::vector<std::unique_ptr<CudaEvent>> spare_;  ///< for reuse
  double waited_ = 0;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int ordinal) {
    properties_.ordinal = ordinal;
    cudaDeviceProp found{};
    check(cudaGetDeviceProperties(&found, ordinal), "reading a GPU's properties");
    open_context(ordinal, found.name);
    properties_.multiprocessors = found.multiProcessorCount;
    properties_.compute_capability = 10 * found.major + found.minor;
    properties_.l2_bytes = static_cast<std::size_t>(found.l2CacheSize);
    std::array<char, 64> size{};
    std::snprintf(size.data(), size.size(), " (%.1f GiB)",
                  static_cast<double>(found.totalGlobalMem) / static_cast<double>(std::size_t{1} << 30));
    description_ = "GPU " + std::to_string(ordinal) + ": " + found.name + size.data();
  }

  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string description() const override { return description_; }
  const Properties& properties() const { return properties_; }

  std::unique_ptr<Stream> make_stream(const StreamOptions& options) override {
    return std::make_unique<CudaStream>(*this, properties_.ordinal, options);
  }
  std::unique_ptr<Event> make_event() override {
    use(properties_.ordinal);
    return std::make_unique<CudaEvent>(false);
  }
  std::unique_ptr<Event> make_timed_event() override {
    use(properties_.ordinal);
    return std::make_unique<CudaEvent>(true);
  }
  double seconds_between(const Event& from, const Event& to) override {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, static_cast<const CudaEvent&>(from).get(),
                               static_cast<const CudaEvent&>(to).get()),
          "taking the time between events");
    return 1e-3 * static_cast<double>(milliseconds);
  }

  bool complete(const Event& event) override {
    const cudaError_t code = cudaEventQuery(static_cast<const CudaEvent&>(event).get());
    if (code != cudaSuccess && code != cudaErrorNotReady) fail_for_work(code, description_);
    return code == cudaSuccess;
  }

  bool host_reaches_memory() const override { return false; }
  bool host_reaches(const void* address) const override {
    const std::lock_guard lock(pinned_mutex_);
    const auto after = pinned_.upper_bound(address);
    if (after == pinned_.begin()) return false;
    const auto& [begin, memory] = *std::prev(after);
    return static_cast<const std::byte*>(address) < static_cast<const std::byte*>(begin) + memory.bytes;
  }
  MemoryInfo memory() const override {
    use(properties_.ordinal);
    MemoryInfo info;
    check(cudaMemGetInfo(&info.free, &info.total), "asking for free memory");
    return info;
  }

  void* allocate(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    use(properties_.ordinal);
    void* address = nullptr;
    const cudaError_t code = cudaMalloc(&address, bytes);
    if (code == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // clears the error for the next call
      throw out_of_memory(bytes, memory().free, description_,
                          "lower per_device_train_batch_size or cutoff_len, turn on recompute, raise "
                          "zero_stage, or end other programs on this GPU (nvidia-smi shows them)");
    }
    check(code, "reserving memory");
    // Streams of this program do not wait for the default stream, so the memory must be cleared when the call
    // returns.
    cudaError_t cleared = cudaMemset(address, 0, bytes);
    if (cleared == cudaSuccess) cleared = cudaStreamSynchronize(nullptr);
    if (cleared != cudaSuccess) cudaFree(address);
    check(cleared, "clearing memory");
    return address;
  }
  // Freeing memory waits for all work of the GPU. During an error exit, such work may wait for ranks that
  // have ended. The driver frees the memory when the process ends.
  void release(void* address, std::size_t) noexcept override {
    if (std::uncaught_exceptions() == 0) cudaFree(address);
  }

  void* allocate_host(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    use(properties_.ordinal);
    void* address = bytes < kMapped ? nullptr : fixed_pages(bytes);
    if (address != nullptr) {
      remember({.bytes = bytes, .mapped = true}, address);
      return address;
    }
    const cudaError_t code = cudaHostAlloc(&address, bytes, cudaHostAllocDefault);
    if (code == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw Error({.what = "not enough host memory that the GPU can read",
                   .expected = std::to_string(bytes) + " bytes of pinned memory",
                   .where = description_,
                   .fix = "free memory on this machine, or raise the limit of locked memory (ulimit -l)"});
    }
    check(code, "reserving pinned host memory");
    remember({.bytes = bytes, .mapped = false}, address);
    return std::memset(address, 0, bytes);
  }
  void release_host(void* address, std::size_t bytes) noexcept override {
    if (std::uncaught_exceptions() > 0) return;
    if (!forget(address).mapped) {
      cudaFreeHost(address);
      return;
    }
    cudaHostUnregister(address);
    unmap_zeros(address, bytes);
  }

  void copy_to_device(Stream& stream, void* to, const void* from, std::size_t bytes) override {
    enqueue_copy(stream, to, from, bytes, {.from_host = true, .to_host = host_reaches(to)});
  }
  void copy_to_host(Stream& stream, void* to, const void* from, std::size_t bytes) override {
    enqueue_copy(stream, to, from, bytes, {.from_host = host_reaches(from), .to_host = true});
  }
  void copy(Stream& stream, void* to, const void* from, std::size_t bytes) override {
    enqueue_copy(stream, to, from, bytes, {.from_host = host_reaches(from), .to_host = host_reaches(to)});
  }
  void zero(Stream& stream, void* address, std::size_t bytes) override {
    if (bytes == 0) return;
    const ProfileSection section(stream, "clear");
    check(cudaMemsetAsync(address, 0, bytes, native(stream)), "clearing memory");
  }

 private:
  /// From this size on, memory is first mapped and then pinned: 12 GiB take 1.0 s instead of 5.8 s.
  static constexpr std::size_t kMapped = std::size_t{64} << 20;

  /// Returns null if the system or the driver refuses.
  void* fixed_pages(std::size_t bytes) {
    void* const pages = map_zeros(bytes);
    if (pages == nullptr) return nullptr;
    if (cudaHostRegister(pages, bytes, cudaHostRegisterDefault) == cudaSuccess) {
      // Kernels receive the host's address, so both addresses must be equal.
      void* seen = nullptr;
      if (cudaHostGetDevicePointer(&seen, pages, 0) == cudaSuccess && seen == pages) return pages;
      cudaHostUnregister(pages);
    }
    cudaGetLastError();  // clears the error for the next call
    unmap_zeros(pages, bytes);
    return nullptr;
  }

  /// Host memory that this device allocated.
  struct Pinned {
    std::size_t bytes = 0;
    bool mapped = false;  ///< by fixed_pages(), not the driver
  };
  void remember(const Pinned& memory, void* address) {
    const std::lock_guard lock(pinned_mutex_);
    pinned_[address] = memory;
  }
  Pinned forget(void* address) noexcept {
    const std::lock_guard lock(pinned_mutex_);
    const auto node = pinned_.extract(address);
    return node.empty() ? Pinned{} : node.mapped();
  }

  struct Direction {
    bool from_host = false, to_host = false;
  };
  static void enqueue_copy(Stream& stream, void* to, const void* from, std::size_t bytes,
                           const Direction& way) {
    if (bytes == 0 || to == from) return;
    const ProfileSection section(stream, "copy");
    if (way.from_host && way.to_host) return enqueue_host_copy(stream, to, from, bytes);
    const cudaMemcpyKind kind = way.from_host ? cudaMemcpyHostToDevice
                                : way.to_host ? cudaMemcpyDeviceToHost
                                              : cudaMemcpyDeviceToDevice;
    check(cudaMemcpyAsync(to, from, bytes, kind, native(stream)), way.from_host ? "copying to the GPU"
                                                                  : way.to_host ? "copying from the GPU"
                                                                                : "copying on the GPU");
  }
  /// The driver's copy between host addresses blocks the caller, so a host function copies. It must not be
  /// recorded, because its first run frees its arguments.
  static void enqueue_host_copy(Stream& stream, void* to, const void* from, std::size_t bytes) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(native(stream), &status), "asking whether a stream is recorded");
    octet::check(status == cudaStreamCaptureStatusNone, "copies inside of host memory are not recorded");
    struct Note {
      void* to;
      const void* from;
      std::size_t bytes;
    };
    auto note = std::make_unique<Note>(Note{to, from, bytes});
    const auto copy = [](void* given) {
      const std::unique_ptr<Note> own(static_cast<Note*>(given));
      std::memcpy(own->to, own->from, own->bytes);
    };
    check(cudaLaunchHostFunc(native(stream), copy, note.get()), "copying inside of host memory");
    note.release();
  }

  Properties properties_;
  std::string description_;
  mutable std::mutex pinned_mutex_;
  std::map<const void*, Pinned, std::less<>> pinned_;  ///< memory not yet released, by address
};

}  // namespace

CUstream_st* native(Stream& stream) {
  octet::check(stream.device().kind() == DeviceKind::cuda, "work for a GPU goes to a stream of a GPU");
  return static_cast<CudaStream&>(stream).get();
}

void* find_driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result), name);
  if (found == nullptr || result != cudaDriverEntryPointSuccess) {
    throw Error(Problem{.what = std::string("the driver of the GPU lacks ") + name,
                        .expected = "a driver for CUDA 13 or newer",
                        .fix = "update the driver"});
  }
  return found;
}

unsigned* exchange(Stream& stream) {
  octet::check(stream.device().kind() == DeviceKind::cuda, "an exchange belongs to a stream of a GPU");
  return static_cast<CudaStream&>(stream).exchange();
}

unsigned* chain_words(Stream& stream) {
  octet::check(stream.device().kind() == DeviceKind::cuda, "an exchange belongs to a stream of a GPU");
  return static_cast<CudaStream&>(stream).chain_words();
}

const Properties& properties(const Device& device) {
  octet::check(device.kind() == DeviceKind::cuda, "only GPUs have these properties");
  return static_cast<const CudaDevice&>(device).properties();
}

void check(int code, const char* what) {
  if (code == cudaSuccess) return;
  throw Error({.what = std::string(what) + " failed: " + reason(static_cast<cudaError_t>(code)),
               .where = "the GPU of this process",
               .fix = "read the reports of the GPU and its driver (nvidia-smi, dmesg)"});
}

void check_launch(const char* op) {
  const cudaError_t code = cudaGetLastError();
  if (code == cudaSuccess) return;
  throw Error({.what = std::string(op) + ": the GPU refused the work: " + reason(code),
               .where = "the GPU of this process",
               .fix = "read the reports of the GPU and its driver (nvidia-smi, dmesg)"});
}

int code_here() {
  // Called at each launch, so the value is cached. A process computes on one GPU.
  static const int code = [] {
    int ordinal = 0, major = 0, minor = 0;
    check(cudaGetDevice(&ordinal), "asking for the current GPU");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal),
          "asking for a GPU's version");
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal),
          "asking for a GPU's version");
    return code_for(OCTET_CUDA_BUILT_FOR, 10 * major + minor);
  }();
  return code;
}

}  // namespace cuda

int cuda_device_count() {
  return cuda::ask(-1).count;
}

bool has_cuda_driver() {
  return cuda::ask_driver().driver > 0;
}

bool cuda_available(int ordinal, std::string* why) {
  std::string found = why_not(cuda::ask(ordinal));
  const bool available = found.empty();
  if (why) *why = std::move(found);
  return available;
}

std::unique_ptr<Device> make_cuda_device(int ordinal) {
  if (std::string why; !cuda_available(ordinal, &why)) {
    throw Error({.what = why,
                 .expected = "an NVIDIA GPU of compute capability 8.0 or more and its driver",
                 .fix = "use device: cpu, or leave it auto",
                 .code = ExitCode::usage});
  }
  return std::make_unique<cuda::CudaDevice>(ordinal);
}

}  // namespace octet
