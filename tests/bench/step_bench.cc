// Speed of whole training steps on synthetic data: the engine of training without files, tokenizer and log.
// Prints one line of JSON. Run alone or as launch/mpirun -np N step_bench; --batch counts sequences of one
// rank.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/random.h"
#include "octet/device/cpu.h"
#include "octet/train/engine.h"

namespace octet {
namespace {

struct Settings {
  std::string shape = "tiny";
  std::string precision = "bf16";
  int threads = 0;
  int batch = 4;
  int micro_batches = 1;
  int length = 256;
  int steps = 30;
  int warmup = 5;
  int stage = 0;
};

/// A Llama-shaped model: "tiny", or the path of a config.json.
model::Architecture architecture_of(const std::string& shape) {
  if (shape != "tiny") return model::read_architecture(Json::parse(read_file(shape)), shape);
  return model::read_architecture(Json{{"model_type", "llama"},
                                       {"vocab_size", 4096},
                                       {"hidden_size", 256},
                                       {"intermediate_size", 768},
                                       {"num_hidden_layers", 4},
                                       {"num_attention_heads", 8},
                                       {"num_key_value_heads", 4},
                                       {"hidden_act", "silu"},
                                       {"max_position_embeddings", 131072},
                                       {"rms_norm_eps", 1e-6},
                                       {"rope_theta", 500000.0},
                                       {"tie_word_embeddings", false}},
                                  "the shape 'tiny'");
}

precision::Recipe recipe_of(const std::string& name) {
  precision::Recipe recipe;
  recipe.compute = name == "fp32" ? DType::f32 : DType::bf16;
  if (name == "fp8-delayed") recipe.kind = precision::RecipeKind::delayed;
  if (name == "fp8-current") recipe.kind = precision::RecipeKind::current;
  return recipe;
}

/// Random tokens, each of them trained but the last of a sequence, which has no next one.
data::HostBatch random_batch(const Settings& s, std::int64_t vocabulary, std::uint64_t seed) {
  data::HostBatch batch;
  std::vector<std::int32_t> ids(static_cast<std::size_t>(s.length));
  std::uint64_t index = 0;
  for (int row = 0; row < s.batch; ++row) {
    for (std::int32_t& id : ids) {
      const auto bits = philox(seed, RandomUse::data, index++);
      id = static_cast<std::int32_t>(below(static_cast<std::uint64_t>(vocabulary), bits[0], bits[1]));
    }
    data::add_document(batch, ids, ids);
  }
  return batch;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

void measure(const Settings& s) {
  const comm::Place place = comm::find_place();
  const int cores = cpu::claim_cores(place.local_rank, place.local_size);
  const int threads = s.threads > 0 ? s.threads : cores;
  const auto device = make_cpu_device({.threads = threads});
  const auto communicator = comm::make_communicator(*device);

  train::EngineOptions options;
  options.architecture = architecture_of(s.shape);
  options.store.stage = s.stage;
  options.store.recipe = recipe_of(s.precision);
  options.store.adamw = {.weight_decay = 0.01};
  options.transformer.max_tokens = std::int64_t{s.batch} * s.length;
  options.transformer.max_length = s.length;
  options.max_documents = s.batch;
  options.max_micro_batches = s.micro_batches;
  train::Engine engine(*device, *communicator, options);
  engine.initialise(1);

  std::vector<double> seconds;
  zero::StepResult first, last;
  for (int step = 0; step < s.warmup + s.steps; ++step) {
    std::vector<data::HostBatch> batches;
    for (int i = 0; i < s.micro_batches; ++i) {
      const auto seed = static_cast<std::uint64_t>((step * s.micro_batches + i) * place.size + place.rank);
      batches.push_back(random_batch(s, options.architecture.vocabulary, seed));
    }
    communicator->barrier();
    const auto start = std::chrono::steady_clock::now();
    engine.begin(s.micro_batches);
    for (const data::HostBatch& batch : batches) engine.micro_batch(batch);
    last = engine.finish(1e-5);
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
    if (step == 0) first = last;
    if (step >= s.warmup) seconds.push_back(passed.count());
  }
  if (place.rank != 0) return;
  const double step_seconds = median(seconds);
  const double tokens = 1.0 * s.batch * s.length * s.micro_batches * place.size;
  const auto loss = [](const zero::StepResult& r) {
    return r.loss_sum / static_cast<double>(r.label_tokens);
  };
  const Json line{{"shape", s.shape},
                  {"precision", s.precision},
                  {"ranks", place.size},
                  {"threads", threads},
                  {"batch", s.batch},
                  {"seq", s.length},
                  {"stage", s.stage},
                  {"s_per_it", step_seconds},
                  {"s_per_it_min", *std::ranges::min_element(seconds)},
                  {"tokens_per_s", tokens / step_seconds},
                  {"first_loss", loss(first)},
                  {"last_loss", loss(last)}};
  std::printf("%s\n", line.dump().c_str());
}

}  // namespace
}  // namespace octet

int main(int argc, char** argv) {
  octet::Settings s;
  CLI::App app("Seconds of a training step on synthetic data");
  app.add_option("--shape", s.shape, "tiny, or a config.json")->capture_default_str();
  app.add_option("--precision", s.precision)
      ->check(CLI::IsMember({"fp32", "bf16", "fp8-delayed", "fp8-current"}))
      ->capture_default_str();
  app.add_option("--threads", s.threads, "of a rank; 0: its share of the node's cores");
  app.add_option("--batch", s.batch, "sequences of a micro-batch")->check(CLI::PositiveNumber);
  app.add_option("--micro-batches", s.micro_batches, "of a step")->check(CLI::PositiveNumber);
  app.add_option("--seq", s.length, "tokens of a sequence")->check(CLI::Range(2, 1 << 20));
  app.add_option("--steps", s.steps, "timed steps")->check(CLI::PositiveNumber);
  app.add_option("--warmup", s.warmup, "steps before them")->check(CLI::NonNegativeNumber);
  app.add_option("--stage", s.stage, "ZeRO stage")->check(CLI::Range(0, 3));
  CLI11_PARSE(app, argc, argv);
  try {
    octet::measure(s);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "step_bench: %s\n", e.what());
    return 1;
  }
  return 0;
}
