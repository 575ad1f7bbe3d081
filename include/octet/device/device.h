// Devices: memory, streams and events, with a CPU, a CUDA and a dry implementation. Code above `device`,
// `ops` and `comm` does not depend on the implementation, and reads facts about it in traits.h. All work is
// enqueued on streams and ordered by events. The host waits once a step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "octet/base/dtype.h"
#include "octet/base/error.h"
#include "octet/device/traits.h"

namespace octet {

class Device;
class Profile;
class Stream;

/// A point in a stream that other streams and the host can wait for. It can be recorded again: a wait refers
/// to the latest record that was enqueued before the wait. An event that was never recorded is complete.
class Event {
 public:
  virtual ~Event() = default;
};

/// An ordered queue of work. Calls enqueue and return. Work of one stream runs in order. Thread-compatible:
/// one host thread enqueues on a given stream.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Device& device() const = 0;
  virtual const std::string& name() const = 0;
  /// Marks the end of all work enqueued so far.
  virtual void record(Event& event) = 0;
  /// Work enqueued after this call starts when the event's latest record is complete.
  virtual void wait(Event& event) = 0;
  /// Blocks the host until all work enqueued so far is complete. Rethrows exceptions of that work.
  virtual void synchronize() = 0;

  // Implementations of the functions of waiting.h.
  virtual void measure_waits() {}
  virtual double seconds_waited() { return 0; }

  /// The profile that times enqueued work, or null (profile.h).
  Profile* profile() const { return profile_; }
  void set_profile(Profile* profile) { profile_ = profile; }

  /// Whether kernels enqueued here give the same bits in every run and on every rank (ops/reproducible.h).
  /// If true, faster kernels without this property are not used. Default: false.
  bool reproducible() const { return reproducible_; }
  void set_reproducible(bool on) { reproducible_ = on; }

  /// CPU only: whether ops enqueued here divide their work among threads by cpu::share(), instead of by
  /// OpenMP. Default: false.
  bool claims() const { return claims_; }
  void set_claims(bool on) { claims_ = on; }

 private:
  Profile* profile_ = nullptr;
  bool reproducible_ = false;
  bool claims_ = false;
};

/// Options of a stream.
struct StreamOptions {
  std::string name;
  /// CPU only. `in_line`: enqueued work runs in the caller. `worker`: enqueued work runs on a separate
  /// thread, so that tests detect memory that is reused too early or read too late. `served`: enqueued work
  /// runs in the thread that calls serve(), usually the communication thread.
  enum class Mode { in_line, worker, served } mode = Mode::in_line;
  /// CUDA only. Work of this stream has low priority: it uses resources that other streams leave idle.
  bool background = false;
};

/// Memory of a device in bytes: total, and free at the time of the call.
struct MemoryInfo {
  std::size_t total = 0;
  std::size_t free = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  /// cpu or cuda: the kind that determines layouts and scratch sizes of reservations.
  virtual DeviceKind stands_for() const { return kind(); }
  /// Returns the facts about the device itself.
  const DeviceTraits& traits() const { return traits_of(kind()); }
  /// Returns the facts about the kind that reservations are laid out for: stands_for().
  const DeviceTraits& planned_traits() const { return traits_of(stands_for()); }
  /// "CPU (Intel Xeon …, 2 threads)" or "GPU 0: NVIDIA H200 (139.8 GiB)".
  virtual std::string description() const = 0;
  virtual std::unique_ptr<Stream> make_stream(const StreamOptions& options) = 0;
  virtual std::unique_ptr<Event> make_event() = 0;
  /// Returns an event that stores the time at which its latest record was reached.
  virtual std::unique_ptr<Event> make_timed_event() = 0;
  /// Returns the seconds between the latest records of two timed events. Both must be complete.
  virtual double seconds_between(const Event& from, const Event& to) = 0;
  /// Returns true if the latest record of the event was reached or if there is no record. Does not wait.
  virtual bool complete(const Event& event) = 0;
  virtual MemoryInfo memory() const = 0;
  /// Returns true if the host may read and write this device's memory in place (see HostMirror).
  virtual bool host_reaches_memory() const = 0;
  /// Returns true if the host may read and write the memory at one address in place. Also true for pinned
  /// memory.
  virtual bool host_reaches(const void*) const { return host_reaches_memory(); }

