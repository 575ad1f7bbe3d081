#include "octet/base/mapped_files.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <utility>

#include "octet/base/timing.h"

namespace octet {
namespace {

/// A watched mapping. The signal handler reads slots, which are used again and never freed.
struct Slot {
  std::atomic<std::uintptr_t> begin = 0, end = 0;  ///< end 0: unused
  std::atomic<bool> lost = false;
  WatchedMapping::Loss loss = WatchedMapping::Loss::reported;
  Slot* next = nullptr;  ///< fixed when the slot is published
  std::string path;
  dev_t device = 0;
  ino_t inode = 0;
  timespec changed{};  ///< when the file was last written
  std::string sample;  ///< some of its bytes
};

std::atomic<Slot*> slots = nullptr;
std::atomic<bool> any_lost = false;
struct sigaction before {};

// Guards everything but the fields that the handler reads.
std::mutex& mutex() {
  static std::mutex one;
  return one;
}

Slot* slot_of(std::uintptr_t address) {
  for (Slot* slot = slots.load(std::memory_order_acquire); slot != nullptr; slot = slot->next) {
    if (address >= slot->begin.load() && address < slot->end.load()) return slot;
  }
  return nullptr;
}

// Maps zeros over the lost pages, from the page that was read to the end of the mapping.
bool replace_pages(Slot& slot, std::uintptr_t address) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = address / page * page, end = (slot.end.load() + page - 1) / page * page;
  void* made = ::mmap(reinterpret_cast<void*>(first), end - first, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return false;
  slot.lost.store(true);
  any_lost.store(true);
  return true;
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  Slot* slot = info->si_code == BUS_ADRERR ? slot_of(address) : nullptr;
  if (slot != nullptr && replace_pages(*slot, address)) return;
  if ((before.sa_flags & SA_SIGINFO) != 0) return before.sa_sigaction(signal, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) return before.sa_handler(signal);
  // The read is repeated after the handler and ends the process.
  ::signal(SIGBUS, SIG_DFL);
}

void catch_bus_errors() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &before);
  });
}

/// The present file at the path of a mapping.
struct File {
  std::int64_t size = -1;  ///< -1: another file or none
  timespec changed{};
};

File file_of(const Slot& slot) {
  struct stat found {};
  if (::stat(slot.path.c_str(), &found) != 0) return {};
  if (found.st_dev != slot.device || found.st_ino != slot.inode) return {};
  return {.size = found.st_size, .changed = found.st_mtim};
}

// Returns bytes from four places of the file, to detect other contents.
std::string sample_of(const char* bytes, std::size_t count) {
  constexpr std::size_t kPlaces = 4, kBytes = 64;
  if (count <= kPlaces * kBytes) return {bytes, count};
  std::string sample;
  for (std::size_t i = 0; i < kPlaces; ++i)
    sample.append(bytes + (count - kBytes) * i / (kPlaces - 1), kBytes);
  return sample;
}

// Whether something else was written into the file. Adding to its end is no change.
bool is_overwritten(Slot& slot, const File& file) {
  if (file.changed.tv_sec == slot.changed.tv_sec && file.changed.tv_nsec == slot.changed.tv_nsec)
    return false;
  const auto* bytes = reinterpret_cast<const char*>(slot.begin.load());
  if (sample_of(bytes, slot.end.load() - slot.begin.load()) != slot.sample) return true;
  slot.changed = file.changed;
  return false;
}

[[noreturn]] void report_overwritten(const std::string& path) {
  throw ShortenedFile({.what = "a file was overwritten while the program was reading it",
                       .expected = "the contents of the file when it was opened",
                       .found = "other contents",
                       .where = path,
                       .fix = "restore the file, and do not write to files of a running run; then "
                              "start the run again: it resumes from its newest checkpoint",
                       .code = ExitCode::usage});
}

[[noreturn]] void report(const std::string& path, std::size_t mapped, std::int64_t size) {
  throw ShortenedFile({.what = "a file became shorter while the program was reading it",
                       .expected = std::to_string(mapped) + " bytes, as when it was opened",
                       .found = size < 0 ? "pages that are not there" : std::to_string(size) + " bytes",
                       .where = path,
                       .fix = "restore the file, and do not write to files of a running run; then "
                              "start the run again: it resumes from its newest checkpoint",
                       .code = ExitCode::usage});
}

bool time_to_compare() {
  static std::atomic<Clock::rep> last = 0;
  const Clock::rep now = Clock::now().time_since_epoch().count();
  Clock::rep then = last.load();
  const auto least = std::chrono::duration_cast<Clock::duration>(std::chrono::milliseconds(100)).count();
  return now - then >= least && last.compare_exchange_strong(then, now);
}

}  // namespace

WatchedMapping::WatchedMapping(const void* address, std::size_t bytes, int descriptor,
                               const std::string& path, Loss loss) {
  catch_bus_errors();
  struct stat found {};
  const bool known = ::fstat(descriptor, &found) == 0;
  const std::lock_guard lock(mutex());
  Slot* slot = slots.load();
  while (slot != nullptr && slot->end.load() != 0) slot = slot->next;
  const bool made = slot == nullptr;
  if (made) slot = new Slot;
  slot->path = path;
  slot->device = known ? found.st_dev : 0;
  slot->inode = known ? found.st_ino : 0;
  slot->lost.store(false);
  slot->loss = loss;
  slot->changed = found.st_mtim;
  slot->sample.clear();
  if (known && loss == Loss::reported && bytes > 0)
    slot->sample = sample_of(static_cast<const char*>(address), bytes);
  slot->begin.store(reinterpret_cast<std::uintptr_t>(address));
  slot->end.store(reinterpret_cast<std::uintptr_t>(address) + bytes);
  if (made) {
    slot->next = slots.load();
    slots.store(slot, std::memory_order_release);
  }
  slot_ = slot;
}

WatchedMapping::~WatchedMapping() {
  if (slot_ == nullptr) return;
  const std::lock_guard lock(mutex());
  auto* slot = static_cast<Slot*>(slot_);
  slot->end.store(0);
  slot->begin.store(0);
}

WatchedMapping::WatchedMapping(WatchedMapping&& other) noexcept
    : slot_(std::exchange(other.slot_, nullptr)) {}

WatchedMapping& WatchedMapping::operator=(WatchedMapping&& other) noexcept {
  std::swap(slot_, other.slot_);
  return *this;
}

void require_mapped_files(FileSizes sizes) {
  const bool compare = sizes == FileSizes::always || time_to_compare();
  if (!compare && !any_lost.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex());
  bool lost = false;
  for (Slot* slot = slots.load(); slot != nullptr; slot = slot->next) {
    if (slot->end.load() == 0 || slot->loss == WatchedMapping::Loss::hashed) continue;
    const std::size_t mapped = slot->end.load() - slot->begin.load();
    lost |= slot->lost.load();
    const File file = compare || slot->lost.load() ? file_of(*slot) : File();
    if (slot->lost.load() || (file.size >= 0 && static_cast<std::size_t>(file.size) < mapped))
      report(slot->path, mapped, file.size);
    if (file.size >= 0 && is_overwritten(*slot, file)) report_overwritten(slot->path);
  }
  if (!lost) any_lost.store(false);
}

}  // namespace octet
