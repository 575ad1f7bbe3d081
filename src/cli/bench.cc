#include <algorithm>
#include <array>
#include <cstdio>
#include <string>

#include "command.h"
#include "model_word.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/base/timing.h"
#include "octet/bench/benches.h"
#include "octet/model/shapes.h"
#include "octet/plan/memory.h"
#include "octet/planner/planner.h"
#include "octet/setup/model_options.h"
#include "octet/setup/run_options.h"
#include "octet/setup/setup.h"
#include "octet/train/engine.h"
#include "octet/train/step_bench.h"
#include "octet/train/trainer.h"
#include "options.h"

namespace octet::cli {

// Prints the results of `trainer bench MODEL --decode`.

/// Print the results: for people, and with --json as one line. `device` is the description of the device.
void print_decode_table(const std::string& device, const bench::DecodeBench& b,
                        const bench::DecodeResult& result);
void print_decode_json(const std::string& device, const bench::DecodeBench& b,
                       const bench::DecodeResult& result);

void print_decode_table(const std::string& device, const bench::DecodeBench& b,
                        const bench::DecodeResult& result) {
  const generate::BenchResult& r = result.measured;
  const generate::BenchOptions& o = b.options;
  const double gb = 1e-9;
  std::printf("model              %s, %s parameters\n", b.model.c_str(), with_commas(r.parameters).c_str());
  std::printf("device             %s\n", device.c_str());
  std::printf("precision          %s\n", result.precision.c_str());
  if (b.tensor_parallel_size * b.pipeline_parallel_size > 1) {
    std::printf(
        "split              tensor_parallel_size %d x pipeline_parallel_size %d; bytes are per rank\n",
        b.tensor_parallel_size, b.pipeline_parallel_size);
  }
  std::printf("sequences          %lld with %s tokens of context each\n", static_cast<long long>(o.sequences),
              with_commas(o.context).c_str());
  std::printf("time per step      median %.6f s, min %.6f s, max %.6f s, of %lld steps\n", r.median_seconds,
              r.least_seconds, r.most_seconds, static_cast<long long>(o.steps));
  std::printf("tokens per second  %.1f, %.1f per sequence\n", r.tokens_per_second, 1 / r.median_seconds);
  std::printf("bytes per step     %.3f GB of weights, %.3f GB of keys and values: %.1f GB/s\n",
              gb * r.weight_bytes, gb * r.cache_bytes, gb * r.bytes_per_second);
  std::printf("replayed           %lld of %lld steps, warm-up included\n", static_cast<long long>(r.replayed),
              static_cast<long long>(o.warmup) + o.steps);
  std::printf("prompts            %s tokens per second\n",
              with_commas(static_cast<std::int64_t>(r.prompt_tokens_per_second)).c_str());
  std::printf("memory             %s reserved\n", human_bytes(static_cast<double>(r.reserved_bytes)).c_str());
  std::printf("set-up             %.1f s\n", r.setup_seconds);
  if (r.profile.empty()) return;
  std::printf("\n%-36s %12s %8s\n", "time per step, by operation", "milliseconds", "calls");
  for (const StepProfileRow& row : r.profile) {
    std::printf("%-36s %12.4f %8.0f\n", row.name.c_str(), 1e3 * row.seconds, row.calls);
  }
}

void print_decode_json(const std::string& device, const bench::DecodeBench& b,
                       const bench::DecodeResult& result) {
  const generate::BenchResult& r = result.measured;
  const generate::BenchOptions& o = b.options;
  Json line{{"model", b.model},
            {"parameters", r.parameters},
            {"device", device},
            {"precision", result.precision},
            {"sequences", o.sequences},
            {"context", o.context},
            {"tensor_parallel_size", b.tensor_parallel_size},
            {"pipeline_parallel_size", b.pipeline_parallel_size},
            {"steps", o.steps},
            {"seconds_median", r.median_seconds},
            {"seconds_min", r.least_seconds},
            {"seconds_max", r.most_seconds},
            {"tokens_per_second", r.tokens_per_second},
            {"weight_bytes", r.weight_bytes},
            {"cache_bytes", r.cache_bytes},
            {"bytes_per_second", r.bytes_per_second},
            {"replayed", r.replayed},
            {"prompt_tokens_per_second", r.prompt_tokens_per_second},
            {"reserved_bytes", r.reserved_bytes},
            {"setup_seconds", r.setup_seconds}};
  for (const StepProfileRow& row : r.profile) {
    line["profile"].push_back({{"name", row.name}, {"seconds", row.seconds}, {"calls", row.calls}});
  }
  std::printf("%s\n", line.dump().c_str());
}

namespace {

void print_profile(const train::BenchResult& r) {
  if (r.profile.empty()) return;
  double all = 0;
  for (const StepProfileRow& row : r.profile) all += row.seconds;
  std::printf("\n%-28s %12s %8s %8s\n", "time per step, by operation", "milliseconds", "share", "calls");
  for (const StepProfileRow& row : r.profile) {
    std::printf("%-28s %12.3f %6.1f %% %8.0f\n", row.name.c_str(), 1e3 * row.seconds, 100 * row.seconds / all,
                row.calls);
  }
}

/// Returns the utilisation as text: the share of the peak rate of an H200. "" if the result has none.
std::string share_text(const train::BenchResult& r) {
  if (!r.utilisation) return "";
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), ", %.1f %% of 989.4 TFLOP/s", 100 * *r.utilisation);
  return text.data();
}

