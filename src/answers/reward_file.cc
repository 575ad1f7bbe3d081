#include "reward_file.h"

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "answer_rows.h"
#include "journal.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/files/folder_lock.h"
#include "octet/runtime/instance.h"
#include "octet/runtime/model_folder.h"
#include "octet/runtime/staging.h"
#include "question_writer.h"

namespace octet::answers {
namespace {

runtime::InstanceOptions reward_options(const GenerateOptions& o, const ModelSource& source) {
  runtime::InstanceOptions options;
  options.architecture = source.architecture;
  options.trained = source.trained;
  options.added = source.added;
  options.store.recipe.compute = o.dtype;
  options.store.training = false;
  options.transformer.max_tokens = options.transformer.max_length = o.max_length;
  options.transformer.training = false;
  options.transformer.fixed_order = o.strict;
  options.transformer.judgement.emplace();  // counts each answer alone
  options.max_documents = o.batch;
  options.reproducible = true;
  return options;
}

/// The answers of some rows, as tokens.
struct Texts {
  std::vector<std::vector<std::int32_t>> ids;
  std::vector<std::size_t> of_row;  ///< number of answers of each row: 1 or 2
};

Texts read_rows(const QuestionFile& file, const QuestionWriter& writer, std::int64_t first,
                std::int64_t last) {
  Texts texts;
  for (std::int64_t i = first; i < last; ++i) {
    const std::vector<Question> answers = file.answers(i);
    texts.of_row.push_back(answers.size());
    for (const Question& answer : answers) {
      try {
        texts.ids.push_back(writer.whole(answer, true));
      } catch (const Error& e) {
        Problem problem = e.problem();
        if (problem.where.empty()) problem.where = file.where(i);
        throw Error(problem);
      }
      if (!texts.ids.back().empty()) continue;
      throw Error({.what = "a row has no tokens to score",
                   .expected = "a question and an answer",
                   .where = file.where(i),
                   .fix = "remove the row",
                   .code = ExitCode::usage});
    }
  }
  return texts;
}

/// Scores texts in micro-batches.
class Scorer {
 public:
  Scorer(runtime::Session& session, const GenerateOptions& o, const ModelSource& source)
      : options_(o),
        instance_(session.device(), session.job(), session.data(), reward_options(o, source)),
        staging_(instance_.arena(), {.tokens = instance_.options().transformer.max_tokens,
                                     .documents = instance_.options().max_documents,
                                     .length = instance_.options().transformer.max_length,
                                     .vocabulary = source.architecture.vocabulary,
                                     .judged = true}) {
    instance_.load_weights(source.folder);
    instance_.arena().seal();
  }

  std::vector<double> scores(const std::vector<std::vector<std::int32_t>>& texts) {
    std::vector<double> all;
    for (std::size_t next = 0; next < texts.size();) {
      runtime::HostBatch batch;
      const auto fits = [&] {
        return batch.judged < options_.batch &&
               batch.tokens() + std::ssize(texts[next]) <= options_.max_length;
      };
      for (; next < texts.size() && (batch.judged == 0 || fits()); ++next) {
        runtime::add_scored_document(batch, texts[next]);
        ++batch.judged;
        batch.desirable.push_back(1);
      }
      instance_.core().score_answers(instance_.store(), instance_.compute(),
                                     staging_.upload(instance_.compute(), batch), staging_.scores());
      staging_.fetch_scores(instance_.compute(), batch.judged);
      instance_.compute().synchronize();
      all.insert(all.end(), staging_.host_scores(), staging_.host_scores() + batch.judged);
    }
    return all;
  }

 private:
  const GenerateOptions& options_;
  runtime::Instance instance_;
  runtime::Staging staging_;
};

/// The lines of this rank, and the pairs among them.
struct Lines {
  std::string text;
  std::int64_t pairs = 0, right = 0;
};

Lines lines_of(const Texts& texts, const std::vector<double>& scores) {
  Lines lines;
  auto score = scores.begin();
  for (const std::size_t answers : texts.of_row) {
    Json line;
    if (answers == 1) {
      line["reward"] = *score++;
    } else {
      const double chosen = *score++, rejected = *score++;
      line = {{"chosen", chosen}, {"rejected", rejected}};
      ++lines.pairs;
      lines.right += chosen > rejected ? 1 : 0;
    }
    lines.text += line.dump() + "\n";
  }
  return lines;
}

/// Locks the file of rewards, so that a file that cannot be written is refused before rows are scored.
/// Returns null without --out.
std::unique_ptr<const files::FolderLock> locked_file(const GenerateOptions& o) {
  if (o.out.empty()) return nullptr;
  require_no_folder(o.out);
  if (o.overwrite || !path_exists(o.out)) return files::lock_output(o.out);
  throw Error({.what = "the file of rewards exists already",
               .expected = "a new file",
               .where = o.out,
               .fix = "name another file with --out, or give --overwrite",
               .code = ExitCode::usage});
}

}  // namespace

void score_with_rewards(runtime::Session& session, const GenerateOptions& o, const ModelSource& source) {
  comm::Job& job = session.job();
  Texts texts;
  std::int64_t rows = 0;
  std::unique_ptr<const files::FolderLock> lock;
  job.together([&] {
    if (session.prints()) lock = locked_file(o);
    const QuestionWriter writer(o, source);
    if (writer.has_tokenizer()) runtime::require_fit(writer.tokenizer(), source.architecture, source.folder);
    const QuestionFile file(o.file, o.shard);
    rows = file.size();
    texts = read_rows(file, writer, rows * job.rank() / job.size(), rows * (job.rank() + 1) / job.size());
  });
  Scorer scorer(session, o, source);
  const Lines own = lines_of(texts, scorer.scores(texts.ids));
  const std::vector<std::string> all = job.all_gather_bytes(own.text);
  const std::int64_t pairs = job.all_sum(own.pairs), right = job.all_sum(own.right);
  job.together([&] {
    if (!session.prints()) return;
    std::string text;
    for (const std::string& lines : all) text += lines;
    if (o.out.empty()) {
      std::fputs(text.c_str(), stdout);
    } else {
      write_file_atomically(o.out, text);
    }
    log::info(with_commas(rows) + " rows scored" +
              (pairs == 0 ? ""
                          : ", " + with_commas(right) + " of " + with_commas(pairs) +
                                " pairs with the larger reward for the chosen answer"));
  });
}

}  // namespace octet::answers
