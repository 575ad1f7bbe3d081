// The work on one row: it extracts the result from an answer, and writes the lines of the row.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "answer_rows.h"
#include "answerer.h"
#include "journal.h"
#include "octet/answers/generate_options.h"
#include "octet/base/error.h"

// Extracts a part of an answer: the first group of a regular expression.

namespace re2 {
class RE2;
}

namespace octet::answers {

class Extraction {
 public:
  /// `pattern` is in RE2 syntax and has at least one group. `allow` lists the accepted results; empty: all.
  /// Throws Error (usage) for an invalid pattern or a pattern without a group.
  Extraction(const std::string& pattern, const std::vector<std::string>& allow);
  ~Extraction();
  Extraction(Extraction&&) noexcept;
  /// Returns the first group of the last match in `answer`, trimmed. The last match counts because models
  /// reason first. Thoughts (<think>…</think>) are not searched. Returns nullopt if nothing matches or the
  /// result is not allowed.
  std::optional<std::string> operator()(const std::string& answer) const;

 private:
  std::unique_ptr<re2::RE2> pattern_;
  std::vector<std::string> allow_;
};

}  // namespace octet::answers

namespace octet::answers {

class RowWork {
 public:
  /// Throws Error (usage) for a prompt file without {text} and for an invalid pattern.
  RowWork(Answerer& answerer, const QuestionFile& file, const GenerateOptions& options);
  ~RowWork();

  /// Returns the number of rows to begin now: free slots, plus as many rows as the last take_done() returned.
  /// The additional rows keep all slots busy until the next call.
  std::int64_t room() const;
  bool has_done() const { return !done_.empty(); }
  bool busy() const { return !open_.empty(); }
  /// Begins a row. A row that cannot be read or rendered fails at once.
  void begin(std::int64_t row);
  /// Runs one pass of the model. Finished and failed rows are returned by take_done().
  void step();

  struct Done {
    std::int64_t row = 0;
    RowResult result;
    std::vector<std::string> routing;    ///< lines of --save-routing
    bool judged = false, right = false;  ///< judged: the file has an answer; right: it equals the model's
    double rouge_l = 0;                  ///< of the file's answer and the model's
    std::int64_t attempts = 0;
  };
  std::vector<Done> take_done();

  /// Returns the text of the prompt file; "" without one.
  const std::string& prompt_text() const { return prompt_text_; }

 private:
  struct Row {
    std::int64_t number = 0;
    Question question;
    std::vector<std::int32_t> prompt;
    std::vector<std::optional<Said>> said;  ///< by sample
    std::int64_t missing = 0;               ///< unfinished samples
    std::int64_t attempts = 0;
  };
  struct Ticket {
    std::int64_t row = 0, sample = 0, retry = 0;
  };

  void submit(Row& row, std::int64_t sample, std::int64_t retry);
  void fail(std::int64_t row, const std::string& why);
  void fail(std::int64_t row, const Error& error);
  void score(std::int64_t row);
  Question asked(const Question& question) const;
  std::string line(const Row& row, const Said& said) const;
  void finish(Row& row);

  Answerer& answerer_;
  const QuestionFile& file_;
  const GenerateOptions& options_;
  std::string prompt_text_;
  std::optional<Extraction> extraction_;
  std::map<std::int64_t, Row> open_;
  std::map<std::size_t, Ticket> tickets_;  ///< by request
  std::vector<Done> done_;
  std::int64_t lately_ = 0;  ///< number of rows that the last take_done() returned
};

}  // namespace octet::answers
