// A model, its tokenizer and its template, ready to answer.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "generate/generate_options.h"
#include "generate/model_source.h"
#include "generate/question_writer.h"
#include "generate/rows.h"
#include "generate/score_file.h"
#include "octet/generate/decoder.h"
#include "octet/runtime/session.h"
#include "octet/text/tokenizer.h"

namespace octet::cli {

/// An answer as text.
struct Said {
  std::string text;
  generate::Answer answer;  ///< its ids may go on behind the text where a stop text cut that
};

class Answerer {
 public:
  /// All ranks construct it together. A folder without a tokenizer answers rows of ids alone. `source`: what
  /// options.model and options.adapter stand for (find_model). `team`, which outlives this: of a model whose
  /// layers are split, of which the leader alone answers (Decoder); null: every rank has the whole model.
  Answerer(runtime::Session& session, generate::Team* team, const GenerateOptions& options,
           const ModelSource& source);
  ~Answerer();

  /// Ids of a question, as the template writes it. Throws Error (usage) where it cannot be written.
  std::vector<std::int32_t> prompt(const Question& question);
  /// Ids of a question and its answer as training sees them; of a plain text those that it is trained as.
  std::vector<std::int32_t> whole(const Question& question) const { return writer_->whole(question); }

  /// Takes a question into the queue; its number comes back with the answer. `retry` is one for a second
  /// attempt, and so on: a tenth hotter each, with random numbers of its own. Throws Error (usage) for what
  /// cannot be answered.
  std::size_t submit(const std::vector<std::int32_t>& prompt, std::uint64_t row, std::int64_t sample,
                     std::int64_t retry = 0);
  struct Finished {
    std::size_t request = 0;
    Said said;
  };
  std::vector<Finished> step();
  /// Answers at once, telling the text while it is made.
  std::string answer(const Question& question, std::uint64_t row,
                     const std::function<void(const std::string&)>& tell);

  /// Log-probabilities of a text's tokens (Decoder::score).
  generate::Decoder::Score score(const std::vector<std::int32_t>& ids);

  generate::Decoder& decoder() { return *decoder_; }
  /// Questions are written by a chat template; without one their text is continued.
  bool chats() const { return writer_->chats(); }
  /// Ids that end answers.
  const std::vector<std::int32_t>& stop_ids() const { return answers_.stop_ids; }
  /// What answers depend on beside the question's words: the weights (known on the rank that prints) and how
  /// words are written.
  std::string recipe() const;
  /// Most probable tokens that a score tells of: what was asked for, at most the vocabulary.
  std::int64_t best() const;
  /// What scores are made with. The weights are known on the rank that prints.
  ScoreSource score_source() const;

 private:
  struct Listener;

  GenerateOptions options_;
  ModelSource source_;
  generate::AnswerOptions answers_;
  std::string fingerprint_;
  std::optional<QuestionWriter> writer_;
  bool tells_;                    ///< this rank prints
  bool told_continuing_ = false;  ///< that text is continued
  std::unique_ptr<generate::Decoder> decoder_;
  std::vector<std::unique_ptr<Listener>> listeners_;  ///< by request; null: it has ended
};

}  // namespace octet::cli