  /// Returns zeroed memory, aligned to 256 bytes. A dry device returns a distinct non-null address that must
  /// not be read. Only Arena calls these functions. Throws Error if there is not enough memory.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* address, std::size_t bytes) noexcept = 0;

  /// Returns zeroed host memory that transfers can read asynchronously. On CUDA the memory is pinned, and
  /// kernels access it at the same address. For Arena and for message buffers.
  virtual void* allocate_host(std::size_t bytes) = 0;
  virtual void release_host(void* address, std::size_t bytes) noexcept = 0;

  /// Enqueue copies. Host memory must stay unchanged until the stream has completed them. The
  /// device address may be in pinned memory if pinned memory replaces device memory.
  virtual void copy_to_device(Stream& stream, void* device_to, const void* host_from, std::size_t bytes) = 0;
  virtual void copy_to_host(Stream& stream, void* host_to, const void* device_from, std::size_t bytes) = 0;
  virtual void copy(Stream& stream, void* to, const void* from, std::size_t bytes) = 0;
  /// Enqueues a fill with zero bytes.
  virtual void zero(Stream& stream, void* address, std::size_t bytes) = 0;
};

/// Options of the CPU device.
struct CpuOptions {
  int threads = 0;              ///< threads of each later op of the calling thread; 0: unchanged
  bool compute_worker = false;  ///< in_line streams become worker streams (for tests)
  /// cuda: buffers have the layout of a GPU, including transposed FP8 copies (for tests).
  DeviceKind stands_for = DeviceKind::cpu;
};
std::unique_ptr<Device> make_cpu_device(const CpuOptions& options = {});
/// Options of a dry device.
struct DryOptions {
  DeviceKind stands_for = DeviceKind::cpu;
  std::string name;        ///< for descriptions: "NVIDIA H200"; may be empty
  std::size_t memory = 0;  ///< bytes that can be reserved; 0: no limit
};
/// Makes a device on which everything can be built and enqueued, but nothing runs. Reserving more than its
/// memory throws the Error of the simulated device.
std::unique_ptr<Device> make_dry_device(const DryOptions& options = {});

/// Returns true if GPU `ordinal` of this machine can train: the program is built with CUDA, a driver is
/// installed, and the GPU has compute capability 8.0 or more. Otherwise writes the reason to `why_not`, if
/// not null, without a full stop. Cheap without a driver. Never throws.
bool cuda_available(int ordinal, std::string* why_not = nullptr);
/// Returns the number of GPUs that the driver shows to this process. 0 without a driver.
int cuda_device_count();
/// Returns whether a GPU driver of any version is installed. A run on the CPU then logs why. False
/// if the program is built without CUDA.
bool has_cuda_driver();
/// Opens the GPU with this number. Throws Error with the reason of cuda_available if the GPU cannot be
/// opened.
std::unique_ptr<Device> make_cuda_device(int ordinal = 0);

/// Kind of memory. `device`: memory of the device. `pinned`: host memory that transfers read and write while
/// the host continues. `host`: other host memory. If the device is a CPU, all three are host memory.
enum class MemoryKind { device, pinned, host };

/// One named reservation.
struct Reservation {
  std::string name;
  std::size_t bytes = 0;
  MemoryKind kind = MemoryKind::device;
  /// true: only planned. The run will reserve at most `bytes` between steps and then release them.
  bool passing = false;
};

