// Prepares a run before its first step.
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "logs/gemm_rate.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/log_rows.h"
#include "octet/base/log_start.h"
#include "octet/base/model_file.h"
#include "octet/base/strings.h"
#include "octet/config/derive.h"
#include "octet/device/device.h"
#include "octet/device/out_of_memory.h"
#include "octet/model/build.h"
#include "octet/runtime/config_changes.h"
#include "octet/runtime/model_folder.h"
#include "octet/runtime/same_model.h"
#include "octet/setup/data_options.h"
#include "octet/setup/model_options.h"
#include "octet/setup/run_options.h"
#include "octet/setup/setup.h"
#include "octet/text/template_match.h"
#include "octet/train/adapter_folder.h"
#include "octet/train/fit.h"
#include "octet/train/ladder.h"
#include "octet/train/rehearsal.h"
#include "octet/train/sft_play_lines.h"
#include "octet/train/start_rows.h"
#include "run.h"
#include "start.h"

namespace octet::train {
namespace {

std::size_t free_host_memory() {
  return make_cpu_device()->memory().free;
}

/// Returns the lines for a configuration with SFT-Play keys. Collective.
std::vector<std::string> lines_of_sft_play(runtime::Session& session, const config::Config& config,
                                           const config::Batch& batch) {
  SftPlayStart start{
      .gpus = {},
      .batch = batch,
      .automatic = config.auto_find_batch_size || config.gradient_accumulation_steps == config::kAutomatic};
  const Device& device = session.device();
  if (device.traits().counts_as_gpu) {
    // "GPU 0: NVIDIA H200 (139.8 GiB)"
    const std::string text = device.description();
    const std::size_t begin = text.find(": ") + 2, end = text.rfind(" (");
    const auto bytes = static_cast<std::int64_t>(device.memory().total);
    const std::vector<std::int64_t> all_bytes = session.job().all_gather_int(bytes);
    for (const std::string& name : session.job().all_gather_bytes(text.substr(begin, end - begin)))
      start.gpus.push_back({.name = name, .bytes = static_cast<std::uint64_t>(all_bytes[start.gpus.size()])});
  }
  return sft_play_lines(start);
}

}  // namespace

void Run::prepare_model() {
  job_.together([&] {
    architecture_ = runtime::read_model(config_.model_name_or_path);
    say_doubts();
    fresh_ = config_.train_from_scratch;
    if (!fresh_) runtime::require_weights(config_.model_name_or_path);
    // Read for the final model; a broken file is refused at the start.
    (void)read_model_file(config_.model_name_or_path, "generation_config.json");
    adapters_ = adapter_state(config_, architecture_);
    model_config_ = runtime::config_state(config_.model_name_or_path);
    // Models that cannot be built are refused before data are read, on one rank.
    setup::instance_options(config_, architecture_, 1, 1, 1);
    encoder_ = std::make_unique<data::TemplateEncoder>(setup::encoder_options(config_));
    if (session_.prints() && config_.template_name && text::is_template_file(*config_.template_name)) {
      log::debug(
          text::told_of_file(*config_.template_name, *encoder_->chat_template(), encoder_->tokenizer()));
    } else if (session_.prints() && !config_.template_name && encoder_->chat_template()) {
      log::debug("template: " + encoder_->chat_template()->name() +
                 " (it writes the same text as the model's own chat template" +
                 text::told_of_trims(*encoder_->chat_template()) + ")");
    }
    runtime::require_fit(encoder_->tokenizer(), architecture_, config_.model_name_or_path);
    if (!config_.auto_find_batch_size) batch_ = config::resolve_batch(config_, job_.size());
  });
}

void Run::prepare_data() {
  corpus_ = feed::build_corpus(session_, config_, *encoder_);
  if (!config_.auto_find_batch_size) batch_ = batch_of(config_, job_.size());
  if (config_.auto_find_batch_size) {
    const config::Batch one{.world = job_.size(), .global = job_.size()};
    choose_sizes(feed::make_feed(session_, config_, one, *encoder_, corpus_)->shape());
  }
  feed_ = feed::make_feed(session_, config_, batch_, *encoder_, corpus_);
  batch_ = within_epoch(batch_);
  if (!config_.auto_find_batch_size) choose_sizes(sample_shape());
  if (!checkpoint_) return;
  job_.together([&] { feed_->go_on(checkpoint_->step(), checkpoint_->state(), checkpoint_->path()); });
}

config::Batch Run::batch_of(const config::Config& config, int world) const {
  return within_epoch(config::resolve_batch(config, world));
}

config::Batch Run::within_epoch(const config::Batch& batch) const {
  std::optional<std::int64_t> items;
  if (!config_.streaming) items = corpus_.training_items.size();
  if (feed_) items = feed_->items_of_epoch();
  return items ? config::within_epoch(batch, *items) : batch;
}

void Run::say_batch() const {
  if (!session_.prints() || batch_.passes == batch_.accumulation) return;
  log::warn("a step has " + with_commas(batch_.global) + " samples, but an epoch has only " +
                with_commas(*feed_->items_of_epoch()) + ": each step trains one epoch, in " +
                with_commas(batch_.passes) + (batch_.passes == 1 ? " micro-batch" : " micro-batches") +
                " per rank. Lower gradient_accumulation_steps or global_batch_size for more steps",
            log::Importance::training);
}

void Run::prepare_schedule() {
  total_steps_ = config::total_steps(config_, feed_->steps_per_epoch());
  if (config_.max_steps <= 0) total_steps_ = feed_->steps_until_end_of(total_steps_);
  schedule_ = std::make_unique<optim::Schedule>(setup::schedule_options(config_, total_steps_));
  take_over_plateau();
}

runtime::InstanceOptions Run::engine_of(const config::Config& config, const plan::Choice& choice,
                                        const feed::Feed::Shape& sample, int world) const {
  const std::int64_t eval_batch = config::evaluation_batch(config, choice.micro);
  // Sequences are truncated to a shorter cutoff_len.
  const auto within = [&](std::int64_t tokens) {
    return config.cutoff_len < config_.cutoff_len ? std::min(tokens, config.cutoff_len) : tokens;
  };
  const std::int64_t eval_longest = within(corpus_.evaluation_items.longest(corpus_.evaluation));
  const std::int64_t context = within(feed::longest_context(corpus_.evaluation, corpus_.evaluation_items));
  runtime::InstanceOptions options = setup::instance_options(
      config, architecture_, std::max(choice.micro * sample.tokens, eval_batch * eval_longest),
      std::max(sample.longest, context),
      std::max(choice.micro * sample.documents, eval_batch * corpus_.evaluation_items.most_documents()));
  config::Config chosen = config;
  chosen.per_device_train_batch_size = choice.micro;
  options.max_micro_batches = static_cast<int>(batch_of(chosen, world).passes);
  options.snapshot = setup::saves_beside(config);
  options.memory_checkpoints = memory_ != nullptr;
  return with_level(std::move(options), choice.level);
}

runtime::InstanceOptions Run::engine_for(const plan::Choice& choice, const feed::Feed::Shape& sample) const {
  return engine_of(config_, choice, sample, job_.size());
}

feed::Feed::Shape Run::sample_shape() const {
  const feed::Feed::Shape all = feed_->shape();
  return {
      .tokens = all.tokens / batch_.micro, .longest = all.longest, .documents = all.documents / batch_.micro};
}

void Run::choose_sizes(const feed::Feed::Shape& sample) {
  const DeviceKind kind = session_.device().stands_for();
  const std::vector<plan::Level> levels = setup::levels_of(config_, kind);
  level_ = levels.front();
  const bool asked = config_.auto_find_batch_size || setup::leaves_recompute_open(config_);
  if (!asked && levels.size() == 1 && !config::leaves_storage_open(config_) &&
      config::says_recompute(config_))
    return;
  const std::size_t limit = memory_limit(job_, session_.device());
  job_.together([&] {
    Candidates candidates{.build = [&](const plan::Choice& choice) { return engine_for(choice, sample); },
                          .micros = {batch_.micro},
                          .levels = levels,
                          .length = sample.longest,
                          .must_fit = asked,
                          .advice = [&](std::size_t bytes) { return memory_advice(sample, bytes); }};
    if (config_.auto_find_batch_size) {
      candidates.micros = buildable(config::possible_micro_batches(config_, job_.size()), sample.tokens);
    }
    choose_memory(candidates, limit);
    if (!asked && candidates.levels.size() == 1) return;
    const plan::Choice choice = choose(candidates, job_.place(), kind, limit);
    level_ = choice.level;
    config::Config chosen = config_;
    chosen.per_device_train_batch_size = choice.micro;
    batch_ = batch_of(chosen, job_.size());
    const bool recomputes = level_.recompute != levels.front().recompute;
    if (session_.prints() && (asked || recomputes || level_.transposes_at_use)) {
      log::debug("chosen to fit the memory of the device: per_device_train_batch_size=" +
                 std::to_string(choice.micro) + " " + plan::keys_of(level_));
    }
  });
}

void Run::say_fp8() const {
  if (!config_.fp8) return;
  const std::string& name = config_.fp8_backend;
  const bool own = name == "auto" || name == "native";
  log::debug("FP8 backend: " + (own ? std::string("native") : name) + " (this program's own FP8 core" +
             (own ? "" : " instead") + "), recipe " + config_.fp8_recipe + ", format " + config_.fp8_format);
  log::debug(engine_->audit().table());
  if (!session_.device().traits().has_known_rates) return;
  plan::Work work = work_of(engine_->options(), {}, config_.cutoff_len, batch_.passes);
  work.tokens = feed_->shape().tokens;  // evaluations may need more
  const std::string warning = plan::fp8_warning(work);
  if (!warning.empty()) log::warn(warning);
}

void Run::begin_weights() {
  if (fresh_) {
    engine_->initialise(static_cast<std::uint64_t>(config_.seed));
  } else {
    engine_->load_weights(config_.model_name_or_path);
  }
}

void Run::stand_at_checkpoint() {
  step_ = checkpoint_->step();
  const std::string& where = checkpoint_->path();
  const bool on_disk = checkpoint_->memory() == nullptr;
  last_checkpoint_ = on_disk ? where : disk_start_.path;
  saved_step_ = on_disk || disk_start_.step == step_ ? step_ : -1;
  samples_seen_ = json_int(checkpoint_->state(), "samples_seen", 0, 0, INT64_C(1) << 60, where);
  // Restored, so that repeated restarts also reach the limit.
  not_finite_ = static_cast<int>(
      json_int(checkpoint_->state(), "not_finite_in_a_row", 0, 0, kMostNotFinite - 1, where));
  if (spikes_) take_over_checks();
}

// Returns suggested changes and the memory of a rank after them, with these samples or shorter ones.
std::string Run::memory_advice(const feed::Feed::Shape& sample, std::size_t limit) const {
  const auto build = [&](const config::Config& config, const plan::Choice& choice, int world) {
    feed::Feed::Shape shorter = sample;
    shorter.tokens = std::min(sample.tokens, config.cutoff_len);
    shorter.longest = std::min(sample.longest, config.cutoff_len);
    return engine_of(config, choice, shorter, world);
  };
  return ladder_advice(ladder(config_, architecture_,
                              {.place = job_.place(),
                               .kind = session_.device().stands_for(),
                               .limit = limit,
                               .host = free_host_memory(),
                               .outside = {},
                               .build = build}),
                       limit);
}

void Run::look_at_host_room(const runtime::InstanceOptions& options) const {
  if (!config_.optim_state_cpu_offload) return;
  const plan::Memory memory = plan_memory(options, job_.place(), session_.device().stands_for());
  require_host_room(memory, job_.place(), free_host_memory());
}

void Run::build_engine(const runtime::InstanceOptions& options) {
  // While an exception is active, a GPU does not free earlier reservations.
  const std::size_t before = session_.device().memory().free;
  try {
    engine_ = std::make_unique<Engine>(session_.device(), job_, session_.data(), options);
  } catch (const Error& e) {
    if (!is_out_of_memory(e)) throw;
    Problem problem = e.problem();
    const Device& device = session_.device();
    // Fewer bytes than the failed request, even if the device reports more.
    const std::size_t asked = plan_memory(options, job_.place(), device.stands_for()).bytes;
    const std::size_t libraries = plan::library_bytes(device.kind());
    const std::size_t free =
        (before - std::min(before, libraries)) / ranks_sharing_memory(device, job_.place());
    problem.fix = memory_advice(sample_shape(), std::min(free, asked - 1));
    throw Error(std::move(problem));
  }
}

void Run::choose_where_to_save() {
  if (!setup::leaves_saves_open(config_)) return;
  told_that_it_waits_ = true;  // no warning: the user did not ask for concurrent saves
  // A single save at the end needs no reservation.
  if (!setup::saves_before_the_end(resolved_, total_steps_, feed_->steps_per_epoch())) {
    resolved_.config.save_async = "false";
    return;
  }
  const std::size_t limit = memory_limit(job_, session_.device());
  const std::size_t host_free = free_host_memory();
  bool room = false;
  job_.together([&] {
    resolved_.config.save_async = "false";
    room = has_room_for_copy(engine_for({batch_.micro, level_}, sample_shape()), job_.place(),
                             session_.device().stands_for(), limit, host_free);
  });
  // Hosts may have different memory and numbers of ranks.
  room = job_.all_min(room ? 1 : 0) != 0;
  if (room) {
    resolved_.config.save_async = "true";
  } else if (session_.prints()) {
    log::debug(
        "training pauses during saves, since host memory has no room for a copy of the state (save_async: "
        "auto)");
  }
}

void Run::prepare_engine() {
  choose_where_to_save();
  for (std::string wrong;; fall_back(wrong)) {
    const runtime::InstanceOptions options = engine_for({batch_.micro, level_}, sample_shape());
    if (checkpoint_)
      job_.together([&] { require_same_adapters(*checkpoint_, adapters_, config_.model_name_or_path); });
    // Checked before a rank of the host allocates.
    job_.together([&] {
      look_at_host_room(options);
      require_room(options, job_.place(), session_.device(),
                   [&](std::size_t limit) { return memory_advice(sample_shape(), limit); });
    });
    job_.together([&] { build_engine(options); });
    if (!checkpoint_) break;
    wrong = read_checkpoint();
    if (!wrong.empty()) continue;
    checkpoint_->close_memory();
    break;
  }
  if (checkpoint_) {
    say_storage_of_checkpoint();
    stand_at_checkpoint();
    if (session_.prints()) {
      report_differences(*checkpoint_, config_);
      const std::string fingerprint =
          json_string(checkpoint_->state(), "data_fingerprint", corpus_.fingerprint, checkpoint_->path());
      if (fingerprint != feed_->fingerprint()) {
        log::warn(
            "the training data differ from the data of the checkpoint: the run continues at the same place "
            "in the new data",
            log::Importance::training);
      }
      const std::string changed =
          runtime::config_changes(checkpoint_->state().value("model_config", Json()), model_config_);
      if (!changed.empty()) {
        log::warn("since the checkpoint was written, files of " + config_.model_name_or_path +
                      " changed: " + changed + "; the run continues with the new values",
                  log::Importance::training);
      }
      const std::string words = json_string(checkpoint_->state(), "template_words", "", checkpoint_->path());
      const auto& chat = encoder_->chat_template();
      if (!words.empty() && chat && chat->words_hash() != words)
        log::warn(
            "the template file changed after the checkpoint was written: the run continues with the new "
            "template",
            log::Importance::training);
      tell_batch();
    }
  } else {
    begin_weights();
    require_finite_base();
  }
  make_checks();
  require_memory_room();
  rehearse(job_, session_.device(), *engine_);
  if (!session_.device().traits().has_known_rates) {
    const model::Architecture& a = engine_->options().architecture;
    gemm_rate_ = gemm_rate(session_.device(), config::computes_in_bf16(config_) ? DType::bf16 : DType::f32,
                           {.rows = feed_->shape().tokens, .cols = a.intermediate, .inner = a.hidden});
  }
}

StartFacts Run::start_facts() const {
  const data::EncodingCounts& counts = feed_->shown().counts;
  StartFacts facts{
      .model = config_.model_name_or_path,
      .family = architecture_.model_type,
      .parameters = engine_->instance().parameter_count(),
      .trained = engine_->instance().trained_parameters(),
      .method = config_.finetuning_type,
      .fresh = fresh_,
      .rows = config_.streaming ? corpus_.rows->size() : counts.rows,
      .documents = counts.documents,
      .tokens = counts.tokens,
      .trained_tokens = counts.trained,
      .streams = config_.streaming,
      .sequences = config_.packing ? feed_->examples() : 0,
      .cutoff = config_.cutoff_len,
      .device = session_.device().description(),
      .on_gpu = session_.device().traits().counts_as_gpu,
      .hosts = session_.place().nodes,
      .precision = config::computes_in_bf16(config_) ? "bf16" : "fp32",
      .parameters_in = config_.param_dtype,
      .gradients_in = config_.grad_dtype,
      .moments_in = config_.optim_dtype,
      .zero_stage = config_.zero_stage,
      .memory = engine_->arena().bytes(),
      .capacity = session_.device().memory().total,
      .batch = batch_,
      .steps = total_steps_,
      .first_step = step_,
      .epochs = feed_->epochs(total_steps_),
      .least_seconds = 0,
      .output = config_.output_dir,
      .resumed_from = checkpoint_ ? checkpoint_->path().substr(0, checkpoint_->path().find(", step ")) : "",
      .sft_play = resolved_.dialect == "SFT-Play"};
  if (config_.fp8) {
    const bool own = config_.fp8_backend == "auto" || config_.fp8_backend == "native";
    facts.precision = "FP8, backend " + (own ? std::string("native") : config_.fp8_backend) + ", recipe " +
                      config_.fp8_recipe + ", format " + config_.fp8_format;
  }
  if (facts.on_gpu) {
    plan::Work work = work_of(engine_->options(), {}, config_.cutoff_len, batch_.passes);
    work.tokens = feed_->shape().tokens;
    facts.least_seconds = plan::time_of(work).seconds;
    facts.rates_of = plan::Rates().card;
  } else if (gemm_rate_ > 0 && !config_.streaming) {
    const auto examples = static_cast<double>(std::max<std::int64_t>(1, feed_->examples()));
    const double tokens = static_cast<double>(counts.tokens) / examples * static_cast<double>(batch_.global);
    facts.least_seconds = tokens / static_cast<double>(batch_.world) *
                          model::flops_per_token(engine_->options().architecture, feed_->mean_context()) /
                          gemm_rate_;
    facts.rates_of = "this CPU";
  }
  return facts;
}

void Run::say_notes() const {
  for (const std::string& note : config::notes_of(resolved_, job_.size(), session_.place().nodes))
    log::info(note);
}

// Prints the tables after the messages that fit on the screen with them.
void Run::say_tables(const std::vector<std::string>& start_lines) const {
  int rows = reporter_->start_rows();
  for (const std::string& line : start_lines) rows += log::rows_of(line);
  log::begin_table(rows);
  for (const std::string& line : start_lines) log::info(line);
  reporter_->start();
}

void Run::start_reporter() {
  report::RunFacts facts;
  facts.output_dir = config_.output_dir;
  facts.run_name = config_.run_name.value_or(std::filesystem::path(config_.output_dir).filename().string());
  facts.logging_dir = config_.logging_dir.value_or("");
  facts.tensorboard = config_.tensorboard();
  facts.plot = config_.plot_loss;
  facts.examples = feed_->examples();
  facts.epochs = feed_->epochs(total_steps_);
  facts.total_steps = total_steps_;
  facts.first_step = step_;
  facts.micro_batch = batch_.micro;
  facts.accumulation = batch_.accumulation;
  facts.world = batch_.world;
  facts.all_parameters = engine_->instance().parameter_count();
  facts.trainable_parameters = engine_->instance().trained_parameters();
  facts.logging_steps = config::interval_steps(config_.logging_steps, total_steps_);
  facts.logging_first_step = config_.logging_first_step;
  facts.save_steps = config::interval_steps(config_.save_steps, total_steps_);
  facts.eval_steps = config::interval_steps(config_.eval_steps.value_or(config_.logging_steps), total_steps_);
  facts.flops_per_token = model::flops_per_token(engine_->options().architecture, feed_->mean_context());
  if (!session_.device().traits().has_known_rates) facts.peak_flops = 0;
  facts.gpu_hour_price = config_.gpu_hour_price.value_or(0);
  facts.setup_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  facts.resumed_from = from_;
  facts.about = start_rows(start_facts());
  facts.lines_of_hugging_face = resolved_.dialect != "SFT-Play";
  if (checkpoint_) facts.resumed = checkpoint_->state().value("trainer_state", Json());
  facts.base_model = config_.model_name_or_path;
  facts.datasets = corpus_.names;
  const auto row = [&facts](const char* name, const std::string& value) {
    facts.hyperparameters.emplace_back(name, value);
  };
  row("learning_rate", Json(config_.learning_rate).dump());
  row("lr_scheduler_type", config_.lr_scheduler_type);
  row("total_train_batch_size", std::to_string(batch_.global));
  row("seed", std::to_string(config_.seed));
  reporter_ = std::make_unique<report::Reporter>(std::move(facts));
  log::open_file(training_log());
  write_file_atomically(config_.output_dir + "/config.resolved.yaml", resolved_.to_yaml());
}

void Run::say_state_of_host() const {
  const std::size_t state = plan::memory_of(engine_->arena()).state_of_host();
  if (state == 0) return;
  const auto text = [](std::size_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  const auto ranks = static_cast<std::size_t>(std::max(1, job_.place().local_size));
  log::debug("the optimizer's state is stored in host memory (optim_state_cpu_offload): " + text(state) +
             " per rank" +
             (ranks > 1
                  ? ", " + text(ranks * state) + " for the " + std::to_string(ranks) + " ranks of this host"
                  : "") +
             "; each update reads and writes it over the link of the GPU");
}

void Run::prepare() {
  if (session_.prints()) {
    log::debug("device: " + session_.device().description() + ", " + std::to_string(job_.size()) + " rank" +
               (job_.size() > 1 ? "s on " + std::to_string(session_.place().nodes) + " node" +
                                      (session_.place().nodes > 1 ? "s" : "")
                                : ""));
  }
  job_.watch(setup::watch_options(config_));
  begins_once("the start of the run");
  saves_ = job_.channel("checkpoint");
  job_.together([&] {
    if (!session_.prints()) return;
    folder_ = std::make_unique<OutputFolder>(config_.output_dir, config_.model_name_or_path);
    if (config_.save_fallback_dir) require_fallback(*config_.save_fallback_dir);
  });
  if (!session_.prints()) log::open_file_for_errors(training_log());
  prepare_model();
  make_memory();
  open_start();
  // Tokenizing long texts can take hours.
  begins_once("the reading of the data", 8);
  prepare_data();
  begins_once("the loading of model and checkpoint");
  job_.together([&] { prepare_schedule(); });
  prepare_engine();
  job_.together([&] { require_disk(); });
  std::vector<std::string> start_lines;
  if (resolved_.dialect == "SFT-Play") start_lines = lines_of_sft_play(session_, config_, batch_);
  job_.together([&] {
    if (!session_.prints()) return;
    if (!checkpoint_ && config_.overwrite_output_dir) folder_->set_checkpoints_aside(fallback());
    start_reporter();
    say_storage_asked();
    say_notes();
    if (checkpoint_) {
      log::debug("Training is resumed from " + checkpoint_->path() +
                 "; change `output_dir` or use `overwrite_output_dir` to avoid");
    }
    const std::string step = config::automatic_step_text(config_, batch_);
    if (!step.empty()) log::debug(step);
    say_batch();
    log::debug(feed::show_example(feed_->shown(), *encoder_, false));
    say_fp8();
    std::string memory = "memory per rank: " + human_bytes(static_cast<double>(engine_->arena().bytes()));
    for (const runtime::MemoryRow& r : engine_->instance().memory()) {
      memory += "\n  " + r.name + std::string(r.name.size() < 14 ? 14 - r.name.size() : 1, ' ') +
                human_bytes(static_cast<double>(r.bytes));
    }
    log::debug(memory);
    say_state_of_host();
    say_tables(start_lines);
    if (checkpoint_ && step_ >= total_steps_) {
      log::info("nothing is left to train: " + checkpoint_->path() + " is of step " + with_commas(step_) +
                " of " + with_commas(total_steps_) + "; raise max_steps or num_train_epochs to continue");
    }
  });
}

}  // namespace octet::train
