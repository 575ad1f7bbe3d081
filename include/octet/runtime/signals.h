// What the user asks of a running job by signals. Handlers only set flags, which the loop looks at between
// steps, and say what will happen.
#pragma once

#include <cstdint>

namespace octet::runtime {

/// Installs the handlers for its lifetime; one at a time. SIGUSR1 asks for a checkpoint. SIGTERM, SIGINT,
/// SIGHUP and SIGUSR2 ask to stop: before the first step at once (exit code 76, nothing is lost), later after
/// the step under way, with a checkpoint. Within `grace_seconds` of the first request further ones change
/// nothing, since launchers and batch systems repeat themselves; one after that ends the process at once,
/// with 128 + signal. A signal that whoever started the program had it ignore (nohup) stays ignored. Handlers
/// run on a stack of their own (sigaltstack) in the thread that makes this, which must be the process's
/// first.
class Signals {
 public:
  /// `prints`: this rank says what the signals do; the others give it a moment to do so before they end.
  /// `term_is_an_end`: what somebody asks for comes as another signal, and SIGTERM from mpirun, when it ends
  /// the job: before the first step it is obeyed without a word.
  Signals(double grace_seconds, bool prints, bool term_is_an_end = false);
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  /// From now on a stop waits for the end of a step.
  void begin_steps();
  /// The last step is done: what is left cannot be stopped but at once.
  void end_steps();
  /// What a stop at once would throw away: the steps from the one behind `saved` to the one under way, which
  /// follows `done`.
  void at_step(std::int64_t done, std::int64_t saved);
  /// SIGUSR1 came since the last call.
  bool take_save();
  /// A request to stop came.
  bool stop() const;
};

/// Installs the handlers of a run that has not begun its first step, without a Signals object: for the time
/// from the start of the program to the first Signals object. Such a request ends the process with code 76. A
/// request for a checkpoint has no effect. The parameters are like those of Signals.
void answer_stops_at_start(bool prints, bool term_is_an_end);
/// Installs a handler for SIGUSR2, by which launch/mpirun asks ranks to stop: for commands that have no
/// steps. The process ends with code 76; `prints`: after a line that says so.
void answer_stops_of_a_command(bool prints);

}  // namespace octet::runtime
