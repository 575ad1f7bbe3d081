// Keys of the schedule of a run and of its output, seen in its log and its folder.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include "cli/effects.h"
#include "cli/pairs.h"
#include "cli/task.h"
#include "octet/base/json.h"
#include "octet/config/config.h"
#include "octet/device/cpu.h"
#include "octet/model/layout.h"
#include "octet/runtime/session.h"
#include "octet/setup/adapters.h"
#include "octet/train/trainer.h"
#include "octet/weights/safetensors.h"

namespace octet::test {
namespace {

namespace fs = std::filesystem;

/// A successful run in this process: its folder and its output.
class Ran {
 public:
  /// Relative output_dir and logging_dir are placed in a folder of this run.
  explicit Ran(config::Resolved r) : folder_("effect") {
    if (!r.config.output_dir.starts_with("/")) r.config.output_dir = folder_ / r.config.output_dir;
    if (r.config.logging_dir) r.config.logging_dir = folder_ / *r.config.logging_dir;
    output_ = r.config.output_dir;
    Quiet quiet;
    runtime::Session session(DeviceWish::cpu);
    // On busy cores, threads that wait for each other take longer than the work.
    cpu::set_op_threads(1);
    train::train(session, r);
    printed_ = quiet.printed();
  }
  const std::string& printed() const { return printed_; }
  std::string in_output(const std::string& name) const { return output_ + "/" + name; }
  std::string in_folder(const std::string& name) const { return folder_ / name; }

  /// Returns the step and the text of `of` for every row of a kind.
  std::string rows(const std::string& kind, const std::function<std::string(const Json&)>& of) const {
    std::string text;
    for (const auto& line : split(slurp(in_output("trainer_log.jsonl")), '\n')) {
      if (line.empty()) continue;
      const Json row = parse_json(line, "trainer_log.jsonl");
      if (row.contains(kind)) text += (text.empty() ? "" : " ") + of(row);
    }
    return text;
  }
  std::string steps(const std::string& kind = "loss") const {
    return rows(kind, [](const Json& row) { return row["current_steps"].dump(); });
  }

 private:
  TemporaryFolder folder_;
  std::string output_, printed_;
};

See run(const std::function<std::string(const Ran&)>& see) {
  return [see](const config::Resolved& r) { return see(Ran(r)); };
}

std::string losses(const Ran& ran) {
  return ran.rows("loss", [](const Json& row) { return row["loss"].dump(); });
}

/// Describes the casts of a row: the operands and layers with a lost share.
std::string casts(const Json& row) {
  if (!row.contains("fp8")) return "nothing";
  std::size_t operands = 0, layers = 0;
  for (const auto& [gemm_kind, of] : row["fp8"].items()) {
    for (const auto& [operand, values] : of.items()) {
      const bool whole = values["amax"].get<double>() > 0 && values["scale"].get<double>() > 0 &&
                         values["lost"].get<double>() < 1 && values["layer"].get<int>() < 2;
      operands += whole ? 1 : 0;
      if (row.contains("fp8_layers")) layers = row["fp8_layers"][gemm_kind][operand]["lost"].size();
    }
  }
  const std::size_t gemms = row["fp8"].size();
  std::string text = std::to_string(gemms) + " products of " + std::to_string(operands / gemms) + " operands";
  return layers > 0 ? text + " of " + std::to_string(layers) + " layers" : text;
}

/// Observes the rest of the line that begins with `begin`, after blanks.
See said(const std::string& begin) {
  return run([begin](const Ran& ran) {
    for (const auto& line : split(ran.printed(), '\n')) {
      const std::string_view text = trim(line);
      if (text.starts_with(begin)) return std::string(trim(text.substr(begin.size())));
    }
    return std::string("nothing");
  });
}

std::string checkpoints(const Ran& ran) {
  std::vector<std::int64_t> steps;
  for (const auto& entry : fs::directory_iterator(ran.in_output("."))) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("checkpoint-")) steps.push_back(std::stoll(name.substr(11)));
  }
  std::ranges::sort(steps);
  std::string text;
  for (const auto step : steps) text += (text.empty() ? "" : " ") + std::to_string(step);
  return text.empty() ? "none" : text;
}

