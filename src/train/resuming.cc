// Resumes from a checkpoint: selects it, verifies its data, and logs differences.
#include <utility>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/runtime/same_model.h"
#include "run.h"
#include "start.h"

namespace octet::train {

void Run::open_checkpoint(const std::string& path) {
  std::optional<checkpoint::Checkpoint> opened;
  job_.together([&] { opened.emplace(path); });
  open_checkpoint(std::move(*opened));
}

void Run::open_checkpoint(checkpoint::Checkpoint&& checkpoint) {
  checkpoint_ = std::move(checkpoint);
  job_.together([&] {
    runtime::require_same_model(*checkpoint_, architecture_, &encoder_->tokenizer(),
                                config_.model_name_or_path);
    if (config::leaves_storage_open(config_)) open_storage_ = config_;
    if (!open_storage_) return;
    const config::Config stored = config::with_storage_of(saved_config(*checkpoint_), *open_storage_);
    resolved_.config.param_dtype = stored.param_dtype;
    resolved_.config.grad_dtype = stored.grad_dtype;
    resolved_.config.optim_dtype = stored.optim_dtype;
  });
}

std::string Run::read_checkpoint() {
  // Frozen weights are not in the checkpoint.
  if (engine_->options().architecture.tuning.freezes()) begin_weights();
  std::string mine;
  try {
    restore(*engine_, *checkpoint_);
    require_finite_checkpoint();
    return "";
  } catch (const Error& e) {
    const bool damaged = e.problem().agreed && e.code() == ExitCode::no_valid_checkpoint;
    if (!damaged || (names_checkpoint(config_) && checkpoint_->memory() == nullptr)) throw;
    if (!e.problem().what.empty()) mine = e.what();
  }
  std::string wrong;
  for (const std::string& of_rank : job_.all_gather_bytes(mine)) {
    if (wrong.empty()) wrong = of_rank;
  }
  return wrong;
}

void Run::fall_back(const std::string& why) {
  if (session_.prints())
    log::warn("skipping an invalid checkpoint: " + checkpoint_->path() + "\n" + why,
              log::Importance::training);
  const std::int64_t step = checkpoint_->step();
  engine_.reset();  // it is partly filled from the damaged checkpoint
  const bool in_memory = checkpoint_->memory() != nullptr;
  const auto older =
      in_memory ? find_start(job_, config_) : find_start(job_, config_, Damaged{.step = step, .why = why});
  check(older.has_value() || in_memory,
        "an older checkpoint is found, or an error reports that there is none");
  checkpoint_.reset();
  disk_start_ = {};
  from_ = older ? "disk" : "";
  if (older) open_checkpoint(*older);
  feed_ = feed::make_feed(session_, config_, batch_, *encoder_, corpus_);
  if (checkpoint_)
    job_.together([&] { feed_->go_on(checkpoint_->step(), checkpoint_->state(), checkpoint_->path()); });
  job_.together([&] { prepare_schedule(); });
}

void Run::tell_batch() const {
  const Json& state = checkpoint_->state();
  const std::int64_t before =
      json_int(state, "global_batch", batch_.global, 1, INT64_C(1) << 40, checkpoint_->path());
  const std::int64_t steps =
      json_int(state, "total_steps", total_steps_, 0, INT64_C(1) << 60, checkpoint_->path());
  if (before == batch_.global) return;
  log::warn("a step trains " + with_commas(batch_.global) + " samples from here on, instead of " +
                with_commas(before) +
                ": the run continues at the same place in the data and ends after step " +
                with_commas(total_steps_) +
                (steps == total_steps_ ? ""
                                       : " instead of " + with_commas(steps) +
                                             ", which stretches or "
                                             "shortens the schedule of the learning rate") +
                "; set global_batch_size to keep the number of samples with any number of ranks",
            log::Importance::training);
}

}  // namespace octet::train