void print_bench_table(const config::Config& c, runtime::Session& session, const train::BenchOptions& o,
                       const train::BenchResult& r) {
  std::printf("model              %s, %s parameters\n", o.model.c_str(), with_commas(r.parameters).c_str());
  std::printf("device             %s, %d rank%s\n", session.device().description().c_str(),
              session.place().size, session.place().size == 1 ? "" : "s");
  std::printf("precision          %s, zero_stage %lld, recompute %s%s\n", bench::precision_words(c).c_str(),
              static_cast<long long>(c.zero_stage), r.recompute.c_str(),
              r.transposes_at_use ? ", FP8 weights transposed at each use" : "");
  std::printf("tokens per step    %s in micro-batches of %lld x %lld\n", with_commas(r.tokens).c_str(),
              static_cast<long long>(c.per_device_train_batch_size), static_cast<long long>(c.cutoff_len));
  std::printf("time per step      median %.4f s, min %.4f s, max %.4f s, of %lld steps\n", r.median_seconds,
              r.least_seconds, r.most_seconds, static_cast<long long>(o.steps));
  std::printf("tokens per second  %s\n", with_commas(static_cast<std::int64_t>(r.tokens_per_second)).c_str());
  std::printf("model FLOPs used   %.4g TFLOP/s per device%s\n", 1e-12 * r.flops_per_second,
              share_text(r).c_str());
  std::printf("memory             %s reserved, %s of the device in use\n",
              human_bytes(static_cast<double>(r.reserved_bytes)).c_str(),
              human_bytes(static_cast<double>(r.used_bytes)).c_str());
  if (session.place().size > 1) {
    std::printf(
        "communication      %.4f s per step, of which %.4f s were waited for (%.4f to %.4f by rank; %.1f %% "
        "hidden), %s sent\n",
        r.comm_seconds, r.exposed_seconds, r.least_exposed_seconds, r.most_exposed_seconds,
        r.comm_seconds > 0 ? 100 * std::max(0.0, 1 - r.exposed_seconds / r.comm_seconds) : 100.0,
        human_bytes(r.comm_bytes).c_str());
  }
  std::printf("loss               %.5f first, %.5f last\n", r.first_loss, r.last_loss);
  std::printf("GEMMs              %s\n", r.audit.c_str());
  std::printf("set-up             %.1f s\n", r.setup_seconds);
  print_profile(r);
}

