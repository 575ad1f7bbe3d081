// Encodes single lines as training would, for comparisons with other programs.
#pragma once

#include <memory>
#include <string>

#include "octet/base/json.h"

namespace octet::data {

/// Encodes lines of JSON with one tokenizer and one template:
/// - {"text"}: ids, offsets, and the text of the ids;
/// - {"repeat": [text, count]}: ids of a long text;
/// - {"ids"}: the text of the ids;
/// - a row of a data set: ids and labels, or with "generate": true ids of the prompt and of the answer.
class LineEncoder {
 public:
  /// `template_name` is a template of the table or a file; "": the template of the table that renders like
  /// the chat template of `folder`. `date` replaces the current date in templates. Throws Error (usage) for a
  /// missing tokenizer or an unknown template.
  LineEncoder(const std::string& folder, const std::string& template_name, const std::string& date);
  ~LineEncoder();
  LineEncoder(const LineEncoder&) = delete;
  LineEncoder& operator=(const LineEncoder&) = delete;

  /// Returns what training would see of a line, or why it would refuse or drop the line. Throws Error (usage)
  /// that names `where` for a line in none of these forms.
  Json encode(const Json& line, const std::string& where);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace octet::data
