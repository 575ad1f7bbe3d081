// Tokens that other files than tokenizer.json name. transformers 5 adds them when it opens a folder.
#pragma once

#include <string>

#include "octet/base/json_fwd.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"

namespace octet::text {

/// Returns the token of `json`, an object with content and flags. `place` names it in messages. Throws Error
/// for another form.
AddedToken read_added_token(const Json& json, const std::string& place);

/// Returns the roles of the folder's special tokens (bos_token and so on), with the precedence of
/// transformers 5. They come from `config`, tokenizer_config.json. If it has no added_tokens_decoder, `map`,
/// special_tokens_map.json, takes precedence. `map` also gives the roles that `config` lacks. Warns if the
/// two differ.
Json effective_roles(const Json& config, const Json& map, const std::string& folder);

/// Adds the tokens that tokenizer.json lacks and another file has: added_tokens_decoder of `config`,
/// otherwise added_tokens.json, then the special tokens of `roles`. A token gets the next free id, as in
/// transformers. A token of tokenizer.json keeps its id and takes the flags of added_tokens_decoder. Warns
/// about every difference. A special token with an id beyond the model's vocab_size is skipped with a
/// warning.
void add_listed_tokens(const Json& config, const Json& roles, const std::string& folder, const Bpe& bpe,
                       AddedTokens& added);

/// Warns if chat_template.jinja and tokenizer_config.json hold different chat templates.
void compare_chat_templates(const Json& config, const std::string& folder);

}  // namespace octet::text
