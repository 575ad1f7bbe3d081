#include <map>

#include "jinja/python_text.h"
#include "octet/base/json.h"
#include "templates/template_row.h"

namespace octet::text {
namespace {

using Rows = std::map<std::string, std::shared_ptr<const ChatTemplate::Row>>;

Slots read_slots(const Json& row, const char* key, const Slots& fallback) {
  const auto it = row.find(key);
  if (it == row.end()) return fallback;
  Slots out;
  for (const auto& slot : *it) {
    if (slot.is_string()) {
      out.push_back({Slot::Kind::text, slot.get<std::string>()});
    } else {
      out.push_back({slot.at("token") == "bos" ? Slot::Kind::bos : Slot::Kind::eos, ""});
    }
  }
  return out;
}

ChatTemplate::Row read_row(const Json& json) {
  const std::string where = "the table of templates";
  const Slots content{{Slot::Kind::text, "{{content}}"}};
  ChatTemplate::Row out;
  out.name = json_string(json, "name", "", where);
  out.replace_eos = json_bool(json, "replace_eos", false, where);
  out.efficient_eos = json_bool(json, "efficient_eos", false, where);
  out.fuse_system = json_bool(json, "fuse_system", false, where);
  out.thinks = json_bool(json, "thinks", false, where);
  out.tool_format = json_string(json, "tool_format", "default", where);
  out.default_system = json_string(json, "default_system", "", where);
  Slots answer = content;
  if (!out.efficient_eos) answer.push_back({Slot::Kind::eos, ""});
  out.prefix = read_slots(json, "prefix", {});
  out.system = read_slots(json, "system", content);
  out.user = read_slots(json, "user", content);
  out.assistant = read_slots(json, "assistant", answer);
  out.observation = read_slots(json, "observation", out.user);
  out.function = read_slots(json, "function", out.assistant);
  if (json.contains("stop_words")) {
    for (const auto& word : json.at("stop_words")) out.stop_words.push_back(word.get<std::string>());
  }
  return out;
}

const Rows& rows() {
  static const Rows all = [] {
    Rows out;
    const Json table = parse_json(template_table(), "the table of templates");
    for (const auto& json : table.at("templates")) {
      auto row = std::make_shared<const ChatTemplate::Row>(read_row(json));
      out[row->name] = std::move(row);
    }
    return out;
  }();
  return all;
}

/// Returns the row for a name in LLaMA-Factory. Rows for vision-language models differ from others in their
/// images only.
std::string row_of(const std::string& name) {
  static const std::map<std::string, std::string> same{{"qwen3_vl", "qwen3"},
                                                       {"qwen3_vl_nothink", "qwen3_nothink"}};
  const auto found = same.find(name);
  return found == same.end() ? name : found->second;
}

}  // namespace

std::shared_ptr<const ChatTemplate::Row> find_row(const std::string& name) {
  const auto it = rows().find(row_of(name));
  return it == rows().end() ? nullptr : it->second;
}

Conversation trimmed(const ChatTemplate::Row& row, Conversation conversation) {
  if (row.trims.contains("system")) conversation.system = python::strip(conversation.system);
  for (Message& message : conversation.messages) {
    if (row.trims.contains(message.role)) message.content = python::strip(message.content);
    // In a message with tool calls, the text before the calls is the answer's content.
    if (message.role == "function" && row.trims.contains("assistant"))
      message.text = python::strip(message.text);
  }
  return conversation;
}

std::string row_words(const std::string& name) {
  const Json table = parse_json(template_table(), "the table of templates");
  std::string words = table.at("tool_formats").dump();
  for (const auto& json : table.at("templates")) {
    if (json_string(json, "name", "", "the table of templates") == name) words += json.dump();
  }
  return words;
}

std::vector<std::string> row_names() {
  std::vector<std::string> out;
  for (const auto& [name, row] : rows()) out.push_back(name);
  return out;
}

// Fields of a template:
// - `prefix`, `system`, `user`, `assistant`, `observation`, `function`: lists of slots. A slot is a string or
//   {"token": "bos" or "eos"}. Defaults: `prefix` is empty; `system` and `user` are only the content;
//   `assistant` is the content and an eos (no eos with `efficient_eos`); `observation` equals `user`;
//   `function` equals `assistant`.
// - `tool_format`: the format of tools and calls; default "default".
// - `default_system`: the system text of conversations without one.
// - `stop_words`: strings that end an answer. They are registered as special tokens.
// - `replace_eos`: the first stop word becomes the eos.
// - `efficient_eos`: one eos after the last turn instead of one per turn.
// - `fuse_system`: the system text is part of the first question.
// - `thinks`: answers have a thought, which may be empty.
//
// Fields of a tool format:
// - `prompt`: the text after the system text, with {{tools}}, {{names}}, {{date}}.
// - `tool`: each tool as JSON (`indent`, text `before` and `after`), as one JSON list, or as a description.
// - `call`: each call as text with {{name}} and {{arguments}}, or as a JSON object. `arguments` is the key of
//   the object's arguments. Calls are in a list "always", "when several" or "never". With "never", `before`,
//   `after` and `between` are texts around the calls.
namespace {

// clang-format off
constexpr std::string_view kTable = R"json(
{"tool_formats": [
  {
    "name": "default",
    "prompt": "You have access to the following tools:\n{{tools}}Use the following format if using a tool:\n```\nAction: tool name (one of [{{names}}])\nAction Input: the input to the tool, in a JSON format representing the kwargs (e.g. ```{\"input\": \"hello world\", \"num_beams\": 5}```)\n```\n",
    "tool": {"form": "description"},
    "call": {"form": "text", "text": "Action: {{name}}\nAction Input: {{arguments}}", "between": "\n"}
  },
  {
    "name": "llama3",
    "prompt": "Cutting Knowledge Date: December 2023\nToday Date: {{date}}\n\nYou have access to the following functions. To call a function, please respond with JSON for a function call. Respond in the format {\"name\": function name, \"parameters\": dictionary of argument name and its value}. Do not use variables.\n\n{{tools}}",
    "tool": {"form": "json", "indent": 4, "after": "\n\n"},
    "call": {"form": "json", "arguments": "parameters", "list": "when several"}
  },
  {
    "name": "mistral",
    "prompt": "[AVAILABLE_TOOLS] {{tools}}[/AVAILABLE_TOOLS]",
    "tool": {"form": "json list"},
    "call": {"form": "json", "arguments": "arguments", "list": "always"}
  },
  {
    "name": "qwen",
    "prompt": "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>{{tools}}\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>",
    "tool": {"form": "json", "before": "\n"},
    "call": {"form": "json", "arguments": "arguments", "list": "never", "before": "<tool_call>\n", "after": "\n</tool_call>", "between": "\n"}
  }
], "templates": [
  {
    "name": "alpaca",
    "user": ["### Instruction:\n{{content}}\n\n### Response:\n"],
    "assistant": ["{{content}}", {"token": "eos"}, "\n\n"],
    "default_system": "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
  },
  {
    "name": "chatml",
    "system": ["<|im_start|>system\n{{content}}<|im_end|>\n"],
    "user": ["<|im_start|>user\n{{content}}<|im_end|>\n<|im_start|>assistant\n"],
    "assistant": ["{{content}}<|im_end|>\n"],
    "observation": ["<|im_start|>tool\n{{content}}<|im_end|>\n<|im_start|>assistant\n"],
    "stop_words": ["<|im_end|>", "<|im_start|>"],
    "replace_eos": true
  },
  {
    "name": "deepseek",
    "prefix": [{"token": "bos"}],
    "system": ["{{content}}\n\n"],
    "user": ["User: {{content}}\n\nAssistant:"]
  },
  {
    "name": "deepseek3",
    "prefix": [{"token": "bos"}],
    "user": ["<｜User｜>{{content}}<｜Assistant｜>"]
  },
  {
    "name": "deepseekr1",
    "prefix": [{"token": "bos"}],
    "user": ["<｜User｜>{{content}}<｜Assistant｜>"],
    "thinks": true
  },
  {
    "name": "default",
    "system": ["System: {{content}}", {"token": "eos"}, "\n"],
    "user": ["Human: {{content}}", {"token": "eos"}, "\nAssistant:"],
    "assistant": ["{{content}}", {"token": "eos"}, "\n"]
  },
  {
    "name": "empty",
    "assistant": ["{{content}}"]
  },
  {
    "name": "gemma",
    "prefix": [{"token": "bos"}],
    "system": ["{{content}}\n\n"],
    "user": ["<start_of_turn>user\n{{content}}<end_of_turn>\n<start_of_turn>model\n"],
    "assistant": ["{{content}}<end_of_turn>\n"],
    "observation": ["<start_of_turn>tool\n{{content}}<end_of_turn>\n<start_of_turn>model\n"],
    "stop_words": ["<end_of_turn>"],
    "replace_eos": true,
    "fuse_system": true
  },
  {
    "name": "gemma2",
    "prefix": [{"token": "bos"}],
    "system": ["{{content}}\n\n"],
    "user": ["<start_of_turn>user\n{{content}}<end_of_turn>\n<start_of_turn>model\n"],
    "assistant": ["{{content}}<end_of_turn>\n"],
    "observation": ["<start_of_turn>tool\n{{content}}<end_of_turn>\n<start_of_turn>model\n"],
    "stop_words": ["<eos>", "<end_of_turn>"],
    "efficient_eos": true,
    "fuse_system": true
  },
  {
    "name": "gemma3",
    "prefix": [{"token": "bos"}],
    "system": ["{{content}}\n\n"],
    "user": ["<start_of_turn>user\n{{content}}<end_of_turn>\n<start_of_turn>model\n"],
    "assistant": ["{{content}}<end_of_turn>\n"],
    "observation": ["<start_of_turn>tool\n{{content}}<end_of_turn>\n<start_of_turn>model\n"],
    "stop_words": ["<end_of_turn>"],
    "replace_eos": true,
    "fuse_system": true
  },
  {
    "name": "llama2",
    "system": ["<<SYS>>\n{{content}}\n<</SYS>>\n\n"],
    "user": [{"token": "bos"}, "[INST] {{content}} [/INST]"],
    "fuse_system": true
  },
  {
    "name": "llama3",
    "prefix": [{"token": "bos"}],
    "system": ["<|start_header_id|>system<|end_header_id|>\n\n{{content}}<|eot_id|>"],
    "user": ["<|start_header_id|>user<|end_header_id|>\n\n{{content}}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"],
    "assistant": ["{{content}}<|eot_id|>"],
    "observation": ["<|start_header_id|>ipython<|end_header_id|>\n\n{{content}}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"],
    "tool_format": "llama3",
    "stop_words": ["<|eot_id|>", "<|eom_id|>"],
    "replace_eos": true
  },
  {
    "name": "ministral",
    "prefix": [{"token": "bos"}],
    "system": ["{{content}}\n\n"],
    "user": ["[INST]{{content}}[/INST]"],
    "observation": ["[TOOL_RESULTS]{\"content\": {{content}}}[/TOOL_RESULTS]"],
    "function": ["[TOOL_CALLS]{{content}}", {"token": "eos"}],
    "tool_format": "mistral",
    "fuse_system": true
  },
  {
    "name": "mistral",
    "prefix": [{"token": "bos"}],
    "system": ["{{content}}\n\n"],
    "user": ["[INST] {{content}}[/INST]"],
    "assistant": [" {{content}}", {"token": "eos"}],
    "observation": ["[TOOL_RESULTS] {\"content\": {{content}}}[/TOOL_RESULTS]"],
    "function": ["[TOOL_CALLS] {{content}}", {"token": "eos"}],
    "tool_format": "mistral",
    "fuse_system": true
  },
  {
    "name": "phi",
    "system": ["<|system|>\n{{content}}<|end|>\n"],
    "user": ["<|user|>\n{{content}}<|end|>\n<|assistant|>\n"],
    "assistant": ["{{content}}<|end|>\n"],
    "stop_words": ["<|end|>"],
    "replace_eos": true
  },
  {
    "name": "qwen",
    "system": ["<|im_start|>system\n{{content}}<|im_end|>\n"],
    "user": ["<|im_start|>user\n{{content}}<|im_end|>\n<|im_start|>assistant\n"],
    "assistant": ["{{content}}<|im_end|>\n"],
    "observation": ["<|im_start|>user\n<tool_response>\n{{content}}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"],
    "tool_format": "qwen",
    "default_system": "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
    "stop_words": ["<|im_end|>"],
    "replace_eos": true
  },
  {
    "name": "qwen3",
    "system": ["<|im_start|>system\n{{content}}<|im_end|>\n"],
    "user": ["<|im_start|>user\n{{content}}<|im_end|>\n<|im_start|>assistant\n"],
    "assistant": ["{{content}}<|im_end|>\n"],
    "observation": ["<|im_start|>user\n<tool_response>\n{{content}}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"],
    "tool_format": "qwen",
    "stop_words": ["<|im_end|>"],
    "replace_eos": true,
    "thinks": true
  },
  {
    "name": "qwen3_nothink",
    "system": ["<|im_start|>system\n{{content}}<|im_end|>\n"],
    "user": ["<|im_start|>user\n{{content}}<|im_end|>\n<|im_start|>assistant\n"],
    "assistant": ["{{content}}<|im_end|>\n"],
    "observation": ["<|im_start|>user\n<tool_response>\n{{content}}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"],
    "tool_format": "qwen",
    "stop_words": ["<|im_end|>"],
    "replace_eos": true
  },
  {
    "name": "vicuna",
    "user": ["USER: {{content}} ASSISTANT:"],
    "default_system": "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, and polite answers to the user's questions."
  }
]}
)json";
// clang-format on

}  // namespace

std::string_view template_table() {
  return kTable;
}

}  // namespace octet::text