std::string exists(const std::string& path) {
  return fs::exists(path) ? "there" : "not there";
}

std::string format_of_model(const Ran& ran) {
  const weights::WeightFolder files(ran.in_output("."));
  return std::string(name_of(files.tensors().front().dtype));
}

std::string files_of_model(const Ran& ran) {
  std::int64_t count = 0;
  for (const auto& entry : fs::directory_iterator(ran.in_output(".")))
    count += entry.path().extension() == ".safetensors" ? 1 : 0;
  return std::to_string(count);
}

/// Observes a run after another finished run of two steps that kept its checkpoint. The first run is repeated
/// each time.
See after_another(const std::function<std::string(const Ran&, const std::string&)>& see) {
  return [see](config::Resolved r) {
    const TemporaryFolder folder("before");
    Keys keys{{"output_dir", folder / "out"}, {"max_steps", "2"}, {"save_strategy", "steps"}};
    const Ran before(resolved(keys));
    if (r.config.output_dir == "found") r.config.output_dir = folder / "out";
    if (r.config.resume_from_checkpoint == "named")
      r.config.resume_from_checkpoint = folder / "out/checkpoint-2";
    if (r.config.model_name_or_path == "finished") r.config.model_name_or_path = folder / "out";
    return see(Ran(r), folder.path());
  };
}
const See kFirstLoss = after_another([](const Ran& ran, const std::string&) {
  return ran.rows("loss", [](const Json& row) { return row["loss"].dump(); });
});
const See kLoggedSteps = after_another([](const Ran& ran, const std::string&) {
  return ran.rows("loss", [](const Json& row) {
    return row["current_steps"].dump() + ":" + row["loss"].dump();
  }) + (holds(ran.printed(), "is resumed from") ? " resumed" : " afresh");
});

/// Returns the losses of a run on a finished model, possibly with an adapter of it.
std::string losses_with_adapter(config::Resolved r) {
  const TemporaryFolder folder("adapter");
  const Keys two_steps{{"max_steps", "2"}, {"save_strategy", "no"}};
  Keys base = two_steps, adapter = two_steps;
  base["output_dir"] = folder / "base", adapter["output_dir"] = folder / "out";
  const Ran first(resolved(base));
  adapter["model_name_or_path"] = folder / "base";
  adapter["train_from_scratch"] = "false", adapter["finetuning_type"] = "lora";
  const Ran before(resolved(adapter));
  r.config.model_name_or_path = folder / "base";
  if (r.config.adapter_name_or_path == "finished") r.config.adapter_name_or_path = folder / "out";
  return losses(Ran(r));
}

std::vector<KeyRow> adapter_rows() {
  const Keys lora{{"finetuning_type", "lora"}};
  const Keys over_weights{{"finetuning_type", "lora"}, {"train_from_scratch", "false"}};
  Keys over_adapter = over_weights;
  over_adapter["adapter_name_or_path"] = "finished";
  return {
      {"finetuning_type", {}, {{"lora"}}, run(losses)},
      {"lora_rank", lora, {{"4"}, {"2"}}, run(losses)},
      {"lora_alpha", lora, {{"1"}, {"64"}}, run(losses)},
      {"lora_dropout", lora, {{"0.1"}}, run(losses)},
      {"lora_target", lora, {{"q_proj"}, {"[down_proj, v_proj]"}, {"'.*[.]1[.].*'"}}, run(losses)},
      {"use_rslora", lora, {{"true"}}, run(losses)},
      {"use_dora", lora, {{"true"}}, run(losses)},
      {"loraplus_lr_ratio", lora, {{"4"}, {"16"}}, run(losses)},
      {"additional_target", lora, {{"embed_tokens"}}, run(losses)},
      {"adapter_name_or_path", over_weights, {{"finished"}}, losses_with_adapter},
      {"create_new_adapter", over_adapter, {{"true"}}, losses_with_adapter},
      {"quantization_bit", lora, {{"4"}}, run(losses)},
      {"double_quantization",
       {{"finetuning_type", "lora"}, {"quantization_bit", "4"}},
       {{"false"}},
       run(losses)},
      {"quantization_type", {{"finetuning_type", "lora"}, {"quantization_bit", "4"}}, {{"fp4"}}, run(losses)},
  };
}

