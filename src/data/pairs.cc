// Converts rows with a chosen and a rejected answer to samples.
#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "conversion.h"
#include "octet/base/json.h"
#include "octet/data/dataset.h"
#include "values.h"

namespace octet::data {
namespace {

// Whether an answer of a pair is a list of messages with the question.
bool has_question(const Json& answer) {
  if (!is_message_list(answer) || answer.size() < 2) return false;
  const Json& first = answer.front();
  const auto tag = text_at(first, first.contains("role") ? "role" : "from");
  RowFormat any;
  any.any_role = true;
  const std::string turn = turn_of_role(any, tag.value_or(""));
  return turn != "assistant" && turn != "function";
}

// Converts the question of a pair, with the answer in `column`.
Sample convert_answer(const Json& row, const RowFormat& format, const std::string& column, Noted& noted) {
  const Json& answer = row.at(column);
  RowFormat f = format;
  f.chosen = f.rejected = "";
  if (has_question(answer)) {
    f.kind = RowFormat::Kind::openai, f.any_role = true;
    f.messages = column;
    const bool sharegpt = answer.front().contains("from");
    f.role_tag = sharegpt ? "from" : "role", f.content_tag = sharegpt ? "value" : "content";
    return convert_messages(row, f, noted);
  }
  const bool messages = f.kind == RowFormat::Kind::sharegpt || f.kind == RowFormat::Kind::openai;
  if (messages) {
    Json list = value_at(row, f.messages) ? structure_of(row.at(f.messages), f.messages) : Json::array();
    if (!list.is_array())
      throw Unusable{"no list of messages in column '" + f.messages + "', which is " + kind_of(list)};
    if (answer.is_array()) {
      list.insert(list.end(), answer.begin(), answer.end());
    } else if (answer.is_object()) {
      list.push_back(answer);
    } else {
      list.push_back(Json{{f.role_tag, f.assistant_tag}, {f.content_tag, text_of(answer, column)}});
    }
    Json whole = row;
    whole[f.messages] = std::move(list);
    return convert_messages(whole, f, noted);
  }
  f.response = column;
  const Json* question = value_at(row, f.prompt);
  if (!answer.is_structured() && !(question && question->is_array())) return convert_pair(row, f, noted);
  f.kind = RowFormat::Kind::pair;
  if (const Json* query = value_at(row, f.query); question && query && !is_nothing(*query))
    throw Unusable{"'" + f.query + "' cannot be combined with messages in '" + f.prompt + "' or '" + column +
                   "': put its text into the question"};
  Json listed = row;
  if (answer.is_object()) listed[column] = Json::array({answer});
  return convert_pair(listed, f, noted);
}

}  // namespace

Sample convert_preference(const Json& row, const RowFormat& f, Noted& noted) {
  for (const auto& [column, name] : {std::pair{f.chosen, "chosen"}, {f.rejected, "rejected"}}) {
    if (!value_at(row, column))
      throw Unusable{std::string("no ") + name + " answer: column '" + column + "' " +
                     absence_of(row, column)};
  }
  const std::string thoughts = kThoughtFields[0];
  const Json* thought = value_at(row, thoughts);
  if (thought && !is_nothing(*thought)) {
    throw Unusable{"'" + thoughts +
                   "' is a column, but the row has two answers; put the thoughts into the answers"};
  }
  Sample sample = convert_answer(row, f, f.chosen, noted);
  const Sample other = convert_answer(row, f, f.rejected, noted);
  const auto same = [](const Turn& a, const Turn& b) {
    return a.role == b.role && a.content == b.content && a.thought == b.thought && a.text == b.text;
  };
  const auto questions = [](const Sample& of) { return std::span(of.turns).first(of.turns.size() - 1); };
  if (!std::ranges::equal(questions(sample), questions(other), same) || sample.system != other.system)
    throw Unusable{"the chosen and the rejected answer have different questions"};
  if (same(sample.turns.back(), other.turns.back()))
    throw Unusable{"the chosen and the rejected answer are equal"};
  sample.rejected = other.turns.back();
  return sample;
}

}  // namespace octet::data
