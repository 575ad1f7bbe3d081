// Reads questions from the rows of a file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "octet/answers/generate_options.h"
#include "octet/base/json.h"
#include "octet/data/dataset.h"

namespace octet::answers {

/// A question, with the reference answer of the file, if any.
struct Question {
  std::vector<data::Turn> turns;  ///< up to and including the question
  std::string system, tools;
  std::optional<bool> enable_thinking;  ///< the row's own choice
  std::string answer;
  std::string thought;  ///< of the answer
  bool has_answer = false;
  bool plain = false;                    ///< text to continue or to score, without a template
  std::vector<std::int32_t> prompt_ids;  ///< replaces all fields above if the row gives ids
  const std::string& text() const { return turns.back().content; }
};

Question ask(const std::string& text, const std::string& system);

/// Rows of a file (or of a shard of it) in any format of training data, in file order. The rows are:
/// - conversations with or without an answer at the end;
/// - questions ({"prompt": …}, {"question": …}, {"text": …}, or a line of a .txt file);
/// - ids ({"prompt_ids": […]}).
class QuestionFile {
 public:
  /// Throws Error for a missing file and for a file without rows.
  QuestionFile(const std::string& path, const Shard& shard);
  std::int64_t size() const { return last_ - first_; }
  /// Returns the number of a row in the whole file, which selects the random numbers of its answer.
  std::uint64_t number(std::int64_t i) const { return static_cast<std::uint64_t>(first_ + i); }
  std::string where(std::int64_t i) const { return rows_->where(first_ + i); }
  /// Reads a row. Throws Error that names file and line if the row cannot be read or is no question.
  Question read(std::int64_t i) const;
  /// Reads a row with its answer, or a row with a chosen and a rejected answer, in this order. Throws Error
  /// like read(), and for a row without an answer.
  std::vector<Question> answers(std::int64_t i) const;
  /// Returns a hash of the content of a row, or of its position if it cannot be read.
  std::string hash(std::int64_t i) const;

 private:
  std::unique_ptr<data::RowReader> rows_;
  std::int64_t first_ = 0, last_ = 0;
};

}  // namespace octet::answers