/// Returns the names of the trained parameters.
std::string trained_names(const config::Resolved& r) {
  const model::Architecture a = setup::tuned(r.config, model::read_architecture(r.config.model_name_or_path));
  std::string names;
  for (const model::GroupSpec& group : model::build_layout(a).groups) {
    for (const model::SegmentSpec& segment : group.segments) {
      for (const model::TensorSpec& tensor : segment.tensors) {
        if (segment.trainable) names += tensor.name + " ";
      }
    }
  }
  return names;
}

std::vector<KeyRow> freezing_rows() {
  const Keys freeze{{"finetuning_type", "freeze"}, {"train_from_scratch", "false"}};
  return {
      {"freeze_trainable_layers", freeze, {{"1"}, {"-1"}}, trained_names},
      {"freeze_trainable_modules", freeze, {{"mlp"}, {"[self_attn, input_layernorm]"}}, trained_names},
      {"freeze_extra_modules", freeze, {{"embed_tokens"}, {"norm"}}, trained_names},
  };
}

std::vector<KeyRow> course_rows() {
  const Keys epochs{{"max_steps", "unset"}};
  return {
      {"model_name_or_path", {{"train_from_scratch", "false"}}, {{"finished"}}, kFirstLoss},
      {"train_from_scratch",
       {{"model_name_or_path", "finished"}, {"train_from_scratch", "unset"}},
       {{"true"}},
       kFirstLoss},
      {"do_train", {}, {{"false"}}, run(losses)},
      {"per_device_train_batch_size",
       {{"per_device_train_batch_size", "unset"}},
       {{"3", "3"}, {"1", "1"}},
       said("Instantaneous batch size per device ="),
       "8"},
      {"gradient_accumulation_steps",
       {},
       {{"2", "2"}, {"3", "3"}},
       said("Gradient Accumulation steps ="),
       "1"},
      {"global_batch_size",
       {},
       {{"4", "4"}, {"6", "6"}},
       said("Total train batch size (w. parallel, distributed & accumulation) ="),
       "2"},
      {"auto_find_batch_size",
       {{"global_batch_size", "4"}},
       {{"true"}},
       said("chosen to fit the memory of the device: per_device_train_batch_size=")},
      {"per_device_eval_batch_size",
       {{"val_size", "4"}, {"eval_strategy", "steps"}},
       {{"1", "4"}, {"4", "1"}},
       run([](const Ran& ran) {
         return ran.rows("eval_loss", [](const Json& row) {
           const double batches =
               row["eval_steps_per_second"].get<double>() * row["eval_runtime"].get<double>();
           return row["current_steps"] == 3 ? std::to_string(std::lround(batches)) : std::string();
         });
       }),
       "2"},
      {"num_train_epochs", epochs, {{"1", "5"}, {"0.5", "3"}}, said("Total optimization steps ="), "15"},
      {"max_steps", epochs, {{"4", "4"}, {"2", "2"}}, said("Total optimization steps ="), "15"},
      {"data_seed", {}, {{"7"}}, run(losses)},
      {"disable_shuffling", {}, {{"true"}}, run(losses)},
      {"dataloader_drop_last",
       {{"max_steps", "unset"}, {"num_train_epochs", "1"}, {"max_samples", "5"}},
       {{"true", "2"}},
       said("Total optimization steps ="),
       "3"},
      {"streaming",
       {},
       {{"true", "10 rows in 1 windows of 16,384 (buffer_size)"}},
       said("streaming:"),
       "nothing"},
      {"buffer_size",
       {{"streaming", "true"}},
       {{"4", "10 rows in 3 windows of 4 (buffer_size)"}},
       said("streaming:")},
      {"tokenized_path",
       {},
       {{Task::get().model() + "/../kept", "kept"}},
       run([](const Ran& ran) {
         return std::string(
             holds(ran.printed(), "tokens kept in") || holds(ran.printed(), "tokens taken from") ? "kept"
                                                                                                 : "made");
       }),
       "made"},
      {"overwrite_cache",
       {{"tokenized_path", Task::get().model() + "/../kept-too"}},
       {{"true", "kept anew"}},
       [](const config::Resolved& r) {
         const Ran first(r), second(r);
         return std::string(holds(second.printed(), "tokens taken from") ? "taken" : "kept anew");
       },
       "taken"},
  };
}

