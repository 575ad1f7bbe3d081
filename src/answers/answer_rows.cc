#include "answer_rows.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"

namespace octet::answers {
namespace {

// Adds an empty answer to a conversation that ends in a question, so that the converter accepts it.
bool add_answer(Json& row, const data::RowFormat& format) {
  const auto list = row.find(format.messages);
  if (list == row.end() || !list->is_array() || list->empty() || !list->back().is_object()) return false;
  const auto role = list->back().find(format.role_tag);
  if (role == list->back().end() || !role->is_string()) return false;
  const std::string turn = data::turn_of_role(format, role->get<std::string>());
  if (turn != "user" && turn != "observation") return false;
  list->push_back({{format.role_tag, format.assistant_tag}, {format.content_tag, ""}});
  return true;
}

std::optional<Question> question_alone(const Json& row) {
  if (!row.is_object()) return std::nullopt;
  for (const char* key : {"messages", "conversations", "instruction"}) {
    if (row.contains(key)) return std::nullopt;
  }
  const std::array<std::pair<const char*, std::vector<const char*>>, 4> pairs{
      {{"prompt", {"completion", "response"}},
       {"question", {"answer"}},
       {"input", {"target"}},
       {"user", {"assistant"}}}};
  for (const auto& [question, answers] : pairs) {
    const auto found = row.find(question);
    if (found == row.end() || !found->is_string()) continue;
    if (std::ranges::any_of(answers, [&](const char* answer) { return row.contains(answer); })) continue;
    return ask(found->get<std::string>(), row.value("system", ""));
  }
  return std::nullopt;
}

std::vector<std::int32_t> ids_of(const Json& list, const std::string& where) {
  std::vector<std::int32_t> ids;
  bool right = list.is_array();
  for (std::size_t i = 0; right && i < list.size(); ++i) {
    right = list[i].is_number_integer() && list[i] >= 0 && list[i] <= INT32_MAX;
    if (right) ids.push_back(list[i].get<std::int32_t>());
  }
  if (right) return ids;
  throw Error({.what = "'prompt_ids' is not a list of token ids",
               .found = list.dump().substr(0, 80),
               .where = where,
               .fix = "write whole numbers from 0 to 2147483647: {\"prompt_ids\": [1, 2]}",
               .code = ExitCode::usage});
}

/// Returns the question of a sample with its last answer, if the last turn is one.
Question question_of(data::Sample sample, bool unanswered) {
  Question question;
  question.plain = sample.plain;
  if (sample.plain) sample.turns = {{"user", sample.text}};
  question.turns = std::move(sample.turns);
  question.system = sample.system, question.tools = sample.tools;
  question.enable_thinking = sample.enable_thinking;
  if (question.turns.back().role == "assistant") {
    question.answer = question.turns.back().content;
    question.thought = question.turns.back().thought;
    question.has_answer = !unanswered;
    question.turns.pop_back();
  }
  return question;
}

[[noreturn]] void refuse_row(const std::string& why, const std::string& where) {
  throw Error({.what = why,
               .where = where,
               .fix = "correct or remove the row; docs/data.md shows the formats",
               .code = ExitCode::usage});
}

}  // namespace

Question ask(const std::string& text, const std::string& system) {
  Question question;
  question.turns.push_back({"user", text});
  question.system = system;
  return question;
}

QuestionFile::QuestionFile(const std::string& path, const Shard& shard) : rows_(data::open_rows(path)) {
  if (rows_->size() == 0)
    throw Error({.what = "there are no questions",
                 .expected = "one in each row",
                 .where = path,
                 .fix = "name a file with rows by --file",
                 .code = ExitCode::usage});
  first_ = rows_->size() * (shard.number - 1) / shard.of;
  last_ = rows_->size() * shard.number / shard.of;
}

Question QuestionFile::read(std::int64_t i) const {
  Json row = rows_->row(first_ + i);
  require_mapped_files();
  if (row.is_object() && row.contains("prompt_ids")) {
    Question question;
    question.prompt_ids = ids_of(row["prompt_ids"], where(i));
    return question;
  }
  if (auto alone = question_alone(row)) return *alone;
  const data::RowFormat format = data::detect_format(row, where(i));
  const bool unanswered = add_answer(row, format);
  std::string why;
  auto sample = data::convert_row(row, format, &why);
  if (!sample) refuse_row(why, where(i));
  return question_of(std::move(*sample), unanswered);
}

std::vector<Question> QuestionFile::answers(std::int64_t i) const {
  const Json row = rows_->row(first_ + i);
  if (!row.is_object() || !row.contains("chosen") || !row.contains("rejected")) {
    const bool judged =
        row.is_object() && !row.contains("prompt_ids") && (row.contains("label") || row.contains("kto_tag"));
    Question question;
    if (judged) {
      std::string why;
      auto sample = data::convert_row(row, data::detect_judged(row, where(i)), &why);
      if (!sample) refuse_row(why, where(i));
      question = question_of(std::move(*sample), false);
    } else {
      question = read(i);
    }
    if (!question.has_answer && !question.plain && question.prompt_ids.empty())
      refuse_row("the row has no answer to score", where(i));
    return {std::move(question)};
  }
  std::string why;
  auto sample = data::convert_row(row, data::detect_pairs(row, where(i)), &why);
  if (!sample) refuse_row(why, where(i));
  data::Sample rejected = *sample;
  rejected.turns.back() = *sample->rejected;
  return {question_of(std::move(*sample), false), question_of(std::move(rejected), false)};
}

std::string QuestionFile::hash(std::int64_t i) const {
  Json row;
  try {
    row = rows_->row(first_ + i);
  } catch (const Error& e) {
    if (e.code() == ExitCode::storage) throw;
    return hash128_hex("unreadable: " + where(i));
  }
  return hash128_hex(row.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace octet::answers