void print_bench_json(const config::Config& c, runtime::Session& session, const train::BenchOptions& o,
                      const train::BenchResult& r) {
  Json line{{"model", o.model},
            {"parameters", r.parameters},
            {"device", session.device().description()},
            {"ranks", session.place().size},
            {"precision", bench::precision_words(c)},
            {"zero_stage", c.zero_stage},
            {"recompute", r.recompute},
            {"fp8_transposed_weights", r.transposes_at_use ? "at_use" : "keep"},
            {"micro_batch", c.per_device_train_batch_size},
            {"length", c.cutoff_len},
            {"label_share", o.label_share},
            {"tokens", r.tokens},
            {"steps", o.steps},
            {"seconds_median", r.median_seconds},
            {"seconds_min", r.least_seconds},
            {"seconds_max", r.most_seconds},
            {"tokens_per_second", r.tokens_per_second},
            {"tflops", 1e-12 * r.flops_per_second},
            {"mfu", r.utilisation ? Json(*r.utilisation) : Json()},
            {"reserved_bytes", r.reserved_bytes},
            {"used_bytes", r.used_bytes},
            {"first_loss", r.first_loss},
            {"last_loss", r.last_loss},
            {"comm_seconds", r.comm_seconds},
            {"comm_exposed_seconds", r.exposed_seconds},
            {"comm_exposed_seconds_least", r.least_exposed_seconds},
            {"comm_exposed_seconds_most", r.most_exposed_seconds},
            {"comm_bytes", r.comm_bytes},
            {"setup_seconds", r.setup_seconds},
            {"products", *r.gemms}};
  if (!r.fp8->is_null()) line["fp8"] = *r.fp8;
  for (const StepProfileRow& row : r.profile) {
    line["profile"].push_back({{"kind", row.name}, {"seconds", row.seconds}, {"calls", row.calls}});
  }
  std::printf("%s\n", line.dump().c_str());
}

void print_saves(const bench::SaveBenchResult& r, int ranks, bool json) {
  const auto rate = [&](const std::vector<double>& seconds) {
    const double middle = median(seconds);
    return middle > 0 ? static_cast<double>(r.bytes) / middle : 0;
  };
  if (json) {
    std::printf("%s\n", Json{{"bytes", r.bytes},
                             {"ranks", ranks},
                             {"seconds_buffered", r.buffered},
                             {"seconds_direct", r.direct},
                             {"seconds_copied", r.copied},
                             {"seconds_saved", r.saved},
                             {"ratio", r.ratio()}}
                            .dump()
                            .c_str());
    return;
  }
  const auto row = [&](const char* name, const std::vector<double>& seconds) {
    if (seconds.empty()) return;
    std::printf("%-28s %8.3f s %8.2f GiB/s, each turn", name, median(seconds), rate(seconds) / 0x1p30);
    for (const double each : seconds) std::printf(" %.3f", each);
    std::printf("\n");
  };
  std::printf("%s on %d rank%s, median times and GiB per second\n",
              human_bytes(static_cast<double>(r.bytes)).c_str(), ranks, ranks == 1 ? "" : "s");
  row("raw, through the page cache", r.buffered);
  row("raw, direct I/O", r.direct);
  row("copy of the state", r.copied);
  row("checkpoint", r.saved);
  std::printf("rate of checkpoints divided by the faster raw rate: %.3f\n", r.ratio());
}

void require_one_kind(bool decode, bool decoding_given, bool saves) {
  const auto refuse = [](const char* what, const char* fix) {
    throw Error({.what = what, .where = "command line", .fix = fix, .code = ExitCode::usage});
  };
  if (decoding_given && !decode)
    refuse(
        "sequences, context, kv_cache_dtype, tensor_parallel_size and pipeline_parallel_size are settings of "
        "--decode",
        "give --decode");
  if (decode && saves) refuse("--decode and --save exclude each other", "give --decode or --save, not both");
}

