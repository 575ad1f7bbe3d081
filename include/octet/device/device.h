// The device room: memory, streams and events, with a CPU, a CUDA and a dry side. Nothing above `device`,
// `ops` and `comm` knows which one it runs on. The one idea: everything is enqueued on streams and ordered
// by events; the host waits once a step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "octet/base/dtype.h"

namespace octet {

class Device;
class Profile;
class Stream;

/// cpu and cuda compute; dry allocates nothing and runs nothing: building a trainer on it is the memory plan
/// of the kind that it stands for.
enum class DeviceKind { cpu, cuda, dry };

/// A point in a stream that other streams and the host can wait for. Re-recordable: a wait means the
/// latest record that was enqueued before it. An event that was never recorded is complete.
class Event {
 public:
  virtual ~Event() = default;
};

/// An ordered queue of work. Calls enqueue and return; work of one stream runs in order. Thread-compatible:
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
  /// Blocks the host until all work enqueued so far is complete; rethrows what that work threw.
  virtual void synchronize() = 0;

  // What waiting.h asks for.
  virtual void measure_waits() {}
  virtual double seconds_waited() { return 0; }

  /// Takes the time of what is enqueued, or null (profile.h).
  Profile* profile() const { return profile_; }
  void set_profile(Profile* profile) { profile_ = profile; }

  /// Whether kernels enqueued here give the same bits in every run and on every rank, also where a processor
  /// has faster ones that do not (ops/reproducible.h). As a stream is made: false.
  bool reproducible() const { return reproducible_; }
  void set_reproducible(bool on) { reproducible_ = on; }

  /// CPU only: threads of ops enqueued here claim pieces of them (cpu::share()). As a stream is made: false.
  bool claims() const { return claims_; }
  void set_claims(bool on) { claims_ = on; }

 private:
  Profile* profile_ = nullptr;
  bool reproducible_ = false;
  bool claims_ = false;
};

/// What a stream is for: computing, or work that another engine serves (communication).
struct StreamOptions {
  std::string name;
  /// CPU only. `in_line`: enqueued work runs in the caller. `worker`: on a thread of the stream's own, so
  /// that early reuse and late reads show. `served`: by whoever calls serve() (the communication thread).
  enum class Mode { in_line, worker, served } mode = Mode::in_line;
  /// CUDA only. Its work takes what the device's other streams leave idle.
  bool background = false;
};

/// Memory of a device as it is found: bytes in all and free now.
struct MemoryInfo {
  std::size_t total = 0;
  std::size_t free = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  /// cpu or cuda: whose layouts and sizes of scratch reservations have.
  virtual DeviceKind stands_for() const { return kind(); }
  /// "CPU (Intel Xeon …, 2 threads)" or "GPU 0: NVIDIA H200 (139.8 GiB)".
  virtual std::string description() const = 0;
  virtual std::unique_ptr<Stream> make_stream(const StreamOptions& options) = 0;
  virtual std::unique_ptr<Event> make_event() = 0;
  /// An event that keeps the time at which its latest record was reached.
  virtual std::unique_ptr<Event> make_timed_event() = 0;
  /// Seconds from the latest record of one timed event to that of another; both are complete.
  virtual double seconds_between(const Event& from, const Event& to) = 0;
  /// True when the latest record of an event was reached, or when there was none. Does not wait.
  virtual bool complete(const Event& event) = 0;
  virtual MemoryInfo memory() const = 0;
  /// True when the host may read and write this device's memory in place (HostMirror asks).
  virtual bool host_reaches_memory() const = 0;
  /// The same of what lies at one address: pinned memory, too.
  virtual bool host_reaches(const void*) const { return host_reaches_memory(); }

  /// Zeroed memory on a 256-byte boundary (a distinct non-null address on the dry device, not to be read).
  /// Arena alone calls these. Throws Error when there is not enough.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* address, std::size_t bytes) noexcept = 0;

