#include "start/start_notes.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "octet/base/environment.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/base/timing.h"
#include "octet/comm/launchers.h"
#include "octet/config/derive.h"
#include "octet/config/warnings.h"
#include "octet/device/cpu.h"
#include "octet/device/device.h"
#include "octet/model/layout.h"
#include "octet/ops/gemm.h"
#include "octet/plan/memory.h"
#include "octet/train/fit.h"
#include "octet/train/start_checks.h"
#include "octet/train/start_rows.h"

namespace octet::train {

double gemm_rate(Device& device, DType dtype, GemmShape shape) {
  shape.rows = std::clamp<std::int64_t>(shape.rows, 1, 256);
  shape.cols = std::clamp<std::int64_t>(shape.cols, 1, 1024);
  shape.inner = std::clamp<std::int64_t>(shape.inner, 1, 1024);
  Arena arena(device);
  const std::unique_ptr<Stream> stream = device.make_stream({.name = "gemm rate"});
  const auto zeros = [&](std::int64_t rows, std::int64_t cols, DType type) {
    const auto bytes = static_cast<std::size_t>(rows * cols) * size_of(type);
    void* data = arena.reserve("gemm rate", bytes);
    device.zero(*stream, data, bytes);
    return data;
  };
  ops::GemmArgs args{.a = {.data = zeros(shape.rows, shape.inner, dtype),
                           .dtype = dtype,
                           .rows = shape.rows,
                           .cols = shape.inner},
                     .b = {.data = zeros(shape.cols, shape.inner, dtype),
                           .dtype = dtype,
                           .rows = shape.cols,
                           .cols = shape.inner},
                     .d = {.data = zeros(shape.rows, shape.cols, DType::f32),
                           .dtype = DType::f32,
                           .rows = shape.rows,
                           .cols = shape.cols,
                           .ld = shape.cols}};
  args.workspace.bytes = ops::gemm_workspace(device, args);
  args.workspace.data = arena.reserve("gemm rate", args.workspace.bytes);
  double best = 0;
  for (int round = 0; round < 4; ++round) {  // the first round includes starting threads
    const auto begin = Clock::now();
    ops::gemm(*stream, args);
    stream->synchronize();
    const double passed = seconds_since(begin);
    const double flops =
        2.0 * static_cast<double>(shape.rows * shape.cols) * static_cast<double>(shape.inner);
    if (passed > 0) best = std::max(best, flops / passed);
  }
  return best;
}

namespace {

/// Returns the lines for a configuration with SFT-Play keys. Collective.
std::vector<std::string> lines_of_sft_play(runtime::Session& session, const config::BatchKeys& config,
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

void StartNotes::say_device() const {
  if (!run_.prints()) return;
  log::debug("device: " + run_.session.device().description() + ", " + std::to_string(run_.job.size()) +
             " rank" +
             (run_.job.size() > 1 ? "s on " + std::to_string(run_.session.place().nodes) + " node" +
                                        (run_.session.place().nodes > 1 ? "s" : "")
                                  : ""));
}

void StartNotes::open_error_log() const {
  if (!run_.prints()) log::open_file_for_errors(training_log());
}

void StartNotes::warn_of_doubts() const {
  if (!run_.prints()) return;
  config::Resolved known = run_.resolved;
  // Settings that only slow a GPU do not matter on CPUs.
  if (run_.session.device().host_reaches_memory()) known.config.device = "cpu";
  if (run_.session.device().traits().uses_host_cores) {
    std::string crowd = cpu::crowd_text(cpu::crowd_of(run_.session.place().local_size));
    if (!crowd.empty()) log::warn(crowd);
  }
  if (comm::stops_are_kills(environment_variable, comm::parent_process())) {
    log::warn(
        "mpirun kills its ranks a second or two after SIGTERM or Ctrl-C, before they have saved: "
        "start the run with launch/mpirun, or stop it with kill -USR2");
  }
  const std::size_t of_settings = config::doubts(known).size();
  const config::Strings all = doubts(known, parts_.architecture);
  // Model and output folder come after the settings and are more important.
  for (std::size_t i = 0; i < all.size(); ++i)
    log::warn(all[i], i < of_settings ? log::Importance::setting : log::Importance::warning);
}

void StartNotes::measure() {
  if (run_.session.device().traits().has_known_rates) return;
  const model::Architecture& a = parts_.engine->options().architecture;
  gemm_rate_ =
      gemm_rate(run_.session.device(), config::computes_in_bf16(run_.config) ? DType::bf16 : DType::f32,
                {.rows = parts_.feed->shape().tokens, .cols = a.intermediate, .inner = a.hidden});
}

void StartNotes::begin(const std::string& from) {
  std::vector<std::string> start_lines;
  if (run_.resolved.dialect == "SFT-Play")
    start_lines = lines_of_sft_play(run_.session, run_.config, parts_.batch);
  run_.job.together([&] {
    if (!run_.prints()) return;
    saves_.set_aside_earlier();
    open_reporter(from);
    sizing_.say_storage_asked();
    say_notes();
    if (parts_.checkpoint) {
      log::debug("Training is resumed from " + parts_.checkpoint->path() +
                 "; change `output_dir` or use `overwrite_output_dir` to avoid");
    }
    const std::string step = config::automatic_step_text(run_.config, parts_.batch);
    if (!step.empty()) log::debug(step);
    say_batch();
    log::debug(feed::show_example(parts_.feed->shown(), *parts_.encoder, false));
    say_fp8();
    say_memory();
    say_state_of_host();
    say_tables(start_lines);
    if (parts_.checkpoint && run_.step >= run_.total_steps) {
      log::info("nothing is left to train: " + parts_.checkpoint->path() + " is of step " +
                with_commas(run_.step) + " of " + with_commas(run_.total_steps) +
                "; raise max_steps or num_train_epochs to continue");
    }
  });
}

void StartNotes::begin_again(const std::string& from, std::int64_t left, Back how) {
  began_ = Clock::now();
  run_.job.together([&] {
    if (!parts_.reporter) return;
    parts_.reporter.reset();
    open_reporter(from);
    parts_.reporter->start();
    log::warn("returned from step " + with_commas(left) + " to " + parts_.checkpoint->path() +
              (how == Back::other_data ? "; the data since this checkpoint are skipped" : ""));
  });
}

void StartNotes::open_reporter(const std::string& from) {
  report::RunFacts facts;
  facts.output_dir = run_.config.output_dir;
  facts.run_name =
      run_.config.run_name.value_or(std::filesystem::path(run_.config.output_dir).filename().string());
  facts.logging_dir = run_.config.logging_dir.value_or("");
  facts.tensorboard = run_.config.tensorboard();
  facts.plot = run_.config.plot_loss;
  facts.examples = parts_.feed->examples();
  facts.epochs = parts_.feed->epochs(run_.total_steps);
  facts.total_steps = run_.total_steps;
  facts.first_step = run_.step;
  facts.micro_batch = parts_.batch.micro;
  facts.accumulation = parts_.batch.accumulation;
  facts.world = parts_.batch.world;
  facts.all_parameters = parts_.engine->instance().parameter_count();
  facts.trainable_parameters = parts_.engine->instance().trained_parameters();
  facts.logging_steps = config::interval_steps(run_.config.logging_steps, run_.total_steps);
  facts.logging_first_step = run_.config.logging_first_step;
  facts.save_steps = config::interval_steps(run_.config.save_steps, run_.total_steps);
  facts.eval_steps =
      config::interval_steps(run_.config.eval_steps.value_or(run_.config.logging_steps), run_.total_steps);
  facts.flops_per_token =
      model::flops_per_token(parts_.engine->options().architecture, parts_.feed->mean_context());
  if (!run_.session.device().traits().has_known_rates) facts.peak_flops = 0;
  facts.gpu_hour_price = run_.config.gpu_hour_price.value_or(0);
  facts.setup_seconds = seconds_since(began_);
  facts.resumed_from = from;
  facts.about = start_rows(this->facts());
  facts.lines_of_hugging_face = run_.resolved.dialect != "SFT-Play";
  if (parts_.checkpoint) facts.resumed = parts_.checkpoint->state().value("trainer_state", Json());
  facts.base_model = run_.config.model_name_or_path;
  facts.datasets = parts_.corpus.names;
  const auto row = [&facts](const char* name, const std::string& value) {
    facts.hyperparameters.emplace_back(name, value);
  };
  row("learning_rate", Json(run_.config.learning_rate).dump());
  row("lr_scheduler_type", run_.config.lr_scheduler_type);
  row("total_train_batch_size", std::to_string(parts_.batch.global));
  row("seed", std::to_string(run_.config.seed));
  parts_.reporter = std::make_unique<report::Reporter>(std::move(facts));
  log::open_file(training_log());
  write_file_atomically(run_.config.output_dir + "/config.resolved.yaml", run_.resolved.to_yaml());
}

StartFacts StartNotes::facts() const {
  const data::EncodingCounts& counts = parts_.feed->shown().counts;
  StartFacts facts{.model = run_.config.model_name_or_path,
                   .family = parts_.architecture.model_type,
                   .parameters = parts_.engine->instance().parameter_count(),
                   .trained = parts_.engine->instance().trained_parameters(),
                   .method = run_.config.finetuning_type,
                   .fresh = parts_.fresh,
                   .rows = run_.config.streaming ? parts_.corpus.rows->size() : counts.rows,
                   .documents = counts.documents,
                   .tokens = counts.tokens,
                   .trained_tokens = counts.trained,
                   .streams = run_.config.streaming,
                   .sequences = run_.config.packing ? parts_.feed->examples() : 0,
                   .cutoff = run_.config.cutoff_len,
                   .device = run_.session.device().description(),
                   .on_gpu = run_.session.device().traits().counts_as_gpu,
                   .hosts = run_.session.place().nodes,
                   .precision = config::computes_in_bf16(run_.config) ? "bf16" : "fp32",
                   .parameters_in = run_.config.param_dtype,
                   .gradients_in = run_.config.grad_dtype,
                   .moments_in = run_.config.optim_dtype,
                   .zero_stage = run_.config.zero_stage,
                   .group_size = parts_.engine->options().store.group,
                   .memory = parts_.engine->arena().bytes(),
                   .capacity = run_.session.device().memory().total,
                   .batch = parts_.batch,
                   .steps = run_.total_steps,
                   .first_step = run_.step,
                   .epochs = parts_.feed->epochs(run_.total_steps),
                   .least_seconds = 0,
                   .output = run_.config.output_dir,
                   .resumed_from = parts_.checkpoint ? parts_.checkpoint->path().substr(
                                                           0, parts_.checkpoint->path().find(", step "))
                                                     : "",
                   .sft_play = run_.resolved.dialect == "SFT-Play"};
  if (run_.config.fp8) {
    const bool own = run_.config.fp8_backend == "auto" || run_.config.fp8_backend == "native";
    facts.precision = "FP8, backend " + (own ? std::string("native") : run_.config.fp8_backend) +
                      ", recipe " + run_.config.fp8_recipe + ", format " + run_.config.fp8_format;
  }
  if (facts.on_gpu) {
    plan::Work work = work_of(parts_.engine->options(), {}, run_.config.cutoff_len, parts_.batch.passes);
    work.tokens = parts_.feed->shape().tokens;
    facts.least_seconds = plan::time_of(work).seconds;
    facts.rates_of = plan::Rates().card;
  } else if (gemm_rate_ > 0 && !run_.config.streaming) {
    const auto examples = static_cast<double>(std::max<std::int64_t>(1, parts_.feed->examples()));
    const double tokens =
        static_cast<double>(counts.tokens) / examples * static_cast<double>(parts_.batch.global);
    facts.least_seconds =
        tokens / static_cast<double>(parts_.batch.world) *
        model::flops_per_token(parts_.engine->options().architecture, parts_.feed->mean_context()) /
        gemm_rate_;
    facts.rates_of = "this CPU";
  }
  return facts;
}

void StartNotes::say_notes() const {
  for (const std::string& note : config::notes_of(run_.resolved, run_.job.size(), run_.session.place().nodes))
    log::info(note);
}

// Prints the tables after the messages that fit on the screen with them.
void StartNotes::say_tables(const std::vector<std::string>& start_lines) const {
  int rows = parts_.reporter->start_rows();
  for (const std::string& line : start_lines) rows += log::rows_of(line);
  log::begin_table(rows);
  for (const std::string& line : start_lines) log::info(line);
  parts_.reporter->start();
}

void StartNotes::say_batch() const {
  if (!run_.prints() || parts_.batch.passes == parts_.batch.accumulation) return;
  log::warn("a step has " + with_commas(parts_.batch.global) + " samples, but an epoch has only " +
                with_commas(*parts_.feed->items_of_epoch()) + ": each step trains one epoch, in " +
                with_commas(parts_.batch.passes) +
                (parts_.batch.passes == 1 ? " micro-batch" : " micro-batches") +
                " per rank. Lower gradient_accumulation_steps or global_batch_size for more steps",
            log::Importance::training);
}

void StartNotes::say_fp8() const {
  if (!run_.config.fp8) return;
  const std::string& name = run_.config.fp8_backend;
  const bool own = name == "auto" || name == "native";
  log::debug("FP8 backend: " + (own ? std::string("native") : name) + " (this program's own FP8 core" +
             (own ? "" : " instead") + "), recipe " + run_.config.fp8_recipe + ", format " +
             run_.config.fp8_format);
  log::debug(parts_.engine->audit().table());
  if (!run_.session.device().traits().has_known_rates) return;
  plan::Work work = work_of(parts_.engine->options(), {}, run_.config.cutoff_len, parts_.batch.passes);
  work.tokens = parts_.feed->shape().tokens;  // evaluations may need more
  const std::string warning = plan::fp8_warning(work);
  if (!warning.empty()) log::warn(warning);
}

void StartNotes::say_memory() const {
  std::string memory = "memory per rank: " + human_bytes(static_cast<double>(parts_.engine->arena().bytes()));
  for (const runtime::MemoryRow& r : parts_.engine->instance().memory()) {
    memory += "\n  " + r.name + std::string(r.name.size() < 14 ? 14 - r.name.size() : 1, ' ') +
              human_bytes(static_cast<double>(r.bytes));
  }
  log::debug(memory);
}

void StartNotes::say_state_of_host() const {
  const std::size_t state = plan::memory_of(parts_.engine->arena()).state_of_host();
  if (state == 0) return;
  const auto text = [](std::size_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  const auto ranks = static_cast<std::size_t>(std::max(1, run_.job.place().local_size));
  log::debug("the optimizer's state is stored in host memory (optim_state_cpu_offload): " + text(state) +
             " per rank" +
             (ranks > 1
                  ? ", " + text(ranks * state) + " for the " + std::to_string(ranks) + " ranks of this host"
                  : "") +
             "; each update reads and writes it over the link of the GPU");
}

}  // namespace octet::train
