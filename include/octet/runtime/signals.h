// Requests of the user to a running job by signals. Handlers only set flags, which the loop checks between
// steps, and print the consequence.
#pragma once

#include <cstdint>

namespace octet::runtime {

// Handlers for SIGSEGV and SIGILL: they print a message before the signal ends the program.

/// Installs handlers for SIGSEGV and SIGILL that let the signal end the program. If `print`, the handler
/// first prints an error that says whether memory is exhausted. After note_ending() the program exits with
/// the noted code instead. Handlers that are already installed (by a sanitizer) are kept. Signals from other
/// processes are not reported.
void tell_of_faults(bool print);

/// Installs the handlers for its lifetime; one object at a time. SIGUSR1 requests a checkpoint. SIGTERM,
/// SIGINT, SIGHUP and SIGUSR2 request a stop. Before the first step, the process stops at once (exit code 76,
/// nothing is lost). Later it stops after the current step, with a checkpoint. Within `grace_seconds` of the
/// first request, further requests have no effect, because launchers and batch systems repeat signals. A
/// later request ends the process at once, with 128 + signal. A signal that was ignored at program start
/// (nohup) stays ignored. Handlers run on a separate stack (sigaltstack) in the thread that constructs this
/// object, which must be the main thread.
class Signals {
 public:
  /// `prints`: this rank prints the effect of the signals; the other ranks give it a moment to print before
  /// they end. `term_is_an_end`: requests arrive as another signal, and mpirun sends SIGTERM when it ends the
  /// job. Before the first step, SIGTERM then ends the process without a message.
  Signals(double grace_seconds, bool prints, bool term_is_an_end = false);
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  /// After this call, a stop waits for the end of a step.
  void begin_steps();
  /// Called after the last step. A stop can then only take effect at once.
  void end_steps();
  /// Sets the steps that an immediate stop would lose: from the step after `saved` to the current step, which
  /// is `done` + 1.
  void at_step(std::int64_t done, std::int64_t saved);
  /// Returns whether SIGUSR1 arrived since the last call.
  bool take_save();
  /// Returns whether a stop was requested.
  bool stop() const;
};

/// Installs the handlers of a run that has not begun its first step, without a Signals object: for the time
/// from the start of the program to the first Signals object. A request to stop ends the process with code
/// 76. A request for a checkpoint has no effect. The parameters are like the parameters of Signals.
void answer_stops_at_start(bool prints, bool term_is_an_end);
/// Installs a handler for SIGUSR2, by which launch/mpirun requests a stop, for commands without steps. The
/// process ends with code 76. `prints`: it prints a line first.
void answer_stops_of_a_command(bool prints);

}  // namespace octet::runtime