/// Returns the time during which further stop requests are ignored, as a run reports it when it is asked to
/// stop after its first step.
std::string grace(config::Resolved r) {
  const TemporaryFolder folder("grace");
  r.config.output_dir = folder / "out";
  std::thread asks([&] {
    while (slurp(folder / "out/trainer_log.jsonl").empty())
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ::kill(::getpid(), SIGUSR2);
  });
  const Ran ran(r);
  asks.join();
  const std::string mark = "; a request after ";
  const std::size_t at = ran.printed().find(mark) + mark.size();
  return ran.printed().substr(at, ran.printed().find(" s ", at) - at);
}

/// Runs with an output folder that is full. Returns whether a checkpoint was saved, and the number of failed
/// saves.
std::string on_full_disk(config::Resolved r) {
  const TemporaryFolder folder("full");
  r.config.output_dir = folder / "out";
  spill(folder / "out/disk-is-full", "");
  if (r.config.save_fallback_dir) r.config.save_fallback_dir = folder / *r.config.save_fallback_dir;
  ::setenv("OCTETRUN_FAILPOINT", "full_disk", 1);
  std::string how = "saved";
  Quiet quiet;
  try {
    runtime::Session session(DeviceWish::cpu);
    cpu::set_op_threads(1);
    train::train(session, r);
  } catch (const Error& e) {
    how = static_cast<int>(e.code()) == 78 ? "unsaved" : e.what();
  }
  ::unsetenv("OCTETRUN_FAILPOINT");
  int failed = 0;
  for (std::size_t at = 0; (at = quiet.printed().find("could not be saved (", at)) != std::string::npos; ++at)
    ++failed;
  return how + ", " + std::to_string(failed) + " failed";
}

/// Observes a counter in the rows of steps, "-" if a row has none.
See counted(const std::string& name) {
  return run([name](const Ran& ran) {
    return ran.rows("loss", [&](const Json& row) { return row.contains(name) ? row[name].dump() : "-"; });
  });
}

/// Runs with a flipped bit after the first checkpoint.
std::string with_a_flip(const config::Resolved& r) {
  ::setenv("OCTETRUN_FLIPS", "0:2:moments:5", 1);
  std::string how;
  try {
    const Ran ran(r);
    how = holds(ran.printed(), "returned from step 1") ? "went back" : "went on";
  } catch (const Error& e) {
    how = "ended with " + std::to_string(static_cast<int>(e.code()));
  }
  ::unsetenv("OCTETRUN_FLIPS");
  return how;
}

/// Describes the handling of steps with a norm above the median of the earlier steps.
std::string above_the_median(const config::Resolved& r) {
  try {
    const Ran ran(r);
    return holds(ran.printed(), "returned from step")       ? "went back"
           : holds(ran.printed(), "; the step was skipped") ? "skipped"
                                                            : "nothing";
  } catch (const Error& e) {
    return holds(e.what(), "spike_action: stop")         ? "stopped"
           : holds(e.what(), "returned to a checkpoint") ? "went back"
                                                         : "lost";
  }
}

