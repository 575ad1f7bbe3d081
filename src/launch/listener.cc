#include "listener.h"

#include <regex.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <csignal>
#include <cstdlib>
#include <initializer_list>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "octet/base/terminal.h"

namespace octet::launch {
namespace {

// Longer lines are written before they are complete.
constexpr std::size_t kLongestLine = std::size_t{1} << 20;

// mpirun's text after the number of ranks that could not be started.
constexpr std::array<std::string_view, 2> kCounted{" total process failed to start",
                                                   " total processes failed to start"};

/// An extended POSIX regular expression. std::regex fails on lines of 100 KB.
class Pattern {
 public:
  explicit Pattern(const char* text) {
    check(::regcomp(&compiled_, text, REG_EXTENDED | REG_NOSUB) == 0, "the expression is valid");
  }
  ~Pattern() { ::regfree(&compiled_); }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  bool matches(const std::string& line) const {
    return ::regexec(&compiled_, line.c_str(), 0, nullptr, 0) == 0;
  }

 private:
  regex_t compiled_{};
};

// Whether a line is an error of Open MPI's own code during its start.
bool is_fault(const std::string& line) {
  static const Pattern pattern(
      R"re(^(\[[^][ ]+:[0-9]+\] .*((PMIX|OPAL|ORTE|PRTE) ERROR|_ERROR_LOG|Unable to start listen thread|)re"
      R"re(Local abort before MPI_INIT)|\*\*\* (An error occurred in MPI_Init|on a NULL comm|)re"
      R"re(MPI_ERRORS_ARE_FATAL|   and potentially)))re");
  return pattern.matches(line);
}

// Whether a line is from ssh or the remote shell, after mpirun's daemon could not start on a host.
bool is_refusal(const std::string& line) {
  static const Pattern pattern(
      R"re(^(ssh: |Connection (closed|reset) by |Connection timed out during banner exchange|)re"
      R"re((kex|ssh)_exchange_identification: |Host key verification failed|)re"
      R"re(No [^ ]+ host key is known for |Offending [^ ]+ key in |)re"
      R"re([^ ]+: Permission denied \((publickey|password|keyboard|gssapi|hostbased)|)re"
      R"re([a-z/]*sh: .*(orted|prted): .*not found))re");
  return pattern.matches(line);
}

// Whether a line is "3 total processes failed to start", mpirun's last line about such a job.
bool is_count_of_ranks(std::string_view line) {
  const std::size_t digits = line.find_first_not_of("0123456789");
  if (digits == 0 || digits == std::string_view::npos) return false;
  const std::string_view rest = line.substr(digits);
  return std::ranges::any_of(kCounted, [&](std::string_view words) { return rest == words; });
}

// Whether a partial line may become such a line.
bool begins_count_of_ranks(std::string_view line) {
  const std::size_t digits = std::min(line.find_first_not_of("0123456789"), line.size());
  const std::string_view rest = line.substr(digits);
  return digits > 0 &&
         std::ranges::any_of(kCounted, [&](std::string_view words) { return words.starts_with(rest); });
}

bool is_notice(const std::string& line) {
  static const Pattern pattern(
      R"re(^((mpirun|prterun): Forwarding signal |\[[^][ ]+:[0-9]+\] ([0-9]+ more process(es)? (has|have) sent |)re"
      R"re(help message |Set MCA parameter "[a-z]+_base_help_aggregate" to 0 )))re");
  return is_count_of_ranks(line) || pattern.matches(line);
}

bool is_line_of(std::string_view line, char sign, std::size_t least) {
  return line.size() >= least && line.find_first_not_of(sign) == std::string_view::npos;
}

// Whether the parts occur in this order.
bool has(std::string_view text, std::initializer_list<std::string_view> parts) {
  std::size_t at = 0;
  for (const std::string_view part : parts) {
    at = text.find(part, at);
    if (at == std::string_view::npos) return false;
    at += part.size();
  }
  return true;
}

bool has_any(std::string_view text, std::initializer_list<std::string_view> parts) {
  return std::ranges::any_of(parts, [&](std::string_view part) { return has(text, {part}); });
}

// Returns the text as one line: each run of blanks and line ends becomes one blank.
std::string squeezed(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const char blank = c == '\n' ? ' ' : c;
    if (blank != ' ' || out.empty() || out.back() != ' ') out += blank;
  }
  return out;
}

// Returns the text after the last occurrence of `part`; all of it if there is none.
std::string_view behind(std::string_view text, std::string_view part) {
  const std::size_t at = text.rfind(part);
  return at == std::string_view::npos ? text : text.substr(at + part.size());
}

std::string_view before(std::string_view text, std::string_view part) {
  return text.substr(0, text.find(part));
}

std::string word_behind(std::string_view text, std::string_view part) {
  return std::string(before(behind(text, part), " "));
}

std::string lines_of(std::string_view block) {
  std::string out;
  for (const std::string& line : split(block, '\n')) out += printable_line(line) + "\n";
  return out;
}

// "3 on node7" of "process rank 3 with PID 17 on node node7 exited".
std::string rank_in(std::string_view words) {
  return word_behind(words, "process rank ") + " on " + word_behind(words, " on node ");
}

}  // namespace