/// Memory of a device, and of the host for that device. It is reserved by name before the first step and
/// never inside a step. Not thread-safe.
class Arena {
 public:
  explicit Arena(Device& device) : device_(device) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  /// Reserves `bytes` (rounded up to 256) of zeroed memory under `name` ("optimizer/exp_avg", …). Names may
  /// repeat; reports add their sizes. Returns nullptr for zero bytes. Throws Error if sealed or out of
  /// memory, with the requested size and the sizes held.
  void* reserve(const std::string& name, std::size_t bytes, MemoryKind kind = MemoryKind::device);
  template <typename T>
  T* reserve_as(const std::string& name, std::size_t count, MemoryKind kind = MemoryKind::device) {
    return static_cast<T*>(reserve(name, count * sizeof(T), kind));
  }
  /// Records for the plan that `bytes` of memory will be reserved under `name` between steps and then
  /// released.
  void expect_passing(const std::string& name, std::size_t bytes, MemoryKind kind);
  /// Makes every later reserve() throw: a run never allocates inside a step.
  void seal() { sealed_ = true; }
  bool sealed() const { return sealed_; }
  /// Returns the reserved bytes of one kind, without passing reservations.
  std::size_t bytes(MemoryKind kind = MemoryKind::device) const {
    return bytes_[static_cast<std::size_t>(kind)];
  }
  const std::vector<Reservation>& reservations() const { return reservations_; }
  Device& device() const { return device_; }

 private:
  void* take(std::size_t bytes, MemoryKind kind);
  void give_back(void* address, const Reservation& reservation) noexcept;

  Device& device_;
  std::vector<Reservation> reservations_;
  std::vector<void*> addresses_;
  std::array<std::size_t, 3> bytes_{};  ///< by kind
  bool sealed_ = false;
};

// Waits of the host for a point in a stream, and the time that a stream waited for other streams: the exposed
// communication time.

/// Blocks the host until the latest record of an event is reached, without waiting for later work. Returns at
/// once if there is no record. Rethrows exceptions of work before the record. Not for streams of mode
/// `served`.
void wait_for(Device& device, const Event& event);

/// Makes the stream measure its waits for events of other streams. CPU streams always measure. GPU streams
/// put a timed event before and after each wait, which costs the GPU a microsecond.
void measure_waits(Stream& stream);

/// Returns the seconds that work of `stream` has waited for events of other streams. CPU streams count from
/// their creation, GPU streams from measure_waits(). A GPU counts waits that have ended at the time of the
/// call, except waits for background streams, which compute. 0 if nothing is measured. Only the
/// thread that enqueues on the stream may call this.
double seconds_waited(Stream& stream);

/// Returns the Error for a device with `free` free bytes, which are less than the needed `bytes`.
Error out_of_memory(std::size_t bytes, std::size_t free, const std::string& device, const std::string& fix);
/// `found`: why the allocation was refused.
Error out_of_memory(std::size_t bytes, const std::string& found, const std::string& device,
                    const std::string& fix, ExitCode code);
/// Returns whether an Error was made by out_of_memory().
bool is_out_of_memory(const Error& error);

// Work that a stream repeats unchanged. A GPU receives it in one call, so the host does not enqueue each
// piece again.

/// Recorded work: kernels and copies with their arguments and addresses, which stay fixed. The memory
/// contents at these addresses may change between replays.
class Recording {
 public:
  virtual ~Recording() = default;
  /// Enqueues the work on the stream that it was recorded on.
  virtual void replay() = 0;
};

/// Returns whether work of a stream can be recorded: true on a GPU, unless the stream has a profile
/// (profile.h).
bool can_record(const Stream& stream);

/// Calls `enqueue` and records its work instead of running it. `enqueue` must put work on `stream` only and
/// must not wait. The same work must have run before, so that one-time preparations are done. Returns null if
/// nothing is recorded: the stream cannot record (then `enqueue` is not called), or the driver or the work
/// does not support it. The work has not run in this case either.
std::unique_ptr<Recording> record(Stream& stream, const std::function<void()>& enqueue);

}  // namespace octet
