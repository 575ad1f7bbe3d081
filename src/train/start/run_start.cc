#include "start/run_start.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "faults/finite_weights.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/model_file.h"
#include "octet/base/strings.h"
#include "octet/config/derive.h"
#include "octet/runtime/model_folder.h"
#include "octet/runtime/routers.h"
#include "octet/runtime/same_model.h"
#include "octet/setup/model_options.h"
#include "octet/setup/run_options.h"
#include "octet/setup/setup.h"
#include "octet/text/template_match.h"
#include "octet/train/run_exports.h"
#include "start.h"

namespace octet::train {

void RunStart::read_model() {
  run_.job.together([&] {
    parts_.architecture = setup::model_of_stage(
        run_.config, runtime::read_model(run_.config.model_name_or_path), run_.config.model_name_or_path);
    notes_.warn_of_doubts();
    parts_.fresh = run_.config.train_from_scratch;
    if (!parts_.fresh) runtime::require_weights(run_.config.model_name_or_path);
    // Read for the final model; a broken file is refused at the start.
    (void)read_model_file(run_.config.model_name_or_path, "generation_config.json");
    parts_.adapters = adapter_state(run_.config, run_.config.seed, parts_.architecture);
    parts_.model_config = runtime::config_state(run_.config.model_name_or_path);
    // Models that cannot be built are refused before data are read, on one rank.
    setup::instance_options(run_.config, parts_.architecture, 1, 1, 1);
    parts_.encoder = std::make_unique<data::TemplateEncoder>(
        setup::encoder_options(run_.config, run_.config.model_name_or_path));
    if (run_.prints() && run_.config.template_name && text::is_template_file(*run_.config.template_name)) {
      log::debug(text::told_of_file(*run_.config.template_name, *parts_.encoder->chat_template(),
                                    parts_.encoder->tokenizer()));
    } else if (run_.prints() && !run_.config.template_name && parts_.encoder->chat_template()) {
      log::debug("template: " + parts_.encoder->chat_template()->name() +
                 " (it writes the same text as the model's own chat template" +
                 text::told_of_trims(*parts_.encoder->chat_template()) + ")");
    }
    runtime::require_fit(parts_.encoder->tokenizer(), parts_.architecture, run_.config.model_name_or_path);
    if (!run_.config.auto_find_batch_size) parts_.batch = config::resolve_batch(run_.config, run_.job.size());
  });
}

void RunStart::open_checkpoint() {
  std::optional<memory_tier::MemoryFound> found;
  if (parts_.memory) found = parts_.memory->find();
  std::optional<std::string> disk;
  try {
    disk = find_start(run_.job, run_.config);
  } catch (const Error& e) {
    // A valid checkpoint in memory replaces damaged checkpoints on disk.
    if (!found || !e.problem().agreed || e.code() != ExitCode::no_valid_checkpoint) throw;
    if (run_.prints() && !e.problem().what.empty()) log::warn(e.what());
  }
  if (found && disk) {
    std::int64_t step = 0;
    run_.job.together([&] { step = checkpoint::Checkpoint(*disk).step(); });
    if (step > found->checkpoint.step()) found.reset();
    on_disk_ = {.step = step, .path = *disk};
  }
  if (found) {
    from_ = found->other_host ? "other host's memory" : "memory";
    open(std::move(found->checkpoint));
  } else if (disk) {
    from_ = "disk";
    open(*disk);
  }
}

void RunStart::open(const std::string& path) {
  std::optional<checkpoint::Checkpoint> opened;
  run_.job.together([&] { opened.emplace(path); });
  open(std::move(*opened));
}

void RunStart::open(checkpoint::Checkpoint&& checkpoint) {
  parts_.checkpoint = std::move(checkpoint);
  run_.job.together([&] {
    runtime::require_same_model(*parts_.checkpoint, parts_.architecture, &parts_.encoder->tokenizer(),
                                run_.config.model_name_or_path);
    sizing_.adopt_storage(*parts_.checkpoint);
  });
}

void RunStart::read_data() {
  parts_.corpus = feed::build_corpus(run_.session, run_.config, *parts_.encoder);
  read_teacher();
  if (!run_.config.moe_routing_file) return;
  run_.job.together([&] {
    parts_.routing = std::make_unique<feed::RoutingFile>(*run_.config.moe_routing_file,
                                                         runtime::routers_of(parts_.architecture));
    parts_.routing->require(parts_.corpus.training);
  });
}

void RunStart::read_teacher() {
  if (!run_.config.teacher_logprobs) return;
  run_.job.together([&] {
    parts_.teacher = std::make_unique<feed::TeacherFile>(
        *run_.config.teacher_logprobs,
        feed::TeacherUse{.vocabulary = parts_.architecture.vocabulary, .ranks = run_.config.kd_topk});
    parts_.teacher->require(parts_.corpus.training);
    parts_.teacher->require(parts_.corpus.evaluation);
    // Training adds tokens of the template to the file of a finished model, so another file is no error.
    const std::string file = run_.config.model_name_or_path + "/tokenizer.json";
    const std::string of_teacher = parts_.teacher->tokenizer();
    if (!run_.prints() || of_teacher.empty() || !path_exists(file)) return;
    if (hash128_hex(read_file(file)) != of_teacher)
      log::info(
          "teacher_logprobs: tokenizer.json of the teacher is another file than that of the model; the "
          "tokens of all rows are equal");
  });
}

void RunStart::continue_data() {
  if (!parts_.checkpoint) return;
  const checkpoint::Checkpoint& from = *parts_.checkpoint;
  run_.job.together([&] { parts_.feed->go_on(from.step(), from.state(), from.path()); });
}

void RunStart::set_schedule() {
  run_.total_steps = config::total_steps(run_.config, parts_.feed->steps_per_epoch());
  if (run_.config.max_steps <= 0) run_.total_steps = parts_.feed->steps_until_end_of(run_.total_steps);
  parts_.schedule = std::make_unique<optim::Schedule>(setup::schedule_options(run_.config, run_.total_steps));
  evaluations_.take_over();
}

void RunStart::prepare_schedule() {
  run_.job.together([&] { set_schedule(); });
}

void RunStart::make_engine() {
  for (std::string wrong;; fall_back(wrong)) {
    const runtime::InstanceOptions options = sizing_.options();
    if (parts_.checkpoint) {
      run_.job.together([&] {
        require_same_adapters(*parts_.checkpoint, parts_.adapters, run_.config.model_name_or_path);
      });
    }
    // Checked before a rank of the host allocates.
    run_.job.together([&] { sizing_.require_room(options); });
    run_.job.together([&] { sizing_.build_engine(options); });
    if (!parts_.checkpoint) break;
    wrong = read_checkpoint();
    if (!wrong.empty()) continue;
    parts_.checkpoint->close_memory();
    break;
  }
}

void RunStart::begin_weights() {
  if (parts_.fresh) {
    parts_.engine->initialise(static_cast<std::uint64_t>(run_.config.seed));
  } else {
    parts_.engine->load_weights(run_.config.model_name_or_path);
  }
}

std::string RunStart::read_checkpoint() {
  // Frozen weights are not in the checkpoint.
  if (parts_.engine->options().architecture.tuning.freezes()) begin_weights();
  std::string mine;
  try {
    restore(*parts_.engine, *parts_.checkpoint);
    require_finite_checkpoint(run_, parts_);
    return "";
  } catch (const Error& e) {
    const bool damaged = e.problem().agreed && e.code() == ExitCode::no_valid_checkpoint;
    if (!damaged || (names_checkpoint(run_.config) && parts_.checkpoint->memory() == nullptr)) throw;
    if (!e.problem().what.empty()) mine = e.what();
  }
  std::string wrong;
  for (const std::string& of_rank : run_.job.all_gather_bytes(mine)) {
    if (wrong.empty()) wrong = of_rank;
  }
  return wrong;
}

void RunStart::fall_back(const std::string& why) {
  if (run_.prints())
    log::warn("skipping an invalid checkpoint: " + parts_.checkpoint->path() + "\n" + why,
              log::Importance::training);
  const std::int64_t step = parts_.checkpoint->step();
  parts_.engine.reset();  // it is partly filled from the damaged checkpoint
  const bool in_memory = parts_.checkpoint->memory() != nullptr;
  const auto older = in_memory ? find_start(run_.job, run_.config)
                               : find_start(run_.job, run_.config, Damaged{.step = step, .why = why});
  check(older.has_value() || in_memory,
        "an older checkpoint is found, or an error reports that there is none");
  parts_.checkpoint.reset();
  on_disk_ = {};
  from_ = older ? "disk" : "";
  if (older) open(*older);
  sizing_.make_feed();
  continue_data();
  prepare_schedule();
}

void RunStart::say_differences() const {
  report_differences(*parts_.checkpoint, run_.config);
  const std::string fingerprint = json_string(parts_.checkpoint->state(), "data_fingerprint",
                                              parts_.corpus.fingerprint, parts_.checkpoint->path());
  if (fingerprint != parts_.feed->fingerprint()) {
    log::warn(
        "the training data differ from the data of the checkpoint: the run continues at the same place "
        "in the new data",
        log::Importance::training);
  }
  const std::string changed =
      runtime::config_changes(parts_.checkpoint->state().value("model_config", Json()), parts_.model_config);
  if (!changed.empty()) {
    log::warn("since the checkpoint was written, files of " + run_.config.model_name_or_path +
                  " changed: " + changed + "; the run continues with the new values",
              log::Importance::training);
  }
  const std::string words =
      json_string(parts_.checkpoint->state(), "template_words", "", parts_.checkpoint->path());
  const auto& chat = parts_.encoder->chat_template();
  if (!words.empty() && chat && chat->words_hash() != words)
    log::warn(
        "the template file changed after the checkpoint was written: the run continues with the new "
        "template",
        log::Importance::training);
  say_batch();
}

void RunStart::say_batch() const {
  const Json& state = parts_.checkpoint->state();
  const std::int64_t before =
      json_int(state, "global_batch", parts_.batch.global, 1, INT64_C(1) << 40, parts_.checkpoint->path());
  const std::int64_t steps =
      json_int(state, "total_steps", run_.total_steps, 0, INT64_C(1) << 60, parts_.checkpoint->path());
  if (before == parts_.batch.global) return;
  log::warn("a step trains " + with_commas(parts_.batch.global) + " samples from here on, instead of " +
                with_commas(before) +
                ": the run continues at the same place in the data and ends after step " +
                with_commas(run_.total_steps) +
                (steps == run_.total_steps ? ""
                                           : " instead of " + with_commas(steps) +
                                                 ", which stretches or "
                                                 "shortens the schedule of the learning rate") +
                "; set global_batch_size to keep the number of samples with any number of ranks",
            log::Importance::training);
}

void RunStart::read_again(const std::string& path) {
  run_.job.together([&] { parts_.checkpoint.emplace(path); });
  const std::string wrong = read_checkpoint();
  run_.job.together([&] {
    if (wrong.empty() || !run_.prints()) return;
    throw Error({.what = "the checkpoint to return to is damaged",
                 .found = wrong,
                 .where = path,
                 .fix = "start again: the run uses the previous checkpoint",
                 .code = ExitCode::hang});
  });
}

void RunStart::restart_data(const Json* place) {
  const checkpoint::Checkpoint& from = *parts_.checkpoint;
  Json state = from.state();
  if (place != nullptr) state["place"] = *place;
  sizing_.make_feed();
  run_.job.together([&] {
    parts_.feed->go_on(run_.step, state, from.path());
    set_schedule();
  });
}

}  // namespace octet::train