bool is_failed_start(Cause cause) {
  return cause >= Cause::no_room;
}

std::string fix_after(int signal) {
  const std::string again = "start the run again: it resumes from its newest checkpoint";
  switch (signal) {
    case SIGKILL:
      return "check for a lack of memory (dmesg); " + again;
    case SIGILL:
      return "build the program on this machine (launch/build): its CPU lacks an instruction";
    case SIGBUS:
    case SIGSEGV:
      return "check the limits of memory and stack (ulimit -a); " + again;
    default:
      return again;
  }
}

std::string OutputFilter::take(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const bool whole = end != std::string_view::npos;
    const std::string_view piece = bytes.substr(0, end);
    bytes.remove_prefix(whole ? end + 1 : bytes.size());
    held_ += piece;
    if (whole && starts_line_ && is_count_of_ranks(held_)) {
      held_.clear();
      continue;
    }
    if (!whole && starts_line_ && begins_count_of_ranks(held_)) break;
    out += std::exchange(held_, "");
    if (whole) out += '\n';
    starts_line_ = whole;
  }
  return out;
}

std::string message(const Problem& problem) {
  return "error: " + printable(Error(problem).what()) + "\n";
}

Listener::Listener(std::string arguments, bool bar, std::function<void(std::string_view)> write)
    : arguments_(std::move(arguments)), bar_(bar), write_(std::move(write)) {}

void Listener::take(std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    line_.append(bytes.substr(0, end));
    if (end == std::string_view::npos) break;
    bytes.remove_prefix(end + 1);
    take_line(std::exchange(line_, ""));
  }
  if (line_.size() > kLongestLine) write_(std::exchange(line_, ""));
}

void Listener::finish() {
  if (!line_.empty()) take_line(std::exchange(line_, ""));
  if (!block_.empty()) write_(lines_of(std::exchange(block_, "")));
  // Output without a known cause may help. The program may have continued after it.
  const bool is_known = start_ != Cause::none && start_ != Cause::mpi_failed;
  if (is_known) return;
  for (const std::string& words : raw_) write_(lines_of(words));
}

Cause Listener::cause() const {
  const bool says_little = end_ == Cause::none || end_ == Cause::answered || end_ == Cause::told_of_end;
  return says_little && start_ != Cause::none ? start_ : end_;
}

void Listener::tell(std::string_view text) {
  write_(text);
}

void Listener::refuse_call(Problem problem) {
  problem.where = arguments_.empty() ? "mpirun" : "mpirun " + arguments_;
  tell(message(problem));
}

void Listener::take_line(std::string_view text) {
  const std::string line(text);
  constexpr std::size_t kRule = 70, kBannerOfSsh = 50;
  if (bar_ && line.starts_with('\r')) {
    write_(line);
  } else if (is_line_of(line, '-', kRule)) {
    if (block_.empty()) {
      block_ = line;
    } else {
      take_block(std::exchange(block_, "") + "\n" + line);
    }
  } else if (block_.empty() && is_fault(line)) {
    note_fault(line);
  } else if (block_.empty() && explains_option(line)) {
    return;
  } else if (block_.empty() && is_line_of(line.substr(0, kBannerOfSsh), '@', kBannerOfSsh)) {
    skips_banner_ = true;
  } else if (block_.empty() && is_refusal(line)) {
    keep_words_of_ssh(line);
  } else if (skips_banner_ || is_notice(line)) {
    return;
  } else if (!block_.empty()) {
    block_ += "\n" + line;
  } else {
    if (end_ == Cause::none &&
        has_any(line, {", as asked", "stopping after this step, with", "the last step is done, the model"}))
      end_ = Cause::answered;
    write_(line + "\n");
  }
}

