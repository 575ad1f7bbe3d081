// axolotl's dialect, in these files:
// - dialect_axolotl_keys.cc: the table of its keys;
// - dialect_axolotl_values.cc: conversions of single values;
// - dialect_axolotl_data.cc: its lists of data sets;
// - dialect_axolotl_tokens.cc: its special tokens;
// - dialect_axolotl.cc: keys that depend on each other, and defaults.
// Names and defaults are from axolotl 0.18.
#pragma once

#include "dialects/dialects.h"

namespace octet::config {

/// Throws Error for special_tokens that differ from the tokenizer of `model`, a folder or a name on the hub.
/// pad_token may be any token, because nothing is padded.
void require_own_tokens(const Fact& special_tokens, const std::string& model);

/// Resolves axolotl's facts, and applies its defaults.
void settle_axolotl(Sources& sources);

}  // namespace octet::config

namespace octet::config::axolotl {

/// Throws Error for an invalid value.
[[noreturn]] void wrong(const Node& node, const Location& at, const std::string& expected,
                        const std::string& fix = "give such a value, or remove the key");
/// Returns the text of a scalar; "" for a list, a map or null.
std::string word_of(const Node& node);
/// Whether the node is a scalar that means true.
bool is_on(const Node& node);
/// Whether the key is true. Throws Error if it is neither true nor false.
bool is_on(const Fact& fact);
/// Returns a list unchanged, and anything else as a list of one.
Node list_of(const Node& node);

/// Handlers for the table. Each converts the value of the key in its name.
void take_bf16(const Node& node, const Location& at, const Target& target);
void take_fp16(const Node& node, const Location& at, const Target& target);
void take_tf32(const Node& node, const Location& at, const Target& target);
void take_checkpointing(const Node& node, const Location& at, const Target& target);
void take_template(const Node& node, const Location& at, const Target& target);
void take_long_rows(const Node& node, const Location& at, const Target& target);
void take_special_tokens(const Node& node, const Location& at, const Target& target);
void take_reward_model(const Node& node, const Location& at, const Target& target);
void take_rl(const Node& node, const Location& at, const Target& target);
void take_plugins(const Node& node, const Location& at, const Target& target);
void take_datasets(const Node& node, const Location& at, const Target& target);
void take_test_datasets(const Node& node, const Location& at, const Target& target);

}  // namespace octet::config::axolotl
