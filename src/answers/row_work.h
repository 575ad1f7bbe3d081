// The rows that a rank is answering: submits their samples, collects the answers and formats the output
// lines.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "answerer.h"
#include "extraction.h"
#include "journal.h"
#include "octet/answers/generate_options.h"
#include "octet/base/error.h"
#include "rows.h"

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