std::vector<KeyRow> check_rows() {
  const Keys checks{{"sdc_steps", "1"}};
  const Keys saves{{"sdc_steps", "1"}, {"save_strategy", "steps"}, {"save_steps", "1"}};
  const Keys norms{
      {"max_steps", "16"}, {"learning_rate", "0"}, {"save_strategy", "steps"}, {"save_steps", "4"}};
  Keys spikes = norms;
  spikes["grad_norm_spike_factor"] = "1.02";
  return {
      {"sdc_steps", {}, {{"1", "1 2 3"}, {"2", "0 1 2"}}, counted("sdc_checks"), "- - -"},
      {"sdc_replay_steps", checks, {{"1", "1 2 3"}, {"2", "0 1 1"}}, counted("sdc_replays"), "- - -"},
      {"sdc_action", saves, {{"rollback", "went back"}}, with_a_flip, "ended with 75"},
      {"loss_spike_factor",
       {{"max_steps", "14"}, {"learning_rate", "0"}},
       {{"1.0001", "some"}},
       [](const config::Resolved& r) {
         try {
           const Ran ran(r);
           return std::string(holds(ran.printed(), "times the median") ? "some" : "none");
         } catch (const Error&) {
           return std::string("some");
         }
       },
       "none"},
      {"grad_norm_spike_factor", norms, {{"1.02", "skipped"}}, above_the_median, "nothing"},
      {"spike_action", spikes, {{"rollback", "went back"}, {"stop", "stopped"}}, above_the_median, "skipped"},
  };
}

/// Observes which figure chose the final model.
std::string best_figure(const Ran& ran) {
  const std::string printed = ran.printed();
  for (const char* figure : {"loss", "accuracy"}) {
    if (!holds(printed, std::string("its evaluation ") + figure)) continue;
    return (holds(printed, "is the largest of") ? "largest " : "smallest ") + std::string(figure);
  }
  return "none";
}

