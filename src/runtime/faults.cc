#include "octet/runtime/faults.h"

#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <string_view>

#include "octet/base/log.h"
#include "octet/base/process.h"

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

}  // namespace octet::runtime
