#include "start/references.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/base/timing.h"
#include "octet/checkpoint/arrays_file.h"
#include "octet/config/derive.h"
#include "octet/feed/loader.h"
#include "octet/runtime/model_folder.h"
#include "octet/runtime/same_model.h"
#include "octet/runtime/staging.h"
#include "octet/setup/run_options.h"
#include "octet/text/tokenizer.h"
#include "octet/weights/safetensors.h"

namespace octet::train {
namespace {

std::string bytes_of_values(const std::vector<double>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)};
}

std::vector<double> values_of_bytes(const std::string& bytes) {
  std::vector<double> values(bytes.size() / sizeof(double));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(double));
  return values;
}

/// End of the names of arrays of mismatched answers.
constexpr const char* kMismatched = "_mismatched";

/// Throws Error (usage) for the first id with another token in the reference.
void require_same_tokens(const text::Tokenizer& own, const text::Tokenizer& other,
                         const std::string& folder) {
  const std::int64_t count = std::min(own.vocab_size(), other.vocab_size());
  for (std::int64_t id = 0; id < count; ++id) {
    const auto token = static_cast<text::TokenId>(id);
    if (own.id_to_token(token) == other.id_to_token(token)) continue;
    throw Error({.what = "the model of ref_model has another vocabulary",
                 .expected = "token " + std::to_string(id) + ": '" + own.id_to_token(token) + "'",
                 .found = "'" + other.id_to_token(token) + "'",
                 .where = folder,
                 .fix = "name a reference with the tokenizer of model_name_or_path",
                 .code = ExitCode::usage});
  }
}

/// The answers of a data set, in micro-batches over the ranks.
struct Answers {
  data::Encoded& set;
  const data::Items& items;
  std::int64_t micro = 1;

  /// Returns the items of micro-batch `number` of a rank. Items beyond the end are left out.
  std::vector<std::int64_t> of(std::int64_t number, int rank, int world) const {
    std::vector<std::int64_t> which;
    const std::int64_t first = (number * world + rank) * micro;
    for (std::int64_t i = first; i < std::min(first + micro, items.size()); ++i) which.push_back(i);
    return which;
  }
  std::int64_t rounds(int world) const {
    const std::int64_t each = micro * world;
    return (items.size() + each - 1) / each;
  }
};

/// Computes the log-probabilities of all answers, and sets them on all ranks. `step` is called before each
/// micro-batch.
void score(runtime::Instance& instance, runtime::Staging& staging, const Answers& answers,
           const std::function<void()>& step) {
  comm::Job& job = instance.job();
  std::vector<double> own;
  for (std::int64_t round = 0; round < answers.rounds(job.size()); ++round) {
    step();
    const runtime::HostBatch batch =
        feed::make_batch(answers.set, answers.items, answers.of(round, job.rank(), job.size()));
    if (batch.tokens() == 0) {
      instance.store().pass_by(instance.compute());
      continue;
    }
    instance.core().score_references(instance.store(), instance.compute(),
                                     staging.upload(instance.compute(), batch));
    staging.fetch_references(instance.compute(), batch.answers());
    instance.compute().synchronize();
    own.insert(own.end(), staging.host_references(), staging.host_references() + batch.answers());
  }
  instance.store().synchronize(instance.compute());
  const std::vector<std::string> all = job.all_gather_bytes(bytes_of_values(own));
  answers.set.references.assign(static_cast<std::size_t>(answers.set.documents()), 0.0);
  for (int rank = 0; rank < job.size(); ++rank) {
    const std::vector<double> values = values_of_bytes(all[static_cast<std::size_t>(rank)]);
    auto value = values.begin();
    for (std::int64_t round = 0; round < answers.rounds(job.size()); ++round) {
      for (const std::int64_t item : answers.of(round, rank, job.size())) {
        const auto i = static_cast<std::size_t>(item);
        for (std::int64_t j = answers.items.begins[i]; j < answers.items.begins[i + 1]; ++j) {
          const std::int64_t document = answers.items.documents[static_cast<std::size_t>(j)];
          answers.set.references[static_cast<std::size_t>(document)] = *value++;
        }
      }
    }
    check(value == values.end(), "every answer has one log-probability");
  }
}

