// Parsed tokenizer.json: the small parts as JSON, the large parts as lists.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "octet/base/json.h"

namespace octet::text {

struct TokenizerJson {  // NOLINT(bugprone-exception-escape): its JSON may throw where it is copied
  Json root;            ///< without model.vocab and model.merges if these are an object and a list
  std::vector<std::pair<std::string, std::uint64_t>> vocab;
  std::vector<std::array<std::string, 2>> merges;  ///< from either spelling: "a b" or ["a", "b"]
  bool has_vocab = false, has_merges = false;
};

/// Parses tokenizer.json. Throws Error for broken JSON, repeated keys, nesting deeper than 64, and merges
/// that are not two pieces.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where);

/// Returns `text`, a valid JSON object, with the value of its top-level `key` replaced. All other bytes are
/// unchanged. An absent key is inserted at the front.
std::string with_json_value(std::string_view text, std::string_view key, std::string_view value);

}  // namespace octet::text
