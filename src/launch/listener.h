// What mpirun writes to standard error: lines of the ranks come through, mpirun's own become one message for
// each cause.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "octet/base/error.h"

namespace octet::launch {

/// What mpirun's words say of the end of a job.
enum class Cause {
  none,
  lost_a_rank,   ///< a signal ended a rank, and mpirun has no text that says which (Ubuntu 26.04)
  not_started,   ///< a host did not let mpirun start
  unknown_host,  ///< a name of a host does not resolve
  lost_a_host,   ///< a host's daemon is gone
  wrong_call,    ///< mpirun was called wrongly; its message is written
  aborted,       ///< MPI itself ended a rank
  told_of_end,   ///< mpirun said how a rank ended
  answered,      ///< the program said that it stops as asked
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
  /// `write` gets what the user is to read. `arguments` are those of mpirun, for messages. `bar`: a progress
  /// bar is drawn in place, by lines that begin with a carriage return.
  Listener(std::string arguments, bool bar, std::function<void(std::string_view)> write);

  /// Takes bytes as they arrive.
  void take(std::string_view bytes);
  /// Takes the last line, which may have no end. Writes words of MPI that no cause is known for.
  void finish();

  Cause cause() const;
  /// Whether MPI has reported a failure in a rank. mpirun may then wait forever for the other ranks.
  bool mpi_has_failed() const { return mpi_has_failed_; }
  /// Words of ssh, each once.
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
  std::string line_;           ///< the part of a line that has come
  std::string block_;          ///< a banner of mpirun between two rules
  bool skips_banner_ = false;  ///< of ssh, about a key of a host that changed
  Cause end_ = Cause::none, start_ = Cause::none;
  bool mpi_has_failed_ = false;
  bool problem_of_file_ = false;  ///< a message has said why a program cannot be executed
  std::vector<std::string> raw_;  ///< words of MPI at its start, which a message replaces
  std::vector<std::string> words_of_ssh_;
};

/// Leaves the line out that mpirun writes to standard output when a job fails to start. All other bytes pass
/// through at once.
class OutputFilter {
 public:
  /// Returns the bytes to write. Holds a line back as long as it may become that line of mpirun.
  std::string take(std::string_view bytes);
  /// Returns the bytes that are held.
  std::string finish() { return std::exchange(held_, ""); }

 private:
  std::string held_;
  bool starts_line_ = true;
};

/// What to do after a signal ended a rank or mpirun.
std::string fix_after(int signal);

/// The text of an error, ready for a terminal.
std::string message(const Problem& problem);

}  // namespace octet::launch
