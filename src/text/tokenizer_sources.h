// Tokens that the files beside tokenizer.json name. transformers 5 adds them when it opens a folder.
#pragma once

#include <string>

#include "added_tokens.h"
#include "bpe.h"
#include "octet/base/json_fwd.h"

namespace octet::text {

/// A token of `json`, an object with content and flags; `place` names it in messages. Throws Error for
/// another form.
AddedToken read_added_token(const Json& json, const std::string& place);

/// The roles of the folder's special tokens (bos_token and so on), as transformers 5 takes them: from
/// `config`, tokenizer_config.json, and from `map`, special_tokens_map.json, whose words count if `config`
/// has no added_tokens_decoder. Warns if the two differ.
Json effective_roles(const Json& config, const Json& map, const std::string& folder);

/// Adds the tokens that tokenizer.json lacks and another file has: added_tokens_decoder of `config`, else
/// added_tokens.json, then the special tokens of `roles`. A token gets the next free id, as in transformers;
/// a token of tokenizer.json keeps its id and takes the flags that added_tokens_decoder gives. Warns of every
/// difference. A special token that would lie behind the model's vocab_size is left out, and a warning says
/// so.
void add_listed_tokens(const Json& config, const Json& roles, const std::string& folder, const Bpe& bpe,
                       AddedTokens& added);

/// Warns if chat_template.jinja and tokenizer_config.json hold different chat templates.
void compare_chat_templates(const Json& config, const std::string& folder);

}  // namespace octet::text
