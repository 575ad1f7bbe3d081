#include "octet/runtime/signals.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/base/process.h"
#include "octet/files/folder_lock.h"

namespace octet::runtime {
namespace {

// About the size that an allocator or a new thread requests at once.
constexpr std::size_t kAtOnce = std::size_t{64} << 20;

bool memory_has_run_out() {
  void* const piece = ::mmap(nullptr, kAtOnce, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (piece == MAP_FAILED) return true;
  ::munmap(piece, kAtOnce);
  return false;
}

void write(std::string_view text) {
  log::write_from_handler(text.data(), text.size());
}

bool tells = true;

void tell(int signal, siginfo_t* info, void*) {
  // The error is already printed; only the clean-up failed.
  if (const int code = noted_ending(); code >= 0 && info->si_code > 0) ::_exit(code);
  // The faulting instruction runs again after the handler, and the default action of the signal then ends the
  // program.
  std::signal(signal, SIG_DFL);
  if (info->si_code <= 0) {
    std::raise(signal);
    return;
  }
  if (!tells) return;
  if (signal == SIGILL) {
    write(
        "\n"
        "error: the program executed an instruction that this CPU does not have (signal 4)\n"
        "  to do:    build the program on this machine (launch/build), or report the CPU's model (lscpu)\n");
  } else if (memory_has_run_out()) {
    write(
        "\n"
        "error: the system refused memory to the program, and a library did not check for it (signal 11)\n"
        "  expected: 64 MiB of address space at least\n"
        "  found:    none (ENOMEM)\n"
        "  to do:    raise the limits (ulimit -v, the memory of the container or job, vm.max_map_count), or "
        "use fewer threads (OMP_NUM_THREADS)\n");
  } else {
    write(
        "\n"
        "error: the program accessed invalid memory (signal 11)\n"
        "  to do:    look at the limits (ulimit -a: stack, virtual memory); start it again: a run resumes "
        "from its newest checkpoint\n");
  }
}

}  // namespace

void tell_of_faults(bool print) {
  tells = print;
  // The handler needs another stack if the main thread has a stack overflow.
  static char stack[std::size_t{64} << 10];
  const stack_t other{.ss_sp = stack, .ss_flags = 0, .ss_size = sizeof stack};
  ::sigaltstack(&other, nullptr);
  for (const int signal : {SIGSEGV, SIGILL}) {
    struct sigaction before {};
    if (::sigaction(signal, nullptr, &before) != 0 || before.sa_handler != SIG_DFL) continue;
    struct sigaction action {};
    action.sa_sigaction = tell;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigaction(signal, &action, nullptr);
  }
}

namespace {

constexpr std::array kStops{SIGTERM, SIGINT, SIGHUP, SIGUSR2};

// The only state that handlers access; lock-free, so access is signal-safe.
std::atomic<bool> save_asked = false;
std::atomic<std::int64_t> stop_asked_at = 0;  // nanoseconds of the monotonic clock; 0: no stop was requested
std::atomic<std::int64_t> grace = 0;          // nanoseconds
std::atomic<std::int64_t> answered_at = 0;    // latest request within the grace period that printed a line
std::atomic<bool> steps_begun = false;
std::atomic<bool> steps_ended = false;
std::atomic<bool> speaks = false;
std::atomic<bool> term_is_no_request = false;
std::atomic<std::int64_t> steps_done = 0;
std::atomic<std::int64_t> step_saved = 0;
static_assert(std::atomic<std::int64_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

std::int64_t now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

/// A line that is built and written without heap allocation or locks.
class Line {
 public:
  Line& operator<<(const char* text) {
    for (; *text != '\0' && size_ < text_.size(); ++text) text_[size_++] = *text;
    return *this;
  }
  Line& operator<<(std::int64_t number) {
    std::array<char, 21> digits{};
    std::size_t at = digits.size() - 1;
    for (auto rest = static_cast<std::uint64_t>(std::max<std::int64_t>(0, number)); at > 0; rest /= 10) {
      digits[--at] = static_cast<char>('0' + rest % 10);
      if (rest < 10) break;
    }
    return *this << (digits.data() + at);
  }
  void write() const { log::write_from_handler(text_.data(), size_); }

 private:
  std::array<char, 300> text_{};
  std::size_t size_ = 0;
};

[[noreturn]] void leave(int code) {
  if (!speaks) {
    // mpirun ends all ranks after the first rank has ended. The printing rank gets time to print first.
    const timespec moment{.tv_sec = 0, .tv_nsec = 300'000'000};
    ::nanosleep(&moment, nullptr);
  }
  files::remove_held_lock_files();
  ::_exit(code);
}

void say_that_it_stops() {
  Line line;
  line << (steps_ended ? "\nthe last step is done, the model is being written; a request after "
                       : "\nstopping after this step, with a checkpoint; a request after ")
       << (grace.load() + 999'999'999) / 1'000'000'000
       << (steps_ended ? " s stops it at once\n" : " s stops the run at once, without a checkpoint\n");
  line.write();
}

// Terminals and batch systems repeat signals, so one line per second is enough.
void answer_in_the_grace(std::int64_t left, std::int64_t time) {
  std::int64_t before = answered_at;
  if (before != 0 && time - before < 1'000'000'000) return;
  if (!answered_at.compare_exchange_strong(before, time)) return;
  Line line;
  line << "\nthe run is stopping already: wait, or repeat the request in "
       << (left + 999'999'999) / 1'000'000'000
       << (steps_ended ? " s to stop at once\n" : " s to stop at once, without a checkpoint\n");
  line.write();
}

void say_what_is_lost() {
  Line line;
  line << "\nstopped at once, as asked twice: ";
  if (step_saved > 0) {
    line << "the newest checkpoint is of step " << step_saved;
  } else {
    line << "there is no checkpoint";
  }
  line << ", and later training, " << steps_done - step_saved << " steps and the current step, is lost\n";
  line.write();
}

void ask_save(int) {
  save_asked = true;
}

void ask_stop(int signal) {
  const int error = errno;
  if (!steps_begun) {
    const bool asked = signal != SIGTERM || !term_is_no_request;
    if (speaks && asked) (Line() << "\nstopped before the first step, as asked: nothing is lost\n").write();
    leave(static_cast<int>(ExitCode::preempted));
  }
  // One value holds both the request and its time, because a handler may interrupt another handler.
  const std::int64_t time = std::max<std::int64_t>(1, now());
  std::int64_t first = 0;
  if (stop_asked_at.compare_exchange_strong(first, time)) {
    if (speaks) say_that_it_stops();
  } else if (time - first > grace) {
    if (speaks) say_what_is_lost();
    leave(128 + signal);
  } else if (speaks) {
    answer_in_the_grace(first + grace - time, time);
  }
  errno = error;
}

void end_the_command(int) {
  if (speaks) (Line() << "\nstopped, as asked\n").write();
  leave(static_cast<int>(ExitCode::preempted));
}

/// Makes handlers of this thread run on a separate stack, if it has none. Kernels that oneDNN generates (for
/// example fp32 kernels for AVX2) keep values below the stack pointer, beyond the system's red zone. A
/// handler on the same stack would overwrite them. Signals to a process reach its first thread, which
/// computes.
void take_stack_for_handlers() {
  static std::array<std::byte, std::size_t{256} << 10> stack;
  stack_t before{};
  if (::sigaltstack(nullptr, &before) != 0 || (before.ss_flags & SS_DISABLE) == 0) return;
  const stack_t own{.ss_sp = stack.data(), .ss_flags = 0, .ss_size = stack.size()};
  ::sigaltstack(&own, nullptr);
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction before {};
  // nohup, and shells that start background processes, make a program ignore signals.
  const bool may_be_ignored = signal == SIGHUP || signal == SIGINT;
  if (may_be_ignored && ::sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) return;
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART | SA_ONSTACK;
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void answer_stops_at_start(bool prints, bool term_is_an_end) {
  speaks = prints;
  term_is_no_request = term_is_an_end;
  take_stack_for_handlers();
  handle(SIGUSR1, ask_save);
  for (const int signal : kStops) handle(signal, ask_stop);
}

void answer_stops_of_a_command(bool prints) {
  speaks = prints;
  take_stack_for_handlers();
  handle(SIGUSR2, end_the_command);
}

Signals::Signals(double grace_seconds, bool prints, bool term_is_an_end) {
  save_asked = false;
  stop_asked_at = 0;
  answered_at = 0;
  steps_begun = false;
  steps_ended = false;
  steps_done = 0;
  step_saved = 0;
  grace = static_cast<std::int64_t>(std::clamp(grace_seconds, 0.0, 1e6) * 1e9);
  speaks = prints;
  term_is_no_request = term_is_an_end;
  take_stack_for_handlers();
  handle(SIGUSR1, ask_save);
  for (const int signal : kStops) handle(signal, ask_stop);
}

Signals::~Signals() {
  // A process with a stop request is about to end. A repeated request must not kill it by the signal, because
  // its launcher would report a failed rank.
  if (stop_asked_at != 0) return;
  for (const int signal : {SIGUSR1, SIGTERM, SIGINT, SIGHUP, SIGUSR2}) {
    struct sigaction now {};
    if (::sigaction(signal, nullptr, &now) != 0) continue;
    if (now.sa_handler == ask_save || now.sa_handler == ask_stop) std::signal(signal, SIG_DFL);
  }
}

void Signals::begin_steps() {
  steps_begun = true;
}

void Signals::end_steps() {
  steps_ended = true;
}

void Signals::at_step(std::int64_t done, std::int64_t saved) {
  steps_done = done;
  step_saved = std::max<std::int64_t>(0, saved);
}

bool Signals::take_save() {
  return save_asked.exchange(false);
}

bool Signals::stop() const {
  return stop_asked_at != 0;
}

}  // namespace octet::runtime