/// `each`: answers of a row of the array.
checkpoint::Array array_of(const std::vector<double>& values, std::int64_t each) {
  return {.type = checkpoint::ArrayType::f64,
          .shape = {static_cast<std::int64_t>(values.size()) / each, each},
          .bytes = bytes_of_values(values)};
}

std::string hash_of_values(const checkpoint::ArraysFile& file) {
  std::string bytes;
  for (const auto& [name, array] : file.arrays) bytes += array.bytes;
  return hash128_hex(bytes);
}

}  // namespace

bool References::is_needed() const {
  return setup::precomputes_references(run_.config, run_.config, run_.config);
}

std::string References::folder() const {
  return run_.config.ref_model.value_or(run_.config.model_name_or_path);
}

void References::check_model() const {
  if (!is_needed() || !run_.config.ref_model) return;
  run_.job.together([&] {
    const model::Architecture architecture = runtime::read_model(folder());
    setup::require_writes_text(architecture, folder());
    runtime::require_weights(folder(), "name another folder in ref_model");
    const text::Tokenizer& own = parts_.encoder->tokenizer();
    if (path_exists(folder() + "/tokenizer.json"))
      require_same_tokens(own, text::Tokenizer::from_folder(folder()), folder());
    runtime::require_fit(own, architecture, folder());
  });
}

std::string References::key() const {
  const config::Config& config = run_.config;
  std::string words = parts_.corpus.training.fingerprint() + parts_.corpus.evaluation.fingerprint();
  for (const data::Encoded* set : {&parts_.corpus.training, &parts_.corpus.evaluation}) {
    if (set->mismatched) words += set->mismatched->fingerprint();
  }
  words += config::computes_in_bf16(config) ? " bf16 " : " fp32 ";
  words += has_random_weights() ? "seed " + std::to_string(config.seed)
                                : weights::WeightFolder(folder()).fingerprint();
  if (!config.ref_model && parts_.adapters.is_object()) {
    for (const char* of_base : {"added", "quantization_bit", "double_quantization"})
      words += " " + parts_.adapters.value(of_base, Json()).dump();
  }
  return hash128_hex(words + runtime::config_state(folder()).dump());
}

bool References::has_random_weights() const {
  return run_.config.train_from_scratch && !run_.config.ref_model;
}

runtime::InstanceOptions References::options() const {
  runtime::InstanceOptions options = sizing_.options();
  if (run_.config.ref_model) {
    options.architecture = runtime::read_model(*run_.config.ref_model);
    options.added.clear();
    options.store.fixed = {};
  }
  options.architecture.tuning = {};
  options.adapter.clear();
  options.adapters_off_reference = options.snapshot = options.memory_checkpoints = false;
  options.expert_size = 1;
  options.token_unit = 1;
  options.store.training = options.store.error_feedback = false;
  options.store.recipe = {.compute = options.store.recipe.compute};
  model::TransformerOptions& core = options.transformer;
  // Reserves buffers of one block, and keeps the kernels of training.
  core.recompute = model::Recompute::full;
  core.router_z_loss = core.expert_capacity = core.embedding_noise = 0;
  core.given_experts = false;
  return options;
}

