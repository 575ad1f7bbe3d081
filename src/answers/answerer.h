// Answers questions with a model, its tokenizer and its template.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "answer_rows.h"
#include "model_source.h"
#include "octet/answers/generate_options.h"
#include "octet/generate/decoder.h"
#include "octet/runtime/routers.h"
#include "octet/runtime/session.h"
#include "octet/text/tokenizer.h"
#include "output_files.h"
#include "question_writer.h"

namespace octet::answers {

/// An answer as text.
struct Said {
  std::string text;
  generate::Answer answer;  ///< its ids may continue after a stop text cut `text`
};

class Answerer {
 public:
  /// Collective: all ranks of the job construct it. A folder without a tokenizer answers only rows of ids.
  /// `source` is the result of find_model() for options.model and options.adapter. `team`, which must outlive
  /// this object, is for models with split layers; only its leader answers (Decoder). Null: every rank has
  /// the whole model.
  Answerer(runtime::Session& session, generate::Team* team, const GenerateOptions& options,
           const ModelSource& source);
  ~Answerer();

  /// Returns the ids of a question as the template renders it. Throws Error (usage) if it cannot be rendered.
  std::vector<std::int32_t> prompt(const Question& question);
  /// Returns the ids of a question and its answer as training sees them. Plain text gives the ids that
  /// pre-training would use.
  std::vector<std::int32_t> whole(const Question& question) const { return writer_->whole(question); }

  /// Enqueues a question and returns its request number, which step() returns with the answer. `retry` counts
  /// the attempts after the first. Each retry raises the temperature by a tenth of its value and has other
  /// random numbers. Throws Error (usage) for a prompt that cannot be answered.
  std::size_t submit(const std::vector<std::int32_t>& prompt, std::uint64_t row, std::int64_t sample,
                     std::int64_t retry = 0);
  struct Finished {
    std::size_t request = 0;
    Said said;
  };
  std::vector<Finished> step();
  /// Answers a question and passes the text to `tell` while it is decoded.
  std::string answer(const Question& question, std::uint64_t row,
                     const std::function<void(const std::string&)>& tell);

  /// Returns the log-probabilities of the tokens of a text (Decoder::score).
  generate::Decoder::Score score(const std::vector<std::int32_t>& ids);

  generate::Decoder& decoder() { return *decoder_; }
  /// Whether questions are rendered by a chat template. Without a template their text is continued.
  bool chats() const { return writer_->chats(); }
  /// Ids that end answers.
  const std::vector<std::int32_t>& stop_ids() const { return answers_.stop_ids; }
  /// Returns all that answers depend on in addition to the question: the weights (known only on the rank that
  /// prints), and the tokenizer and template.
  std::string recipe() const;
  /// Number of most probable tokens in a score: the requested number, at most the vocabulary.
  std::int64_t best() const;
  /// Returns the routers of the model.
  runtime::Routers routers() const;
  /// Returns the attributes of a score file. The weights are known only on the rank that prints.
  ScoreSource score_source() const;

 private:
  struct Listener;

  GenerateOptions options_;
  ModelSource source_;
  generate::AnswerOptions answers_;
  std::string fingerprint_;
  std::optional<QuestionWriter> writer_;
  bool tells_;                    ///< this rank prints
  bool told_continuing_ = false;  ///< the note that text is continued was printed
  std::unique_ptr<generate::Decoder> decoder_;
  std::vector<std::unique_ptr<Listener>> listeners_;  ///< by request; null: it has ended
};

}  // namespace octet::answers
