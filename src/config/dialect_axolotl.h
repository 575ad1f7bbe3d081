// axolotl's dialect, in four files: the table of its keys (dialect_axolotl_keys.cc), what single values
// become (dialect_axolotl_values.cc), its list of data sets (dialect_axolotl_data.cc), and what several keys
// mean together, with the defaults that hold where nothing is said (dialect_axolotl.cc). Names and defaults
// are those of axolotl 0.18.
#pragma once

#include "dialects.h"

namespace octet::config {

/// Throws the Error for special_tokens that the tokenizer of `model`, a folder or a name of the hub, does not
/// have in these roles. Nothing is padded, so that pad_token may be any.
void require_own_tokens(const Fact& special_tokens, const std::string& model);

/// What axolotl's facts mean, and its defaults.
void settle_axolotl(Sources& sources);

}  // namespace octet::config

namespace octet::config::axolotl {

/// Throws the Error for a value that cannot be used.
[[noreturn]] void wrong(const Node& node, const Location& at, const std::string& expected,
                        const std::string& fix = "give such a value, or remove the key");
/// The text of a scalar; empty for a list, a map or null.
std::string word_of(const Node& node);
/// Whether it is a scalar that means true.
bool is_on(const Node& node);
/// Whether the key says true; throws the Error where it says neither true nor false.
bool is_on(const Fact& fact);
/// A list as it is, anything else as a list of one.
Node list_of(const Node& node);

/// For the table: each takes the value of the key that it is named after.
void take_bf16(const Node& node, const Location& at, const Target& target);
void take_fp16(const Node& node, const Location& at, const Target& target);
void take_tf32(const Node& node, const Location& at, const Target& target);
void take_checkpointing(const Node& node, const Location& at, const Target& target);
void take_template(const Node& node, const Location& at, const Target& target);
void take_long_rows(const Node& node, const Location& at, const Target& target);
void take_special_tokens(const Node& node, const Location& at, const Target& target);
void take_plugins(const Node& node, const Location& at, const Target& target);
void take_datasets(const Node& node, const Location& at, const Target& target);
void take_test_datasets(const Node& node, const Location& at, const Target& target);

}  // namespace octet::config::axolotl
