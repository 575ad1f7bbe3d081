#pragma once

#include <string>

#include "octet/text/chat_template.h"

namespace octet::text {

/// The chat template in Jinja, as transformers' apply_chat_template and servers read it from a model's folder
/// (chat_template.jinja): it writes conversations as `chat` does with these options (default_system,
/// tool_format, enable_thinking, preserve_thinking; checked before), tools and calls of them included.
/// Messages have the roles system (first), user, assistant (with tool_calls, or an answer) and tool. Where
/// `chat` has thoughts, those of earlier answers are left out (unless preserved, and without thinking those
/// of every answer), a last answer without one gets an empty one, and so does a question that is asked
/// without thinking: as the variable enable_thinking says, else as the options do. Tools without parameters
/// are written, too. bos_token and eos_token are those of the tokenizer that was prepared for it.
/// `tokenizer`: the one it is for, whose own blanks in front of texts are written where they are lost between
/// the parts of a conversation, which training gives to it one by one (Llama 2's puts such blanks). Null: it
/// puts none.
std::string jinja_of(const ChatTemplate& chat, const TemplateOptions& options = {},
                     const Tokenizer* tokenizer = nullptr);

}  // namespace octet::text
