// Filters mpirun's standard error. Lines of the ranks pass through. Lines of mpirun itself become one message
// per cause.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "octet/base/error.h"

namespace octet::launch {

/// The cause of the end of a job, according to mpirun's output.
enum class Cause {
  none,
  lost_a_rank,   ///< a signal ended a rank, but mpirun does not report which (Ubuntu 26.04)
  not_started,   ///< a host did not let mpirun start
  unknown_host,  ///< a host name does not resolve
  lost_a_host,   ///< the daemon of a host is gone
  wrong_call,    ///< mpirun was called wrongly; its message is written
  aborted,       ///< MPI itself ended a rank
  told_of_end,   ///< mpirun reported how a rank ended
  answered,      ///< the program reported that it stops as asked
  no_room,       ///< MPI could not start: no room for shared files
  no_processes,  ///< ... no more processes or threads
  no_files,      ///< ... no more open files
  no_folder,     ///< ... no folder for temporary files
  mpi_failed     ///< ... another reason
};

/// Whether MPI could not start.
bool is_failed_start(Cause cause);

class Listener {
 public:
  /// `write` receives the text for the user. `arguments` are mpirun's, for messages. `bar`: a progress bar is
  /// drawn in place, by lines that begin with a carriage return.
  Listener(std::string arguments, bool bar, std::function<void(std::string_view)> write);

  /// Takes bytes as they arrive.
  void take(std::string_view bytes);
  /// Processes the last line, which may be incomplete. Writes output of MPI without a known cause.
  void finish();

  Cause cause() const;
  /// Whether MPI has reported a failure in a rank. mpirun may then wait forever for the other ranks.
  bool mpi_has_failed() const { return mpi_has_failed_; }
  /// Returns the output of ssh, each line once.
  const std::vector<std::string>& words_of_ssh() const { return words_of_ssh_; }

 private:
  void take_line(std::string_view line);
  void take_block(const std::string& block);
  bool explains_option(const std::string& line);
  bool explains_call(const std::string& words);
  bool explains_start(const std::string& words, const std::string& block);
  void note_fault(std::string_view line);
  void keep_words_of_ssh(std::string_view line);
  void tell_rank_ended(const std::string& words);
  void set_not_started();
  void tell(std::string_view text);
  void refuse_call(Problem problem);

  std::string arguments_;
  bool bar_;
  std::function<void(std::string_view)> write_;
  std::string line_;           ///< an incomplete line
  std::string block_;          ///< text of a banner of mpirun, between two rules
  bool skips_banner_ = false;  ///< ssh's banner about a changed host key
  Cause end_ = Cause::none, start_ = Cause::none;
  bool mpi_has_failed_ = false;
  bool problem_of_file_ = false;  ///< a message has explained why a program cannot be executed
  std::vector<std::string> raw_;  ///< MPI's output during its start, which a message replaces
  std::vector<std::string> words_of_ssh_;
};

/// Removes the line that mpirun writes to standard output if a job fails to start. All other bytes pass
/// through at once.
class OutputFilter {
 public:
  /// Returns the bytes to write. Holds a line back while it may become that line of mpirun.
  std::string take(std::string_view bytes);
  /// Returns the bytes that are held back.
  std::string finish() { return std::exchange(held_, ""); }

 private:
  std::string held_;
  bool starts_line_ = true;
};

/// Returns the advice after a signal ended a rank or mpirun.
std::string fix_after(int signal);

/// Returns the text of an error for a terminal.
std::string message(const Problem& problem);

}  // namespace octet::launch
