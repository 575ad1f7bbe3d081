// Files of models: what a file holds, and the cache of the Hugging Face hub.
#pragma once

#include <cstdint>
#include <functional>
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

// What Hugging Face's libraries have fetched to this machine: models and data sets by their names on the hub.
// Nothing is fetched here.

/// The text of an environment variable, "" where it is not set.
using VariableText = std::function<std::string(const char* name)>;

/// The folder of that cache: HF_HUB_CACHE or HUGGINGFACE_HUB_CACHE, else `hub` in HF_HOME, else
/// `huggingface/hub` in XDG_CACHE_HOME, else in `.cache` of HOME; "" where none of them is set.
std::string hub_folder(const VariableText& variable);
/// The same by the environment of this process.
std::string hub_folder();

enum class HubKind { model, dataset };

/// The folder of a snapshot in the cache `hub`: of a branch or tag as the cache last saw it, or of a commit.
/// "" where it is not there, and for names that are none of the hub's ("name" or "owner/name").
std::string hub_snapshot(const std::string& hub, HubKind kind, const std::string& name,
                         const std::string& revision = "main");

}  // namespace octet