std::vector<KeyRow> output_rows() {
  const Keys saves{{"save_strategy", "steps"}};
  const Keys still{{"val_size", "2"},
                   {"max_samples", "6"},
                   {"eval_strategy", "steps"},
                   {"eval_steps", "1"},
                   {"learning_rate", "0"}};
  const Keys evaluates{{"val_size", "2"}, {"eval_strategy", "steps"}, {"logging_steps", "3"}};
  const Keys best_model{{"val_size", "2"},          {"max_samples", "6"}, {"eval_strategy", "steps"},
                        {"save_strategy", "steps"}, {"eval_steps", "1"},  {"save_steps", "1"}};
  Keys by_accuracy = best_model;
  for (const char* key : {"compute_accuracy", "load_best_model_at_end"}) by_accuracy[key] = "true";
  Keys by_named_accuracy = by_accuracy;
  by_named_accuracy["metric_for_best_model"] = "accuracy";
  return {
      {"output_dir",
       {},
       {{"elsewhere", "there"}},
       run([](const Ran& ran) { return exists(ran.in_folder("elsewhere/trainer_log.jsonl")); }),
       "not there"},
      {"overwrite_output_dir", {{"output_dir", "found"}}, {{"true"}}, kLoggedSteps},
      {"resume_from_checkpoint", {}, {{"named"}, {"true"}}, kLoggedSteps},
      {"stop_grace", {{"max_steps", "5000"}}, {{"7", "7"}, {"0.5", "1"}}, grace, "5"},
      {"logging_steps",
       {{"logging_steps", "unset"}},
       {{"1", "1 2 3"}, {"2", "2 3"}},
       run([](const Ran& ran) { return ran.steps(); }),
       "3"},
      {"logging_first_step",
       {{"logging_steps", "2"}},
       {{"true", "1 2 3"}},
       run([](const Ran& ran) { return ran.steps(); }),
       "2 3"},
      {"log_samples",
       {{"disable_shuffling", "true"}},
       {{"true", "[[[0,1]]] [[[2,3]]] [[[4,5]]]"}},
       run([](const Ran& ran) {
         std::string text;
         for (const auto& line : split(slurp(ran.in_output("samples.jsonl")), '\n')) {
           if (!line.empty())
             text += (text.empty() ? "" : " ") + parse_json(line, "samples.jsonl")["rows"].dump();
         }
         return text;
       }),
       ""},
      {"fp8_statistics",
       {{"bf16", "true"}, {"fp8", "true"}, {"logging_steps", "2"}},
       {{"worst", "4 products of 3 operands 4 products of 3 operands"}, {"none", "nothing nothing"}},
       run([](const Ran& ran) { return ran.rows("loss", casts); }),
       "4 products of 3 operands of 2 layers 4 products of 3 operands of 2 layers"},
      {"report_to",
       {},
       {{"tensorboard", "there"}},
       run([](const Ran& ran) { return exists(ran.in_output("runs")); }),
       "not there"},
      {"logging_dir",
       {{"report_to", "tensorboard"}},
       {{"events", "there"}},
       run([](const Ran& ran) { return exists(ran.in_folder("events")); }),
       "not there"},
      {"run_name",
       {},
       {{"Xyzzy", "Xyzzy"}},
       run([](const Ran& ran) {
         const std::string card = slurp(ran.in_output("README.md"));
         const std::size_t at = card.find("\n# ") + 3;
         return card.substr(at, card.find('\n', at) - at);
       }),
       "out"},
      {"plot_loss",
       {},
       {{"true", "there"}},
       run([](const Ran& ran) { return exists(ran.in_output("training_loss.svg")); }),
       "not there"},
      {"gpu_hour_price",
       {},
       {{"3600"}},
       run([](const Ran& ran) {
         return std::string(holds(ran.printed(), "device hours at 3600") ? "3600 an hour" : "no cost");
       }),
       "no cost"},
      {"save_strategy",
       {{"save_strategy", "unset"}, {"save_steps", "1"}, {"max_samples", "4"}},
       {{"no", "none"}, {"epoch", "2 3"}},
       run(checkpoints),
       "1 2 3"},
      {"save_steps", saves, {{"1", "1 2 3"}, {"2", "2 3"}}, run(checkpoints), "3"},
      {"mtbf_hours",
       {{"save_strategy", "steps"}, {"save_steps", "unset"}, {"max_steps", "13"}},
       {{"1.0e-9", "10 11 12 13"}, {"1.0e+6", "10 13"}},
       run(checkpoints),
       "13"},
      {"memory_checkpoint_steps",
       {},
       {{"1", "wants a supervisor"}},
       run([](const Ran& ran) {
         return std::string(holds(ran.printed(), "no checkpoints are kept in memory") ? "wants a supervisor"
                                                                                      : "none");
       }),
       "none"},
      {"save_total_limit",
       {{"save_strategy", "steps"}, {"save_steps", "1"}},
       {{"1", "3"}, {"2", "2 3"}},
       run(checkpoints),
       "1 2 3"},
      {"save_fallback_dir",
       {{"save_strategy", "steps"}, {"save_steps", "2"}, {"save_async", "false"}},
       {{"second", "saved, 0 failed"}},
       on_full_disk,
       "unsaved, 4 failed"},
      {"max_failed_saves",
       {{"save_strategy", "steps"}, {"save_steps", "1"}, {"save_async", "false"}},
       {{"1", "unsaved, 3 failed"}, {"2", "unsaved, 4 failed"}},
       on_full_disk,
       "unsaved, 5 failed"},
      {"load_best_model_at_end",
       best_model,
       {{"true", "the best of the run"}},
       run([](const Ran& ran) {
         return std::string(holds(ran.printed(), "the final model is the checkpoint of step")
                                ? "the best of the run"
                                : "the last");
       }),
       "the last"},
      {"metric_for_best_model",
       by_accuracy,
       {{"eval_accuracy", "largest accuracy"}},
       run(best_figure),
       "smallest loss"},
      {"greater_is_better",
       by_named_accuracy,
       {{"false", "smallest accuracy"}},
       run(best_figure),
       "largest accuracy"},
      // A rate of zero improves nothing.
      {"early_stopping_steps",
       still,
       {{"1", "1 2"}},
       run([](const Ran& ran) { return ran.steps("eval_loss"); }),
       "1 2 3"},
      {"save_async",
       saves,
       {{"true", "beside the steps"}},
       run([](const Ran& ran) {
         return std::string(holds(ran.printed(), "the state of step 3 is copied") ? "beside the steps"
                                                                                  : "between them");
       }),
       "between them"},
      {"export_dtype", {}, {{"bf16", "bf16"}, {"fp16", "fp16"}}, run(format_of_model)},
      {"export_size", {}, {{"0.00005"}}, run(files_of_model), "1"},
      {"eval_strategy",
       {{"val_size", "2"}, {"eval_steps", "1"}, {"max_samples", "6"}},
       {{"steps", "1 2 3"}, {"epoch", "2 3"}},
       run([](const Ran& ran) { return ran.steps("eval_loss"); })},
      {"eval_steps",
       evaluates,
       {{"1", "1 2 3"}, {"2", "2 3"}},
       run([](const Ran& ran) { return ran.steps("eval_loss"); }),
       "3"},
      {"eval_delay",
       still,
       {{"2", "2 3"}},
       run([](const Ran& ran) { return ran.steps("eval_loss"); }),
       "1 2 3"},
      {"eval_on_start",
       still,
       {{"true", "0 1 2 3"}},
       run([](const Ran& ran) { return ran.steps("eval_loss"); }),
       "1 2 3"},
  };
}