void Listener::keep_words_of_ssh(std::string_view line) {
  constexpr std::size_t kMost = 20;
  if (has(line, {"Could not resolve hostname"})) {
    end_ = Cause::unknown_host;
  } else {
    set_not_started();
  }
  if (has(line, {"Host key verification failed"})) skips_banner_ = false;
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (words_of_ssh_.size() < kMost && std::ranges::find(words_of_ssh_, line) == words_of_ssh_.end())
    words_of_ssh_.emplace_back(line);
}

void Listener::set_not_started() {
  if (end_ != Cause::unknown_host) end_ = Cause::not_started;
}

void Listener::note_fault(std::string_view line) {
  constexpr std::size_t kMost = 40;
  if (raw_.size() < kMost) raw_.emplace_back(line);
  const auto if_none = [&](Cause cause) {
    if (start_ == Cause::none) start_ = cause;
  };
  if (has_any(line, {"An error occurred in MPI_Init", "Local abort before MPI_INIT"})) {
    if_none(Cause::mpi_failed);
    mpi_has_failed_ = true;
  } else if (has(line, {"OUT-OF-RESOURCE", "dstore"})) {
    start_ = Cause::no_room;
  } else if (has_any(line, {"number of children a process can have", "progress_threads",
                            "Unable to start listen thread", "oob_tcp_listener.c at line 151"})) {
    start_ = Cause::no_processes;
  } else if (has(line, {"Out of resource", "oob_tcp"}) ||
             has_any(line, {"number of pipes", "number of network connections", "number of files"})) {
    if (start_ != Cause::no_processes) start_ = Cause::no_files;
  } else if (has(line, {"session_dir"})) {
    if_none(Cause::no_folder);
  }
}

// Explains mpirun's error about an unknown option. Returns whether the line is one.
bool Listener::explains_option(const std::string& line) {
  const std::size_t name = line.find("run: Error: unknown option \"");
  const std::string_view words = std::string_view(line).substr(0, line.find(' '));
  if (name != std::string::npos && name < words.size()) {
    refuse_call({.what = "mpirun refuses an option",
                 .found = std::string(before(behind(line, "unknown option \""), "\"")),
                 .fix = "correct it (mpirun --help); options of the program follow its name"});
    end_ = Cause::wrong_call;
    return true;
  }
  return end_ == Cause::wrong_call && line.starts_with("Type '") && line.ends_with("--help' for usage.");
}

// Explains mpirun's errors about its command line. Returns whether the text is one.
bool Listener::explains_call(const std::string& words) {
  const std::string no_program = "mpirun cannot start a program: it is not there, or may not be executed";
  const std::string look = "check its name, and that every host has it";
  const std::string hosts = "a file with a line for each host: NAME slots=RANKS";
  const std::string_view of_file = behind(words, "the hostfile: ");
  if (has(words, {"Open MPI tried to fork a new process via the \"execve\" system call",
                  "Application name: ", "Error: "})) {
    problem_of_file_ = true;
    refuse_call({.what = "mpirun cannot start a program: the system cannot execute it",
                 .expected = "a program for this machine, or a script that begins with #!",
                 .found = word_behind(words, "Application name: ") + ": " +
                          std::string(before(behind(words, "Error: "), " --")),
                 .fix = "look at the file (file NAME)"});
    end_ = Cause::wrong_call;
    return true;
  }
  if (problem_of_file_ && has(words, {"was unable to start the specified application as it encountered an"}))
    return true;
  if (has(words, {"help about: prun:exe-"})) {
    refuse_call({.what = no_program, .fix = look});
    return true;
  }
  if (has(words, {"as it could not access or execute an executable: Executable: ", " Node: "}) ||
      has(words, {"unable to find the specified executable file", " Node: ", " Executable: "})) {
    refuse_call({.what = no_program,
                 .expected = "a program on each host that ranks start on",
                 .found = word_behind(words, " Executable: ") + ", on " + word_behind(words, " Node: "),
                 .fix = look});
  } else if (has(words, {"could not change to the specified working directory: ", " Node: "})) {
    refuse_call({.what = "mpirun cannot start ranks in their working directory",
                 .expected = "a directory on each host that ranks start on",
                 .found = word_behind(words, "Working directory: ") + ", on " + word_behind(words, " Node: "),
                 .fix = "make it, or name another folder (-wdir)"});
  } else if (has(words, {"No executable was specified on the mpirun command line"})) {
    refuse_call({.what = "mpirun has no program to start",
                 .expected = "launch/mpirun -np RANKS build/bin/trainer config.yaml",
                 .fix = "name the program after mpirun's options"});
  } else if (has(words,
                 {"a parameter given to a command line option does not match the expected format: "})) {
    refuse_call({.what = "the value of one of mpirun's options cannot be used",
                 .found = std::string(before(behind(words, "expected format: "), " This is ")),
                 .fix = "give a value that mpirun --help names, such as a number of ranks for -np"});
  } else if (has_any(words, {"unable to open the hostfile: ", "detected a parse error in the hostfile: "})) {
    refuse_call({.what = "the hostfile cannot be read",
                 .expected = hosts,
                 .found = std::string(before(before(of_file, " Check to make sure"), " ---")),
                 .fix = "name an existing file with such lines; hostfiles/ has examples"});
  } else if (has_any(words,
                     {"detected a bad parameter in the hostfile: ", "No nodes are available for this job"})) {
    const bool none = has(words, {"No nodes are available"});
    refuse_call({.what = "the hostfile names no host that ranks can be started on",
                 .expected = hosts,
                 .found = none ? "no host" : std::string(before(of_file, " -----")),
                 .fix = "write such lines; hostfiles/ has examples"});
  } else {
    return false;
  }
  end_ = Cause::wrong_call;
  return true;
}