bool References::read() {
  std::string bytes;
  run_.job.together([&] {
    if (!run_.prints()) return;
    key_ = key();
    if (path_exists(path())) bytes = read_file(path());
  });
  // All ranks compare the same bytes, so that they agree.
  key_ = run_.job.broadcast(key_, 0);
  bytes = run_.job.broadcast(bytes, 0);
  if (bytes.empty()) return false;
  try {
    const checkpoint::ArraysFile file = checkpoint::read_arrays_file(bytes, path());
    const auto key_of_file = file.texts.find("key");
    if (key_of_file == file.texts.end() || key_of_file->second != key_) return false;
    const auto values = file.texts.find("values");
    if (values == file.texts.end() || values->second != hash_of_values(file)) {
      if (run_.prints()) log::warn(path() + " is damaged and is computed again");
      return false;
    }
    const auto take = [&](const std::string& name, data::Encoded& set) {
      if (set.documents() == 0) return true;
      const auto array = file.arrays.find(name);
      if (array == file.arrays.end() || array->second.type != checkpoint::ArrayType::f64) return false;
      set.references = values_of_bytes(array->second.bytes);
      return static_cast<std::int64_t>(set.references.size()) == set.documents();
    };
    const auto take_all = [&](const std::string& name, data::Encoded& set) {
      return take(name, set) && (!set.mismatched || take(name + kMismatched, *set.mismatched));
    };
    return take_all("training", parts_.corpus.training) && take_all("evaluation", parts_.corpus.evaluation);
  } catch (const Error& e) {
    if (run_.prints()) log::warn(path() + " is computed again: " + e.problem().what);
    return false;
  }
}

void References::write() const {
  run_.job.together([&] {
    if (!run_.prints()) return;
    checkpoint::ArraysFile file;
    const auto put = [&](const std::string& name, const data::Encoded& set) {
      if (set.documents() == 0) return;
      file.arrays[name] = array_of(set.references, set.mismatched ? 1 : 2);
      if (set.mismatched) file.arrays[name + kMismatched] = array_of(set.mismatched->references, 1);
    };
    put("training", parts_.corpus.training);
    put("evaluation", parts_.corpus.evaluation);
    file.texts = {{"key", key_}, {"reference", folder()}, {"values", hash_of_values(file)}};
    make_folders(run_.config.output_dir);
    write_file_atomically(path(), checkpoint::arrays_file_bytes(file));
  });
}

void References::compute() {
  const auto start = Clock::now();
  for (data::Encoded* set : {&parts_.corpus.training, &parts_.corpus.evaluation}) {
    set->references.clear();
    if (set->mismatched) set->mismatched->references.clear();
  }
  const bool judged = setup::trains_judged(run_.config);
  const std::int64_t answers = parts_.corpus.training.documents() + parts_.corpus.evaluation.documents();
  if (run_.prints())
    log::info("computing the log-probabilities of " +
              (judged ? with_commas(answers) + " judged answers" : with_commas(answers / 2) + " pairs") +
              " with the reference " + folder());
  runtime::Instance instance(run_.session.device(), run_.job, run_.session.data(), options());
  runtime::Staging staging(instance.arena(), {.tokens = instance.options().transformer.max_tokens,
                                              .documents = instance.options().max_documents,
                                              .length = instance.options().transformer.max_length,
                                              .vocabulary = instance.options().architecture.vocabulary,
                                              .pairs = !judged,
                                              .judged = judged});
  if (has_random_weights()) {
    instance.initialise(static_cast<std::uint64_t>(run_.config.seed));
  } else {
    instance.load_weights(folder());
  }
  instance.arena().seal();
  const auto step = [&] { run_.begins_once("the log-probabilities of the reference"); };
  const std::int64_t micro = parts_.batch.micro;
  const auto score_all = [&](data::Encoded& set, const data::Items& items, std::int64_t each) {
    score(instance, staging, {set, items, each}, step);
    if (set.mismatched) score(instance, staging, {*set.mismatched, items, each}, step);
  };
  score_all(parts_.corpus.training, parts_.corpus.training_items, micro);
  score_all(parts_.corpus.evaluation, parts_.corpus.evaluation_items,
            config::evaluation_batch(run_.config, micro));
  if (run_.prints())
    log::debug("the log-probabilities of the reference took " +
               std::to_string(static_cast<std::int64_t>(seconds_since(start))) + " s");
}

void References::prepare() {
  if (!is_needed()) return;
  if (read()) {
    if (run_.prints()) log::debug("log-probabilities of the reference are taken from " + path());
    return;
  }
  compute();
  write();
}

}  // namespace octet::train
