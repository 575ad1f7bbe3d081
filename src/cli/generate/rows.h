// What is asked of a model, row by row of a file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "generate/generate_options.h"
#include "octet/base/json.h"
#include "octet/data/dataset.h"

namespace octet::cli {

/// A question, with the answer that a file gives, if any.
struct Question {
  std::vector<data::Turn> turns;  ///< up to and with the question
  std::string system, tools;
  std::optional<bool> enable_thinking;  ///< the row's own choice
  std::string answer;
  std::string thought;  ///< of the answer
  bool has_answer = false;
  bool plain = false;                    ///< a text to continue, or to score, without a template
  std::vector<std::int32_t> prompt_ids;  ///< in place of all the above, when the row gives ids
  const std::string& text() const { return turns.back().content; }
};

Question ask(const std::string& text, const std::string& system);

/// Rows of a file of any kind that is trained on, in its order, or those of its shard: conversations with or
/// without an answer behind, questions alone ({"prompt": …}, {"question": …}, {"text": …}, a line of a .txt),
/// and ids ({"prompt_ids": […]}).
class QuestionFile {
 public:
  /// Throws Error for a missing file, and one without rows.
  QuestionFile(const std::string& path, const Shard& shard);
  std::int64_t size() const { return last_ - first_; }
  /// Number of a row in the whole file: it names the random numbers of its answer.
  std::uint64_t number(std::int64_t i) const { return static_cast<std::uint64_t>(first_ + i); }
  std::string where(std::int64_t i) const { return rows_->where(first_ + i); }
  /// Throws Error naming file and line for a row that cannot be read or asked.
  Question read(std::int64_t i) const;
  /// Of all that the row holds; of one that cannot be read, of its place.
  std::string hash(std::int64_t i) const;

 private:
  std::unique_ptr<data::RowReader> rows_;
  std::int64_t first_ = 0, last_ = 0;
};

}  // namespace octet::cli
