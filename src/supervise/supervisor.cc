#include "octet/supervise/supervisor.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/base/timing.h"
#include "octet/checkpoint/folder.h"
#include "octet/config/config.h"
#include "octet/files/folder_lock.h"
#include "octet/memory_tier/memory_folder.h"
#include "octet/report/number.h"
#include "octet/report/progress.h"
#include "octet/supervise/job_command.h"
#include "octet/supervise/job_errors.h"
#include "octet/supervise/policy.h"
#include "places.h"
#include "supervised_job.h"
#include "supervisor_output.h"

namespace octet::supervise {
namespace {

/// Within this time after the end of a run, a restarted supervisor reports that the run is complete, and does
/// not start a new run.
constexpr std::chrono::minutes kJustNow(15);

std::string random_word() {
  std::random_device source;
  return std::to_string(source());
}

/// Checkpoints in host memory. They are removed when the supervision of the run ends.
class HostMemory {
 public:
  explicit HostMemory(const std::string& run) : folder_(memory_tier::memory_folder(run)), hold_(folder_) {
    memory_tier::remove_earlier_memory(folder_);
    memory_tier::start_memory_keeper("/proc/self/exe", folder_);
  }
  ~HostMemory() {
    memory_tier::remove_memory(folder_);
    memory_tier::remove_earlier_memory(folder_);  // of a job that was still ending when this one began
  }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

 private:
  std::string folder_;
  memory_tier::MemoryHold hold_;
};

class Supervisor {
 public:
  Supervisor(const Options& options, const Command& command, const config::Config& config, Requests& requests)
      : config_(config),
        requests_(requests),
        policy_(options.policy),
        places_(command, config, options.min_ranks),
        incidents_(config.output_dir),
        end_within_(options.end_within) {
    // The same command with another output folder is another job.
    std::string words = std::filesystem::absolute(config.output_dir).string() + '\n';
    for (const std::string& word : options.words) words += word + '\n';
    job_ = hash128_hex(words);
    run_ = job_ + "-" + std::to_string(::getpid()) + "." + random_word();
    const auto left = left_behind();
    if (left) run_ = report::run_of(left->job);
    if (options.survive) {
      ::setenv("OCTETRUN_SURVIVORS", std::to_string(options.min_ranks).c_str(), 1);
      // mpirun then does not end the other ranks. So ranks that start MPI and wait for an ended rank must
      // give up after a timeout.
      ::setenv("OCTETRUN_START_TIMEOUT", "60", 0);
    }
  }

  int run();
  /// Returns the name of the run, which all its starts share, including starts of an earlier, killed
  /// supervisor.
  const std::string& name() const { return run_; }

 private:
  /// Whether a job with the same command wrote this progress.
  bool is_of_this_job(const report::Progress& progress) const { return progress.job.starts_with(job_ + "-"); }
  /// Returns the progress that an earlier, killed supervisor has left.
  std::optional<report::Progress> left_behind() const;
  /// One start of the job: its progress, and its end.
  struct Start {
    int code = 0;
    Fault fault;
    report::Progress progress;
    bool told = false;         ///< the run has written its progress
    std::int64_t began = 0;    ///< step after which it began; the run may later roll back to an earlier step
    std::int64_t newest = -1;  ///< step of the newest checkpoint that it saved
    bool stepped = false;      ///< it finished a step, after the last loss of ranks
    int left = 0;              ///< ranks that continued after a loss; 0: no loss
    bool anew = false;         ///< the remaining ranks have not yet written their progress
  };
  Start start();
  void record(const Start& start, const Decision& decision);
  /// Forwards signals of the user to the job. `job` is null between two starts.
  void pass_on(Job* job);
  /// Reads the progress that the run of this start has written.
  void look_at(Start& start);
  /// Records that ranks of the start ended and the others continue in their processes.
  void record_loss(Start& start, const Lost& lost);
  /// Completes the incident rows that waited for the next step.
  void complete_rows(std::int64_t first_step, const std::string& from);
  /// Takes over the progress of an earlier, killed supervisor of the same job.
  void take_over();
  /// Whether the run ended a short time ago and its supervisor was killed afterwards. With
  /// overwrite_output_dir, another start would begin a new run.
  bool has_just_ended() const;
  /// Removes the files that only a running job needs.
  void clear_up() const;
  /// Fields of a row of incidents.jsonl about a loss of ranks or the end of a start. The other fields follow
  /// from the start.
  struct Row {
    Json ranks, code, meaning, who, what, wait;
  };
  /// Adds a row, which the next finished step completes. Returns the last finished step.
  std::int64_t add_row(const Start& start, const Row& row, Clock::time_point ended);
  Ended ended(const Start& start);
  /// Returns the step from which a restart would resume.
  std::int64_t safe_step(const Start& start) const;
  void wait(double seconds);
  std::string goodput_text() const;

