#include "trained_prompts.h"

#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/config/config.h"
#include "octet/feed/trained_rows.h"
#include "rows.h"

namespace octet::answers {
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

}  // namespace octet::answers
