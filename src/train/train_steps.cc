#include "train_steps.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/base/timing.h"

namespace octet::train {
namespace {

// Returns the lines of steps up to `last`, without lines that a kill truncated.
std::string lines_until(const std::string& path, std::int64_t last) {
  std::string kept;
  if (last == 0 || !path_exists(path)) return kept;
  for (const auto& line : split(read_file(path), '\n')) {
    try {
      if (json_int(parse_json(line, path, false, 8), "step", INT64_MAX, 0, INT64_MAX, path) <= last)
        kept += line + "\n";
    } catch (const Error&) {
      continue;
    }
  }
  return kept;
}

}  // namespace

SampleLog::SampleLog(comm::Channel& channel, const std::string& output_dir, std::int64_t first_step)
    : channel_(channel) {
  channel.together([&] {
    if (channel.rank() != 0) return;
    const std::string path = output_dir + "/samples.jsonl";
    write_file_atomically(path, lines_until(path, first_step));
    file_.open(path, std::ios::app | std::ios::binary);
    if (!file_)
      throw Error({.what = "the log of samples cannot be opened",
                   .expected = "a file that can be written",
                   .found = std::strerror(errno),
                   .where = path,
                   .fix = "check the permissions of the folder and the free space of its disk"});
  });
}

void SampleLog::end_step(std::int64_t step) {
  Json rows = Json::array();
  for (const std::string& of_rank : channel_.all_gather_bytes(Json(own_).dump())) {
    if (file_.is_open()) rows.push_back(Json::parse(of_rank));
  }
  own_.clear();
  if (!file_.is_open()) return;
  file_ << Json{{"step", step}, {"rows", std::move(rows)}}.dump() << std::endl;
  if (!file_ && !told_) log::warn("samples.jsonl cannot be written: lines of it are missing");
  told_ = told_ || !file_;
  file_.clear();
}

Wishes wishes_of_all(comm::Channel& channel, const Wishes& own) {
  Wishes all;
  const int bits = (own.save ? 1 : 0) + (own.stop ? 2 : 0) + (own.settle ? 4 : 0) + (own.data ? 8 : 0);
  for (const std::int64_t of_rank : channel.all_gather_int(bits)) {
    all.save |= (of_rank & 1) != 0;
    all.stop |= (of_rank & 2) != 0;
    all.settle |= (of_rank & 4) != 0;
    all.data |= (of_rank & 8) != 0;
  }
  return all;
}

void TrainSteps::stand_at_checkpoint() {
  const checkpoint::Checkpoint& from = *parts_.checkpoint;
  run_.step = from.step();
  run_.samples_seen = json_int(from.state(), "samples_seen", 0, 0, INT64_C(1) << 60, from.path());
}

bool TrainSteps::plans_save(std::int64_t step) const {
  return step == run_.total_steps || memory_.takes(step) || saves_.plans(step);
}

void TrainSteps::start() {
  const config::Batch& batch = parts_.batch;
  run_.job.together([&] {
    parts_.feed->start({.micro = batch.micro,
                        .accumulation = batch.passes,
                        .rank = run_.job.rank(),
                        .world = run_.job.size()});
  });
  samples_.reset();
  if (run_.config.log_samples)
    samples_ = std::make_unique<SampleLog>(run_.job, run_.config.output_dir, run_.step);
  loop_ = std::make_unique<StepLoop>(*parts_.engine, *parts_.schedule, batch.passes, run_.step);
  guard_.loaded(plans_save(run_.step + 1));
  report_.restart();
}

void TrainSteps::take() {
  run_.begins("a step");
  const auto start = Clock::now();
  StepOutcome outcome;
  report_.begin();
  parts_.engine->store().limit_steps(guard_.limits_of_update());
  StepWatch watch([this] { return parts_.engine->instance().seconds_busy(); }, parts_.engine->compute());
  std::vector<runtime::HostBatch> ahead = guard_.batches_ahead(&outcome.data_seconds);
  std::size_t given = 0;
  const auto next = [&](bool first) {
    runtime::HostBatch batch =
        given < ahead.size() ? std::move(ahead[given++]) : next_batch(parts_, first, &outcome.data_seconds);
    if (samples_) samples_->add(batch);
    return batch;
  };
  outcome.result = loop_->take(next, guard_.check_of_update());
  if (guard_.wants_back()) return;
  run_.step = loop_->done();
  guard_.updated(plans_save(run_.step + 1));
  run_.samples_seen += parts_.feed->step().samples;
  if (samples_) samples_->end_step(run_.step);
  outcome.seconds = seconds_since(start);
  saves_.stepped(outcome.seconds);
  memory_.stepped(outcome.seconds);
  outcome.messages = watch.take();
  outcome.spike = guard_.look(outcome.result);
  log::end_start();
  report_.report(outcome);
  parts_.engine->instance().check_gemms();
  guard_.judge(outcome.result, outcome.spike);
}

}  // namespace octet::train
