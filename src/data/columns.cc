// Which columns of a data set are read.
#include <algorithm>
#include <map>
#include <set>

#include "fields.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/data/dataset.h"
#include "values.h"

namespace octet::data {
namespace {

constexpr std::int64_t kMostRows = 100;

bool holds_text(const Json& value) {
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return value.is_structured() &&
         std::ranges::any_of(value, [](const Json& item) { return holds_text(item); });
}

void add_message_fields(const Json& row, const RowFormat& format, std::set<std::string>& fields) {
  if (format.kind != RowFormat::Kind::sharegpt && format.kind != RowFormat::Kind::openai) return;
  const Json* list = value_at(row, format.messages);
  if (!list || !list->is_array()) return;
  for (const Json& message : *list) {
    if (!message.is_object()) continue;
    for (const auto& [name, value] : message.items()) {
      if (!value.is_null() && is_read_message_field(name, format)) fields.insert(name);
    }
  }
}

}  // namespace

ColumnUse column_use(const DataSource& source) {
  const RowFormat& format = source.format;
  const std::set<std::string> named = named_columns(format);
  std::map<std::string, bool> texts;  // by column: whether one of its rows holds text
  std::set<std::string> fields;
  for (const auto& file : source.files) {
    for (std::int64_t i = 0; i < std::min(file->size(), kMostRows); ++i) {
      Json row;
      try {
        row = file->row(i);
      } catch (const Error&) {
        continue;  // counted and reported when the rows are encoded
      }
      if (!row.is_object()) continue;
      for (const auto& [name, value] : row.items()) texts[name] |= holds_text(value);
      add_message_fields(row, format, fields);
    }
  }
  ColumnUse use;
  use.message_fields = {fields.begin(), fields.end()};
  use.decides = std::ranges::any_of(fields, [&](const std::string& field) {
    return field != format.role_tag && field != format.content_tag;
  });
  for (const auto& [name, text] : texts) {
    const bool everywhere = format.kind != RowFormat::Kind::text && is_read_column(name);
    if (named.contains(name) || everywhere) {
      use.read.push_back(name);
      use.decides |= !named.contains(name);
    } else if (text && std::ranges::find(format.media, name) == format.media.end()) {
      use.unread_texts.push_back(name);
    }
  }
  return use;
}

}  // namespace octet::data
