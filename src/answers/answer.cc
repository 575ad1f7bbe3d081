#include "octet/answers/answer.h"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "answer_file.h"
#include "answer_rows.h"
#include "answerer.h"
#include "model_source.h"
#include "octet/answers/generate_options.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/config/config.h"
#include "octet/config/derive.h"
#include "octet/feed/corpus.h"
#include "octet/generate/team.h"
#include "octet/setup/model_options.h"
#include "octet/train/run_exports.h"
#include "reward_file.h"

namespace octet::answers {

// Answers questions of the command line and of standard input.

/// Prints the answers to options.questions while they are decoded. Without questions, runs a conversation in
/// a terminal. If standard input is not a terminal, each of its lines is a separate question.
void converse(Answerer& answerer, const GenerateOptions& options);

namespace {

std::string stream(Answerer& answerer, const Question& question, std::uint64_t number) {
  std::string text = answerer.answer(question, number, [](const std::string& piece) {
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  });
  std::printf("\n");
  return text;
}

void converse_with_input(Answerer& answerer, const GenerateOptions& o) {
  Question chat;
  chat.system = o.system;
  const bool terminal = ::isatty(STDIN_FILENO) != 0;
  std::uint64_t number = 0;
  std::string line;
  while (true) {
    if (terminal) std::fprintf(stderr, "> ");
    if (!std::getline(std::cin, line)) break;
    if (trim(line).empty()) continue;
    if (!terminal) chat.turns.clear();
    chat.turns.push_back({"user", line});
    chat.turns.push_back({"assistant", stream(answerer, chat, number++)});
  }
}

}  // namespace

void converse(Answerer& answerer, const GenerateOptions& o) {
  std::uint64_t number = 0;
  for (const std::string& question : o.questions) stream(answerer, ask(question, o.system), number++);
  if (o.questions.empty()) converse_with_input(answerer, o);
}

// Checks whether prompts are training rows of the model that answers.

/// Warns if prompts of an evaluated file are rows in the training data of the model's run. A model without
/// the configuration of its run is not checked. Missing training data gives a warning, not an Error.
void warn_of_trained_prompts(const GenerateOptions& options, const ModelSource& source);

namespace {

constexpr std::int64_t kMostRows = 200'000;  ///< training rows to compare; reading them takes a few seconds

/// Returns a hash of all that precedes the answer.
std::string question_hash(const std::vector<data::Turn>& turns, const std::string& system) {
  std::string words = system;
  for (const data::Turn& turn : turns) words += '\n' + turn.role + '\n' + turn.content;
  return hash128_hex(words);
}

std::string question_hash(const data::Sample& sample) {
  if (sample.plain) return question_hash({{"user", sample.text}}, "");
  return question_hash({sample.turns.begin(), sample.turns.end() - 1}, sample.system);
}

/// Returns the configuration of the run that trained the model, if it is known.
std::optional<config::Config> run_of(const ModelSource& source) {
  if (source.checkpoint) return source.run;
  std::vector<std::string> folders = source.adapters;
  folders.push_back(source.folder);
  for (const std::string& folder : folders) {
    const std::string path = folder + "/config.resolved.yaml";
    if (path_exists(path))
      return config::load_text(read_file(path), path, {}, {.for_training = false}).config;
  }
  return std::nullopt;
}

void compare(const GenerateOptions& options, const config::Config& run) {
  const QuestionFile file(options.file, options.shard);
  std::vector<std::string> questions;
  for (std::int64_t i = 0; i < file.size(); ++i) {
    try {
      const Question question = file.read(i);
      if (question.prompt_ids.empty()) questions.push_back(question_hash(question.turns, question.system));
    } catch (const Error& e) {
      if (e.code() == ExitCode::storage) throw;  // other errors are reported when the row is answered
    }
  }
  std::unordered_set<std::string> asked(questions.begin(), questions.end()), trained;
  const bool all = feed::visit_trained_rows(run, kMostRows, [&](const data::Sample& sample) {
    if (std::string hash = question_hash(sample); asked.contains(hash)) trained.insert(std::move(hash));
  });
  std::int64_t count = 0;
  for (const std::string& question : questions) count += trained.contains(question) ? 1 : 0;
  const std::string part =
      all ? "" : " (compared with the first " + with_commas(kMostRows) + " training rows)";
  if (count == 0) {
    if (!all) log::info("no prompt of " + options.file + " is a training row of the model's run" + part);
    return;
  }
  log::warn(with_commas(count) + " of " + with_commas(static_cast<std::int64_t>(questions.size())) +
            " prompts of " + options.file + " are rows that the model was trained on" + part +
            ": their share of right answers says nothing about new questions. Name a file of rows that are "
            "not in the training data");
}

}  // namespace

void warn_of_trained_prompts(const GenerateOptions& options, const ModelSource& source) {
  if (options.file.empty() || !(options.exact_match || options.rouge_l || options.score)) return;
  try {
    if (const auto run = run_of(source)) compare(options, *run);
  } catch (const Error& e) {
    log::warn("cannot tell whether prompts of " + options.file + " are training rows: " + e.problem().what +
              (e.problem().where.empty() ? "" : " (" + e.problem().where + ")") +
              ". Restore the training data of the run to compare them");
  }
}

namespace {

// Checks settings that are final only after the defaults of the model are read.
void require_possible(const GenerateOptions& o) {
  generate::require_possible(o.answers.sampling);
  if (o.retries > 0 && o.answers.sampling.temperature == 0) {
    throw Error({.what = "at temperature 0 every retry gives the same answer",
                 .expected = "a temperature above 0 with --retries",
                 .found = "--retries " + std::to_string(o.retries) + ", temperature 0",
                 .where = "command line",
                 .fix = "give --temperature, or leave out --retries",
                 .code = ExitCode::usage});
  }
  generate::Sampling hottest = o.answers.sampling;
  hottest.temperature *= 1.0 + kHotter * static_cast<double>(o.retries);
  if (hottest.temperature > generate::kHottest) {
    throw Error(
        {.what = "--retries makes the temperature too high",
         .expected = "at most " + std::to_string(std::lround(generate::kHottest)) + " in the last attempt",
         .found = std::to_string(std::llround(std::ceil(hottest.temperature))) + " after " +
                  with_commas(o.retries) + " retries",
         .where = "command line",
         .fix = "lower --retries or --temperature",
         .code = ExitCode::usage});
  }
}

// Runs on the ranks that answer: every rank, or the leaders of replicas with split layers.
void answer_all(runtime::Session& session, comm::Channel& ranks, Answerer& answerer, const GenerateOptions& o,
                std::chrono::steady_clock::time_point began) {
  if (!o.file.empty()) return answer_file(session, ranks, answerer, o, began);
  if (session.prints()) converse(answerer, o);
}

/// Returns the dtype that --dtype auto selects for a model.
DType compute_dtype(const ModelSource& source) {
  if (source.checkpoint != nullptr) return config::computes_in_bf16(source.run) ? DType::bf16 : DType::f32;
  return train::weights_dtype(source.folder) == DType::f32 ? DType::f32 : DType::bf16;
}

/// Returns the model as the command line names it.
std::string named_model(const GenerateOptions& o) {
  return o.adapter.empty() ? o.model : o.model + " --adapter " + o.adapter;
}

void require_scores(const ModelSource& source, const std::string& model) {
  if (source.architecture.scores) return;
  throw Error({.what = "--reward needs a reward model, but this model writes text",
               .expected = "a model that was trained with stage: rm",
               .found = model,
               .where = "command line",
               .fix = "name a reward model, or leave out --reward",
               .code = ExitCode::usage});
}

// Returns null if every rank has the whole model.
std::unique_ptr<generate::Team> team_of(runtime::Session& session, const GenerateOptions& o,
                                        const ModelSource& source) {
  const int tensor = o.tensor_parallel_size, stages = o.pipeline_parallel_size;
  if (tensor == 1 && stages == 1) return nullptr;
  session.job().together([&] { model::require_splits(source.architecture, tensor, stages); });
  return std::make_unique<generate::Team>(session.job(), session.device(), tensor, stages);
}

void tell_team(runtime::Session& session, generate::Team& team, const generate::Decoder& decoder) {
  const std::int64_t most = session.job().all_max(static_cast<std::int64_t>(decoder.arena().bytes()));
  const bool crosses = session.job().all_max(team.crosses_nodes() ? 1 : 0) == 1;
  if (!session.prints()) return;
  const model::Share& share = team.share();
  log::info("the model's layers are split among " + std::to_string(share.tensor_size) + " x " +
            std::to_string(share.stages) + " ranks; one rank reserves " + with_commas(most) +
            " bytes at most; " + std::to_string(team.replicas()) +
            (team.replicas() == 1 ? " replica answers" : " replicas answer"));
  if (crosses)
    log::warn(
        "tensor parallelism spans several nodes, so every layer sends messages between nodes: choose a "
        "tensor_parallel_size that divides the ranks of a node");
}

}  // namespace

int answer(runtime::Session& session, const GenerateCall& call) {
  GenerateOptions o = call.options;
  const auto began = std::chrono::steady_clock::now();
  ModelSource source;
  session.job().together([&] {
    source = find_model(o);
    if (session.prints() && !source.told().empty()) log::info(source.told());
    if (session.prints()) warn_of_trained_prompts(o, source);
    if (o.dtype_of_model) {
      o.dtype = compute_dtype(source);
      if (session.prints())
        log::info("--dtype auto: " + std::string(name_of(o.dtype)) + ", after the model's weights");
    }
    if (!call.model_defaults) return;
    const std::string taken = take_model_defaults(o, source.folder, call.given);
    if (session.prints() && !taken.empty()) {
      log::info("from generation_config.json: " + taken + " (--no-model-defaults leaves it out)");
    }
  });
  session.job().together([&] {
    require_possible(o);
    if (o.reward) {
      require_scores(source, named_model(o));
    } else {
      setup::require_writes_text(source.architecture, named_model(o));
    }
  });
  if (o.reward) {
    score_with_rewards(session, o, source);
    return 0;
  }
  const std::unique_ptr<generate::Team> team = team_of(session, o, source);
  Answerer answerer(session, team.get(), o, source);
  if (!team) {
    answer_all(session, session.job(), answerer, o, began);
    return 0;
  }
  tell_team(session, *team, answerer.decoder());
  return generate::lead_or_follow(*team, answerer.decoder(),
                                  [&] { answer_all(session, team->peers(), answerer, o, began); });
}

}  // namespace octet::answers