  config::SaveKeys config_;
  Requests& requests_;
  Policy policy_;
  Places places_;
  Incidents incidents_;
  double end_within_;
  Goodput goodput_;
  /// A row that the next finished step completes.
  struct OpenRow {
    std::size_t row = 0;
    Clock::time_point since;
  };
  std::vector<OpenRow> open_;
  Clock::time_point began_ = Clock::now(), failed_ = began_;
  std::string job_;         ///< hash of the output folder and the command
  std::string run_;         ///< name of the run; begins with job_
  std::string start_name_;  ///< of the current start
  int starts_ = 0;
  bool asked_ = false;        ///< a signal requested a stop
  std::int64_t newest_ = -1;  ///< the highest step of a checkpoint that was resumed from or saved
  report::Progress saved_;    ///< the latest saved progress of any start
};

std::string Supervisor::goodput_text() const {
  const double wall = seconds_since(began_);
  return "goodput so far " + report::python_number(goodput_.share(wall), 3) + " (" +
         seconds_text(goodput_.seconds()) + " of steps that count in " + seconds_text(wall) + ")";
}

void Supervisor::pass_on(Job* job) {
  for (const int signal : requests_.take()) {
    if (signal != SIGUSR1) asked_ = true;
    if (job != nullptr) job->send(signal);
  }
}

void Supervisor::complete_rows(std::int64_t first_step, const std::string& from) {
  for (const OpenRow& open : open_) {
    Json& row = incidents_.row(open.row);
    const auto reached = row["step"].get<std::int64_t>();
    row["steps_lost"] = std::max<std::int64_t>(0, reached - first_step);
    row["from"] = from.empty() ? "beginning" : from;
    row["seconds_to_next_step"] = seconds_since(open.since);
    row["goodput"] = goodput_.share(seconds_since(began_));
  }
  if (!open_.empty()) incidents_.write();
  open_.clear();
}

std::optional<report::Progress> Supervisor::left_behind() const {
  auto left = report::read_progress(config_.output_dir);
  if (!left || left->finished || !is_of_this_job(*left)) return std::nullopt;
  return left;
}

void Supervisor::take_over() {
  const auto left = left_behind();
  if (!left) return;
  Start start{.progress = *left, .told = true};
  start.fault = {.what = "the previous supervisor was killed, and its job with it", .who = "supervise"};
  if (left->saved_step >= 0) {
    saved_ = *left;
  } else if (config_.overwrite_output_dir && left->first_step > 0) {
    // The run had resumed from its own checkpoint.
    saved_ = *left;
    saved_.saved_step = left->first_step;
    saved_.saved = config_.output_dir + "/" + checkpoint::folder_name(left->first_step);
  }
  record(start, {.next = Next::start});
}

void Supervisor::look_at(Start& start) {
  const auto progress = report::read_progress(config_.output_dir);
  if (!progress || progress->job != start_name_) return;        // written by an earlier start
  if (start.left > 0 && progress->ranks != start.left) return;  // written before some of its ranks ended
  if (!start.told) start.began = progress->first_step;
  if (!start.told || start.anew || progress->first_step != start.progress.first_step)
    goodput_.begin(progress->first_step);
  start.told = true;
  start.anew = false;
  start.progress = *progress;
  start.newest = std::max({start.newest, progress->saved_step, progress->memory_step});
  goodput_.reach(progress->step, progress->step_seconds);
  if (progress->saved_step >= 0) saved_ = *progress;
  if (start.stepped || progress->step == progress->first_step) return;
  start.stepped = true;
  complete_rows(progress->first_step, progress->from);
}

std::int64_t Supervisor::add_row(const Start& start, const Row& row, Clock::time_point ended) {
  const std::int64_t safe = safe_step(start);
  const std::int64_t step = start.told ? start.progress.step : safe;
  // Steps after `safe` are lost, so they no longer count.
  if (start.told) goodput_.begin(safe);
  incidents_.add({{"time", time_text()},
                  {"start", starts_},
                  {"ranks", row.ranks},
                  {"code", row.code},
                  {"meaning", row.meaning},
                  {"who", row.who},
                  {"what", row.what},
                  {"step", step},
                  {"steps_lost", step - safe},
                  {"wait_seconds", row.wait},
                  {"from", nullptr},
                  {"seconds_to_next_step", nullptr},
                  {"goodput", goodput_.share(seconds_since(began_))}});
  open_.push_back({.row = incidents_.size() - 1, .since = ended});
  return step;
}

void Supervisor::record_loss(Start& start, const Lost& lost) {
  look_at(start);
  add_row(start,
          {.ranks = lost.left,
           .meaning = "ranks ended, and the other ranks continue without them",
           .who = lost.who,
           .wait = 0},
          Clock::now());
  start.left = lost.left;
  start.stepped = false;
  start.anew = true;
}

Supervisor::Start Supervisor::start() {
  constexpr int kOften = 100, kSeldom = 1000;  // milliseconds
  ++starts_;
  // This name differs from the names of all other starts, also of other supervisors.
  start_name_ = run_ + "-" + std::to_string(::getpid()) + "." + std::to_string(starts_);
  ::setenv("OCTETRUN_SUPERVISED", start_name_.c_str(), 1);
  Strings overrides = places_.overrides();
  for (const std::string& more : resume_overrides(config_, saved_)) overrides.push_back(more);
  Start start;
  Messages messages;
  Job job(places_.command().words(overrides), [&](std::string_view bytes) {
    show(bytes);
    messages.hear(bytes);
  });
  std::optional<Clock::time_point> failing;  // time of the first reported fault
  bool hung = false;
  while (job.wait(requests_.file(), start.stepped ? kSeldom : kOften)) {
    pass_on(&job);
    if (const auto lost = messages.take_lost()) record_loss(start, *lost);
    look_at(start);
    const Fault& fault = messages.fault();
    if (!failing && (!fault.what.empty() || !fault.lost_hosts.empty())) failing = Clock::now();
    if (hung || !failing || seconds_since(*failing) < end_within_) continue;
    hung = true;
    log::warn("supervise: the job failed " + seconds_text(end_within_) +
              " ago, but its launcher did not end: the launcher is killed");
    job.send(SIGKILL);
  }
  pass_on(&job);
  failed_ = Clock::now();
  job.end_rest();
  if (const auto lost = messages.take_lost()) record_loss(start, *lost);
  look_at(start);
  start.code = job.code();
  start.fault = messages.fault();
  if (hung) {
    start.code = static_cast<int>(ExitCode::hang);
  } else if (job.was_killed()) {
    // Processes that ended with the launcher may have reported errors. These errors are not the cause.
    start.fault.what =
        "the launcher was ended by signal " + std::to_string(start.code - 128) + ", and the job with it";
    start.fault.who = "launcher";
  }
  return start;
}

Ended Supervisor::ended(const Start& start) {
  Ended how{.code = start.code, .asked = asked_};
  // If a stop comes before the run handles signals, the signal kills the start. It counts as a requested
  // stop.
  if (asked_ && !start.told && start.code > 128) how.code = static_cast<int>(ExitCode::preempted);
  if (start.told) {
    how.step = start.progress.step;
    how.finished = start.progress.finished;
    how.unfinished = !how.finished;
    newest_ = std::max(newest_, start.began);
    how.progressed = start.newest > newest_;
    newest_ = std::max(newest_, start.newest);
  }
  return how;
}

std::int64_t Supervisor::safe_step(const Start& start) const {
  // Without progress, only the step where the start would have begun is known.
  if (!start.told) return std::max<std::int64_t>(0, newest_);
  return std::max({start.progress.first_step, start.progress.saved_step, start.progress.memory_step});
}

void Supervisor::record(const Start& start, const Decision& decision) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  const bool has_code = starts_ > 0;
  const int ranks = start.left > 0 ? start.left : places_.ranks();
  const std::int64_t step = add_row(start,
                                    {.ranks = ranks > 0 ? Json(ranks) : Json(),
                                     .code = has_code ? Json(start.code) : Json(),
                                     .meaning = has_code ? Json(meaning_of(start.code)) : Json(),
                                     .who = or_null(start.fault.who),
                                     .what = or_null(start.fault.what),
                                     .wait = decision.next == Next::start ? Json(decision.wait) : Json()},
                                    failed_);
  std::string line = has_code ? "start " + std::to_string(starts_) + " ended with " +
                                    std::to_string(start.code) + " (" + meaning_of(start.code) + ")"
                              : start.fault.what;
  line += " after step " + with_commas(step);
  if (has_code && !start.fault.who.empty()) line += "; " + start.fault.who;
  if (has_code && !start.fault.what.empty()) line += ": " + start.fault.what;
  log::warn("supervise: " + line + (has_code ? "; " + goodput_text() : ""));
}

void Supervisor::wait(double seconds) {
  const auto begin = Clock::now();
  for (double left = seconds; left > 0 && !asked_; left = seconds - seconds_since(begin)) {
    pollfd file{.fd = requests_.file(), .events = POLLIN, .revents = 0};
    ::poll(&file, 1, static_cast<int>(1000 * std::min(left, 60.0)) + 1);
    pass_on(nullptr);
  }
}

// Removes the lock file of a run that was killed.
void remove_stale_lock(const std::string& folder) {
  if (!path_exists(folder + "/octet.lock")) return;
  try {
    const files::FolderLock lock(folder);
  } catch (const Error&) {
    // Another run holds it.
  }
}

void Supervisor::clear_up() const {
  std::error_code none;
  std::filesystem::remove(report::progress_path(config_.output_dir), none);
  remove_stale_lock(config_.output_dir);
}

bool Supervisor::has_just_ended() const {
  const auto left = report::read_progress(config_.output_dir);
  if (!config_.overwrite_output_dir || !left || !left->finished || !is_of_this_job(*left)) return false;
  std::error_code wrong;
  const auto written = std::filesystem::last_write_time(report::progress_path(config_.output_dir), wrong);
  return !wrong && std::filesystem::file_time_type::clock::now() - written < kJustNow;
}

int Supervisor::run() {
  if (has_just_ended()) {
    log::info(
        "supervise: the run was complete when the previous supervisor was killed. Nothing is left to do; "
        "another start begins a new run");
    clear_up();
    return 0;
  }
  take_over();
  pass_on(nullptr);
  if (asked_) {
    log::info("supervise: stopped before the first start, as asked");
    clear_up();
    return static_cast<int>(ExitCode::preempted);
  }
  for (;;) {
    const Start start = this->start();
    Decision decision = policy_.decide(ended(start));
    const bool well = decision.code == 0 || asked_;
    if (decision.next == Next::start || !well) {
      record(start, decision);
      if (const std::string change = places_.after(start.code, start.stepped, start.fault); !change.empty()) {
        log::warn("supervise: " + change);
        policy_.begin_anew();
        decision = {.next = Next::start};
      }
    }
    if (decision.next == Next::start) {
      log::info("supervise: start " + std::to_string(starts_ + 1) + " follows" +
                (decision.wait > 0 ? " in " + seconds_text(decision.wait) : ""));
      wait(decision.wait);
      if (!asked_) continue;
      decision = {.next = Next::end, .code = static_cast<int>(ExitCode::preempted)};
    }
    if (!decision.why.empty()) log::error("supervise: no further start: " + decision.why);
    log::info("supervise: " + std::to_string(starts_) + (starts_ == 1 ? " start, " : " starts, ") +
              goodput_text());
    clear_up();
    return decision.code;
  }
}

}  // namespace

int supervise(const Options& options) {
  Requests requests;  // created first: a signal that arrives earlier ends the process
  const Command command = parse_command(options.launcher, options.words);
  require_hostfiles(command);
  // Errors of the configuration are reported before anything is started.
  const config::Config config = config_of(command);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGCHLD, SIG_DFL);  // if it is ignored, exit codes of children are lost
  Supervisor supervisor(options, command, config, requests);
  std::optional<HostMemory> memory;
  // Called before adopt_orphans(), because the process that keeps the memory does not belong to the job.
  if (config.memory_checkpoint_steps != 0) memory.emplace(supervisor.name());
  adopt_orphans();
  return supervisor.run();
}

}  // namespace octet::supervise