TEST(Effects, OfAdapters) {
  expect_effects(adapter_rows());
}
TEST(Effects, OfFreezing) {
  expect_effects(freezing_rows());
}
TEST(Effects, EvaluationsComeWithTheLoggedStepsWhereEvalStepsSaysNothing) {
  expect_effects({{"logging_steps",
                   {{"val_size", "2"}, {"eval_strategy", "steps"}, {"save_steps", "3"}, {"max_samples", "6"}},
                   {{"2", "2 3"}},
                   run([](const Ran& ran) { return ran.steps("eval_loss"); }),
                   "1 2 3"}});
}
// The first evaluation is the best, because a rate of zero improves nothing. The run ends with a checkpoint.
TEST(Effects, TheBestModelIsSavedAfterItsEvaluation) {
  expect_effects({{"save_strategy",
                   {{"save_strategy", "unset"},
                    {"save_steps", "3"},
                    {"val_size", "2"},
                    {"max_samples", "6"},
                    {"eval_strategy", "steps"},
                    {"eval_steps", "1"},
                    {"learning_rate", "0"}},
                   {{"best", "1 3"}},
                   run(checkpoints),
                   "3"}});
}
TEST(Effects, OfTheCourse) {
  expect_effects(course_rows());
}
TEST(Effects, OfChecks) {
  expect_effects(check_rows());
}
TEST(Effects, OfOutput) {
  expect_effects(output_rows());
}

}  // namespace

namespace {

/// Observes the first logged margin of rewards.
std::string first_margin(const Ran& ran) {
  return ran.rows("rewards/margins", [](const Json& row) {
    return row["current_steps"] == 1 ? row["rewards/margins"].dump() : "";
  });
}

std::vector<KeyRow> preference_rows() {
  const Keys pairs{{"stage", "dpo"}, {"dataset", Pairs::get().file()}, {"max_steps", "1"}};
  Keys adapters = pairs;
  adapters["finetuning_type"] = "lora";
  return {
      {"compute_accuracy",
       {{"val_size", "2"}, {"eval_strategy", "steps"}, {"eval_steps", "3"}},
       {{"true", "3"}},
       run([](const Ran& ran) { return ran.steps("eval_accuracy"); })},
      {"ref_model", pairs, {{Pairs::get().other_model()}}, run(first_margin), "0.0"},
      {"precompute_ref_log_probs",
       adapters,
       {{"true", "there"}},
       run([](const Ran& ran) { return exists(ran.in_output("reference.h5")); }),
       "not there"},
  };
}

TEST(Effects, OfPreferences) {
  expect_effects(preference_rows());
}

}  // namespace

std::vector<KeyRow> run_rows() {
  std::vector<KeyRow> all;
  for (const auto& rows :
       {adapter_rows(), freezing_rows(), course_rows(), check_rows(), output_rows(), preference_rows()})
    all.insert(all.end(), rows.begin(), rows.end());
  return all;
}

}  // namespace octet::test
