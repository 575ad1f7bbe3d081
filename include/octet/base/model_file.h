// Typed values in the JSON files of a model folder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/json_fwd.h"

namespace octet {

/// Reads the JSON object in FOLDER/NAME, for instance "generation_config.json". Returns an empty object if
/// the file is absent. Throws Error (usage) for another value than an object, and as require_types().
Json read_model_file(const std::string& folder, const std::string& name);

/// Throws Error (usage) if a key of `object` has a value that transformers would not accept. The table in
/// model_file.cc lists keys and types by the name of the file. A null counts as an absent key. `where` is
/// the place in messages.
void require_types(const Json& object, std::string_view name, const std::string& where);

/// Returns the token ids of `key`: a number, or a list of numbers. Returns none if the key is absent or null.
/// The object has passed require_types().
std::vector<std::int32_t> token_ids(const Json& object, const std::string& key);

/// Returns the text of a special token: a string, or the `content` of an object. Returns "" if `key` is
/// absent or null. The object has passed require_types().
std::string token_text(const Json& object, const std::string& key);

}  // namespace octet
