// The rows that a rank is answering: what is asked for each, what comes back, and the lines that become of
// it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "generate/answerer.h"
#include "generate/extraction.h"
#include "generate/generate_options.h"
#include "generate/journal.h"
#include "generate/rows.h"
#include "octet/base/error.h"

namespace octet::cli {

class RowWork {
 public:
  /// Throws Error (usage) for a prompt file without {text} and a wrong pattern.
  RowWork(Answerer& answerer, const QuestionFile& file, const GenerateOptions& options);
  ~RowWork();

  /// Rows to begin now: those that find a place, and as many to follow as were done since the last call of
  /// take_done(), so that no place is empty until the next.
  std::int64_t room() const;
  bool has_done() const { return !done_.empty(); }
  bool busy() const { return !open_.empty(); }
  /// A row that cannot be read or asked has failed at once.
  void begin(std::int64_t row);
  /// One pass of the model. Rows that are done, failed ones included, go to `done`.
  void step();

  struct Done {
    std::int64_t row = 0;
    RowResult result;
    bool judged = false, right = false;  ///< the file gives an answer; it is the model's
    double rouge_l = 0;                  ///< of it and the model's
    std::int64_t attempts = 0;
  };
  std::vector<Done> take_done();

  /// The text that is put around each row's own; "" without one.
  const std::string& prompt_text() const { return prompt_text_; }

 private:
  struct Row {
    std::int64_t number = 0;
    Question question;
    std::vector<std::int32_t> prompt;
    std::vector<std::optional<Said>> said;  ///< by sample
    std::int64_t missing = 0;               ///< samples that are not there yet
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
  std::int64_t lately_ = 0;  ///< rows that the last take_done() gave
};

}  // namespace octet::cli
