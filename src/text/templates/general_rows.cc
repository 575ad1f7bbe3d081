// Templates for models of any family, and of the first families.
#include "templates/template_row.h"

namespace octet::text {
namespace {

// clang-format off
constexpr std::string_view kGeneralFormats = R"json([
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
])json";

constexpr std::string_view kGeneralRows = R"json([
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
])json";
// clang-format on

}  // namespace

TemplateTable general_rows() {
  return {kGeneralFormats, kGeneralRows};
}

}  // namespace octet::text