// Explains MPI's errors during its start. Returns whether the text is one.
bool Listener::explains_start(const std::string& words, const std::string& block) {
  if (has(words, {"does not know how to route a message to the specified daemon"})) {
    set_not_started();
  } else if (has(words, {"unable to create the desired directory: "})) {
    start_ = Cause::no_folder;
  } else if (has(words, {"system limit exceeded on number of processes"})) {
    start_ = Cause::no_processes;
  } else if (has(words, {"No network interfaces were found for out-of-band"})) {
    if (start_ == Cause::none) start_ = Cause::no_files;
  } else if (has(words, {"enough space for ", "shared-memory backing file"}) ||
             has_any(words, {"shared memory initialization that should not have",
                             "unable to create shared memory"})) {
    start_ = Cause::no_room;
  } else if (has(words, {"It looks like ", "_init failed for some reason; "}) ||
             has(words, {"It looks like MPI_INIT failed for some reason; "})) {
    if (start_ == Cause::none) start_ = Cause::mpi_failed;
    raw_.push_back(block);
    mpi_has_failed_ = true;
  } else {
    return false;
  }
  return true;
}

void Listener::take_block(const std::string& block) {
  const std::string words = squeezed(block);
  if (has_any(words, {"Primary job terminated normally, but", "help about: prun:non-zero-exit "})) return;
  if (has(words, {"detected that one or more processes exited with non-zero status"})) {
    if (end_ == Cause::none) end_ = Cause::told_of_end;
  } else if (has(words, {"help about: prun:proc-aborted"})) {
    end_ = Cause::lost_a_rank;
  } else if (has(words, {"unable to reliably start one or more daemons"})) {
    set_not_started();
  } else if (has(words, {" calling \"abort\". This may have caused"})) {
    end_ = Cause::aborted;
    write_(lines_of(block));
  } else if (has_any(words, {"PRTE has lost communication with a remote daemon", "help about: node-died "})) {
    if (end_ != Cause::not_started) end_ = Cause::lost_a_host;
    write_(lines_of(block));
  } else if (explains_call(words) || explains_start(words, block)) {
    return;
  } else if (has(words, {"An internal error has occurred in ORTE"}) && end_ == Cause::wrong_call) {
    return;  // a consequence of a wrong command line
  } else if (has(words, {"noticed that process rank ", " exited on signal "})) {
    tell_rank_ended(words);
  } else {
    write_(lines_of(block));
  }
}

void Listener::tell_rank_ended(const std::string& words) {
  constexpr int kLargestSignal = 64, kCode = 128;
  const std::string_view signal = before(behind(words, " exited on signal "), ".");
  const int number = std::atoi(std::string(signal).c_str());
  // A higher number is an exit code of mpirun or of its program, minus 128.
  if (number > kLargestSignal) {
    tell("warning: rank " + printable_line(rank_in(words)) + " ended with code " +
         std::to_string(kCode + number) + "\n");
    return;
  }
  if (number == SIGUSR2) return;  // a stop arrived before the rank had a handler
  end_ = Cause::told_of_end;
  tell(message({.what = "a rank was ended by signal " + std::string(signal) + ", and the others with it",
                .where = "rank " + rank_in(words),
                .fix = fix_after(number)}));
}

}  // namespace octet::launch