std::string shapes_text() {
  std::string text;
  for (const std::string& name : model::shape_names()) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

int bench_command(const Arguments& arguments) {
  Options options("bench",
                  "Measures whole training steps, or with --decode decoding steps, on random tokens and "
                  "fresh weights; under `mpirun -np N` or alone. Configuration keys set the details: "
                  "cutoff_len (tokens per sequence), per_device_train_batch_size, "
                  "gradient_accumulation_steps, bf16 (true unless given), fp8, zero_stage, device, …");
  options.example("trainer bench llama-3.2-1b cutoff_len=2048 bf16=true fp8=true");
  options.example("trainer bench llama-3.1-8b --decode sequences=32 context=1024 steps=64");
  options.example("launch/mpirun -np 8 build/bin/trainer bench llama-3.1-8b bf16=true zero_stage=3");
  options.take_overrides();
  train::BenchOptions training{.model = "tiny"};
  bool json = false;
  const Option& named =
      options
          .add_option(
              "MODEL", training.model,
              "folder with config.json (no weights needed), a config.json, a model's name on the hub, or "
              "a shape: " +
                  shapes_text())
          .shows_default();
  options.setting("steps", training.steps, "timed steps").check(whole(1, 1000000)).shows_default();
  options.setting("warmup", training.warmup, "untimed steps before the timed steps")
      .check(whole(0, 1000000))
      .shows_default();
  options
      .setting("logged", training.logged,
               "true: every step computes the statistics of FP8 casts, which training computes only in "
               "logged steps")
      .shows_default();
  options
      .setting("label_share", training.label_share,
               "share of the tokens of each sequence that count in the loss")
      .check(between(1e-6, 1.0))
      .shows_default();
  options.setting("profile", training.profile, "true: show where the time goes").shows_default();
  std::string save;
  options.setting(
      "save", save,
      "a size, such as 2GiB: instead of steps, time raw writes and checkpoints of that size, five times "
      "in turn, in output_dir (or here)");
  bool decode = false;
  bench::DecodeBench decoding;
  options.add_flag("--decode", decode,
                   "time decoding steps instead of training steps: each step makes one token per sequence, "
                   "after random prompts have filled the cache");
  const Option& sequences =
      options
          .setting("sequences", decoding.options.sequences, "--decode: sequences that are decoded together")
          .check(whole(1, 65536))
          .shows_default();
  const Option& context =
      options
          .setting("context", decoding.options.context, "--decode: tokens per sequence before the first step")
          .check(whole(1, 1 << 20))
          .shows_default();
  std::string cache = "auto";
  const Option& cache_dtype =
      options.setting("kv_cache_dtype", cache, "--decode: auto, as computed, or fp8: keys and values in E4M3")
          .check(one_of_any_case({"auto", "fp8"}))
          .shows_default();
  const Option& tensor = options
                             .setting("tensor_parallel_size", decoding.tensor_parallel_size,
                                      "--decode: ranks that share each layer")
                             .check(whole(1, 4096))
                             .shows_default();
  const Option& stages = options
                             .setting("pipeline_parallel_size", decoding.pipeline_parallel_size,
                                      "--decode: groups of ranks among which the layers are divided")
                             .check(whole(1, 4096))
                             .shows_default();
  options.add_flag("--json", json, "print one line of JSON");
  if (!options.parse(arguments)) return 0;
  const auto given =
      sequences.count() + context.count() + cache_dtype.count() + tensor.count() + stages.count();
  require_one_kind(decode, given > 0, !save.empty());
  const config::Resolved resolved =
      config::load(planner::with_bf16(options.overrides()), {.for_training = false});
  const config::Config& config = resolved.config;
  const bool by_key = named.count() == 0 && !config.model_name_or_path.empty();
  const ModelWord word = find_model_word(by_key ? config.model_name_or_path : training.model);
  training.model = word.model;
  const setup::SessionWish wish = setup::session_wish(config);
  runtime::Session session(wish.device, nullptr, wish.carrying);
  const auto measure = [&] {
    if (session.prints() && !word.note.empty()) log::info(word.note);
    train::require_same_start(session, OCTET_VERSION, config, arguments);
    if (!save.empty()) {
      bench::SaveBenchOptions saves{.folder = config.output_dir.empty() ? "." : config.output_dir};
      session.job().together(
          [&] { saves.bytes = static_cast<std::int64_t>(plan::parse_bytes(save, "save")); });
      const bench::SaveBenchResult result = bench::bench_saves(session, saves);
      if (session.prints()) print_saves(result, session.place().size, json);
      return 0;
    }
    if (decode) {
      decoding.model = training.model;
      decoding.options.steps = training.steps;
      decoding.options.warmup = training.warmup;
      decoding.options.profile = training.profile;
      decoding.options.seed = static_cast<std::uint64_t>(config.seed);
      decoding.options.fp8_cache = cache == "fp8";
      decoding.options.strict = setup::is_strict(config);
      bench::bench_decoding(session, resolved, decoding, [&](const bench::DecodeResult& result) {
        (json ? print_decode_json : print_decode_table)(session.device().description(), decoding, result);
      });
      return 0;
    }
    session.mention_idle_gpus("bench …");
    const train::BenchResult result = train::bench(session, config, training);
    if (session.prints()) (json ? print_bench_json : print_bench_table)(config, session, training, result);
    return 0;
  };
  return session.run([&] { return with_places(resolved, measure); });
}

}  // namespace octet::cli
