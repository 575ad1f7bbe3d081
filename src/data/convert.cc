// Conversion of a row to a sample, as in LLaMA-Factory's converters.
#include <utility>

#include "fields.h"
#include "messages.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/data/dataset.h"
#include "values.h"

namespace octet::data {
namespace {

void add_history(const Json& row, const RowFormat& f, Sample& sample) {
  const Json* history = value_at(row, f.history);
  if (!history || *history == "") return;
  const Json pairs = structure_of(*history, f.history);
  for (const Json& pair : pairs) {
    if (!pairs.is_array() || !pair.is_array() || pair.size() != 2 || pair[0].is_null() || pair[1].is_null())
      throw Unusable{"'" + f.history + "' is not a list of [question, answer] pairs"};
    sample.turns.push_back({"user", text_of(pair[0], f.history)});
    sample.turns.push_back({"assistant", text_of(pair[1], f.history)});
  }
}

// Converts a row with a question column and an answer column.
Sample convert_pair(const Json& row, const RowFormat& f, Noted& noted) {
  const Json* question = value_at(row, f.prompt);
  const Json* query = value_at(row, f.query);
  const Json* response = value_at(row, f.response);
  if (!response) throw Unusable{"no answer: column '" + f.response + "' " + absence_of(row, f.response)};
  if (!question && !query)
    throw Unusable{"no question: column '" + f.prompt + "' " + absence_of(row, f.prompt)};
  Sample sample;
  if (f.kind == RowFormat::Kind::pair && ((question && question->is_array()) || response->is_array())) {
    if (const Json* history = value_at(row, f.history); history && !is_nothing(*history))
      throw Unusable{"'" + f.history + "' cannot be combined with messages in '" + f.prompt + "' or '" +
                     f.response + "': put the earlier turns into the messages"};
    sample = convert_message_pair(question ? *question : *query, *response, f, noted);
    Sample beside;
    read_columns_beside(row, f, beside, noted);
    if (sample.system.empty()) sample.system = beside.system;
    if (!beside.system.empty() && sample.system != beside.system) noted.insert(kOtherSystem);
    sample.tools = beside.tools;
    return sample;
  }
  add_history(row, f, sample);
  std::string text = question ? text_of(*question, f.prompt) : "";
  const std::string more = query ? text_of(*query, f.query) : "";
  if (!text.empty() && !more.empty()) text += "\n";
  text += more;
  sample.turns.push_back({"user", text});
  sample.turns.push_back({"assistant", text_of(*response, f.response)});
  read_columns_beside(row, f, sample, noted);
  return sample;
}

Sample convert_text(const Json& row, const RowFormat& f) {
  const auto text = text_at(row, f.prompt);
  if (!text) throw Unusable{"no text: column '" + f.prompt + "' " + absence_of(row, f.prompt)};
  Sample sample;
  sample.plain = true;
  sample.text = *text;
  return sample;
}

// A column of thoughts belongs to the only answer.
void add_thought(const Json& row, const RowFormat& f, Sample& sample) {
  const std::string column = kThoughtFields[0];
  const Json* value = value_at(row, column);
  if (!value || is_nothing(*value) || named_columns(f).contains(column)) return;
  Turn& answer = sample.turns.back();
  if (sample.turns.size() != 2 || !answer.thought.empty())
    throw Unusable{"'" + column +
                   "' is a column, but the row has several answers; put the thoughts into the messages"};
  answer.thought = text_of(*value, column, true);
  answer.thought_field = column;
}

// Returns the row's thinking flag, from the fields that verl and TRL use.
std::optional<bool> thinking_of(const Json& row, const RowFormat& f) {
  const std::string column = "enable_thinking", kwargs = "chat_template_kwargs";
  if (named_columns(f).contains(column)) return std::nullopt;
  std::optional<bool> thinks;
  if (const Json* value = value_at(row, column); value && *value != "") thinks = flag_of(*value, column);
  const Json* given = value_at(row, kwargs);
  if (!given || is_nothing(*given)) return thinks;
  const Json arguments = structure_of(*given, kwargs);
  if (!arguments.is_object()) throw Unusable{"'" + kwargs + "' is a list, not an object"};
  for (const auto& [name, value] : arguments.items()) {
    if (value.is_null()) continue;
    if (name != column)
      throw Unusable{"'" + name + "' in '" + kwargs + "' is not read; remove it or the row"};
    const bool flag = flag_of(value, kwargs + "." + column);
    if (thinks && *thinks != flag) throw Unusable{"'" + column + "' and '" + kwargs + "' differ"};
    thinks = flag;
  }
  return thinks;
}

Sample convert(const Json& row, const RowFormat& format, Noted& noted) {
  if (!row.is_object()) throw Unusable{"a row is not a JSON object"};
  for (const std::string& column : format.media) {
    const auto found = row.find(column);
    if (found == row.end() || found->is_null() || found->empty() || *found == "") continue;
    throw Unusable{"'" + column + "' holds images, audio or video, which are not trained"};
  }
  check_row_fields(row, format, noted);
  if (format.kind == RowFormat::Kind::text) return convert_text(row, format);
  const bool pair = format.kind == RowFormat::Kind::alpaca || format.kind == RowFormat::Kind::pair;
  Sample sample = pair ? convert_pair(row, format, noted) : convert_messages(row, format, noted);
  add_thought(row, format, sample);
  sample.enable_thinking = thinking_of(row, format);
  return sample;
}

}  // namespace

std::optional<Sample> convert_row(const Json& row, const RowFormat& format, std::string* why,
                                  RowNotes* notes) {
  Noted noted;
  try {
    Sample sample = convert(row, format, noted);
    for (const std::string& note : noted) {
      if (notes) ++(*notes)[note];
    }
    return sample;
  } catch (const Unusable& unusable) {
    if (why) *why = unusable.why;
    return std::nullopt;
  }
}

}  // namespace octet::data