  /// Host memory that transfers can read asynchronously (pinned on CUDA, where kernels read and write it at
  /// the same address), zeroed. For an Arena, and for what carries messages.
  virtual void* allocate_host(std::size_t bytes) = 0;
  virtual void release_host(void* address, std::size_t bytes) noexcept = 0;

  /// Enqueued copies; the host side must stay untouched until the stream has passed them. Where pinned memory
  /// stands for the device's, what is called the device's may lie there.
  virtual void copy_to_device(Stream& stream, void* device_to, const void* host_from, std::size_t bytes) = 0;
  virtual void copy_to_host(Stream& stream, void* host_to, const void* device_from, std::size_t bytes) = 0;
  virtual void copy(Stream& stream, void* to, const void* from, std::size_t bytes) = 0;
  /// Enqueued fill with zero bytes.
  virtual void zero(Stream& stream, void* address, std::size_t bytes) = 0;
};

/// How the CPU device computes.
struct CpuOptions {
  int threads = 0;              ///< of one op of the calling thread, from now on; 0: as many as it has
  bool compute_worker = false;  ///< in_line streams become worker streams (for tests)
  /// cuda: reservations are laid out as on a GPU, transposed FP8 copies included, and read so (for tests).
  DeviceKind stands_for = DeviceKind::cpu;
};
std::unique_ptr<Device> make_cpu_device(const CpuOptions& options = {});
/// What a dry device stands for.
struct DryOptions {
  DeviceKind stands_for = DeviceKind::cpu;
  std::string name;        ///< for descriptions: "NVIDIA H200"; may be empty
  std::size_t memory = 0;  ///< bytes that can be reserved; 0: without end
};
/// A device on which everything can be built and enqueued, and nothing happens. Reserving more than its
/// memory throws as it does on the device it stands for.
std::unique_ptr<Device> make_dry_device(const DryOptions& options = {});

/// True when GPU `ordinal` of this machine can train: the program has its CUDA side, and there are a driver
/// and a GPU recent enough (compute capability 8.0). Otherwise `why_not` (if wanted) gets a sentence
/// without a full stop. Costs nothing where there is no driver, and never throws.
bool cuda_available(int ordinal, std::string* why_not = nullptr);
/// GPUs that the driver shows to this process; 0 without one.
int cuda_device_count();
/// Whether there is a driver for GPUs, of whatever version, so that to compute without one needs a reason.
/// False in a program without its CUDA side.
bool has_cuda_driver();
/// The GPU with this number. Throws Error, with the sentence of cuda_available, when it cannot be had.
std::unique_ptr<Device> make_cuda_device(int ordinal = 0);

/// Which memory: the device's; the host's that transfers read and write while the host goes on; the host's.
/// Where the device is a CPU all three are the host's.
enum class MemoryKind { device, pinned, host };

/// One named reservation.
struct Reservation {
  std::string name;
  std::size_t bytes = 0;
  MemoryKind kind = MemoryKind::device;
  /// Only planned: taken between steps, at most this, and given back.
  bool passing = false;
};

/// Memory of a device and of the host for it, reserved by name before the first step and never inside one.
/// Not thread-safe.
class Arena {
 public:
  explicit Arena(Device& device) : device_(device) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  /// Reserves `bytes` (rounded up to 256) of zeroed memory under `name` ("optimizer/exp_avg", …; names may
  /// repeat and add up in reports). Zero bytes give nullptr. Throws Error when sealed or out of memory,
  /// naming what was asked for and what is held.
  void* reserve(const std::string& name, std::size_t bytes, MemoryKind kind = MemoryKind::device);
  template <typename T>
  T* reserve_as(const std::string& name, std::size_t count, MemoryKind kind = MemoryKind::device) {
    return static_cast<T*>(reserve(name, count * sizeof(T), kind));
  }
  /// For the plan: somebody will take that much memory under `name` between steps, and give it back.
  void expect_passing(const std::string& name, std::size_t bytes, MemoryKind kind);
  /// From here on reserve() throws: a run never allocates inside a step.
  void seal() { sealed_ = true; }
  bool sealed() const { return sealed_; }
  /// Reserved of one kind; what passes is left out.
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

}  // namespace octet
