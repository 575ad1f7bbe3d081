#pragma once

#include <string>

#include "octet/text/chat_template.h"

namespace octet::text {

/// Returns a Jinja chat template for the folder of a model (chat_template.jinja). transformers'
/// apply_chat_template and servers read it. It writes conversations like `chat` with these checked options:
/// default_system, tool_format, enable_thinking, preserve_thinking. It also writes tools and tool calls.
///
/// Messages have the roles system (the first message only), user, assistant (with tool_calls, or an answer)
/// and tool. Tools without parameters are written, too. bos_token and eos_token must come from the prepared
/// tokenizer.
///
/// If `chat` has thoughts, thoughts of earlier answers are omitted unless preserved. Without thinking, the
/// thoughts of every answer are omitted. A last answer without a thought gets an empty thought. Without
/// thinking, an empty thought also follows the question. The variable enable_thinking selects thinking; its
/// default is the option.
///
/// `tokenizer`: training tokenises the parts of a conversation separately, and some tokenizers put a blank
/// before each text (Llama 2). The template then writes these blanks between parts. Null: no such blanks.
std::string jinja_of(const ChatTemplate& chat, const TemplateOptions& options = {},
                     const Tokenizer* tokenizer = nullptr);

}  // namespace octet::text
