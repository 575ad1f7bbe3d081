// Templates of further families, and their tool formats. LLaMA-Factory 0.9.5 has equal names and texts.
#include "templates/template_row.h"

namespace octet::text {
namespace {

// clang-format off
constexpr std::string_view kFamilyFormats = R"json([
  {
    "name": "glm4",
    "prompt": "你是一个名为 ChatGLM 的人工智能助手。你是基于智谱 AI 公司训练的语言模型 GLM-4 模型开发的，你的任务是针对用户的问题和要求提供适当的答复和支持。\n\n# 可用工具{{tools}}",
    "tool": {"form": "json", "as": "bare", "indent": 4, "before": "\n\n## {{name}}\n\n", "after": "\n在调用上述函数时，请使用 Json 格式表示调用的参数。"},
    "call": {"form": "text", "text": "{{name}}\n{{arguments}}", "most": 1}
  },
  {
    "name": "glm4_moe",
    "prompt": "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>{{tools}}\n</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n<arg_key>{arg-key-2}</arg_key>\n<arg_value>{arg-value-2}</arg_value>\n...\n</tool_call>\n",
    "tool": {"form": "json", "before": "\n"},
    "call": {"form": "parameters", "before": "\n<tool_call>{{name}}", "parameter": "\n<arg_key>{{key}}</arg_key>\n<arg_value>{{value}}</arg_value>", "between": "\n"}
  },
  {
    "name": "qwen3_5",
    "prompt": "\n\n# Tools\n\nYou have access to the following functions:\n\n<tools>{{tools}}\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n- Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within <tool_call></tool_call> XML tags\n- Required parameters MUST be specified\n- You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT after\n- If there is no function call available, answer the question like normal with your current knowledge and do not tell the user about function calls\n</IMPORTANT>",
    "tool": {"form": "json", "as": "bare", "before": "\n"},
    "call": {"form": "parameters", "before": "<tool_call>\n<function={{name}}>", "parameter": "\n<parameter={{key}}>\n{{value}}\n</parameter>", "after": "\n</function>\n</tool_call>", "between": "\n"}
  },
  {
    "name": "seed_oss",
    "prompt": "system\nYou are Doubao, a helpful AI assistant. You may call one or more functions to assist with the user query.Tool List:\nYou are authorized to use the following tools (described in JSON Schema format). Before performing any task, you must decide how to call them based on the descriptions and parameters of these tools.\n{{tools}}\n工具调用请遵循如下格式:\n<seed:tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>value_1</parameter>\n<parameter=example_parameter_2>This is the value for the second parameter\nthat can span\nmultiple lines</parameter>\n</function>\n</seed:tool_call>\n",
    "tool": {"form": "json list", "as": "given"},
    "call": {"form": "parameters", "before": "\n<seed:tool_call>\n<function={{name}}", "parameter": "\n<parameter={{key}}>{{value}}</parameter>", "after": "\n</function>\n</seed:tool_call>", "between": "\n"}
  },
  {
    "name": "phi4_mini",
    "prompt": "<|tool|>{{tools}}<|/tool|>",
    "tool": {"form": "raw", "as": "given"},
    "call": {"form": "text", "text": "Action: {{name}}\nAction Input: {{arguments}}", "between": "\n"}
  },
  {
    "name": "gemma4",
    "refused": "tools and calls cannot be written in the format of Gemma 4"
  }
])json";

constexpr std::string_view kFamilyRows = R"json([
  {
    "name": "cohere",
    "prefix": [{"token": "bos"}],
    "system": ["<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>{{content}}<|END_OF_TURN_TOKEN|>"],
    "user": ["<|START_OF_TURN_TOKEN|><|USER_TOKEN|>{{content}}<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"]
  },
  {
    "name": "deepseekcoder",
    "prefix": [{"token": "bos"}],
    "user": ["### Instruction:\n{{content}}\n### Response:"],
    "assistant": ["\n{{content}}\n<|EOT|>\n"],
    "default_system": "You are an AI programming assistant, utilizing the DeepSeek Coder model, developed by DeepSeek Company, and you only answer questions related to computer science. For politically sensitive questions, security and privacy issues, and other non-computer science questions, you will refuse to answer.\n"
  },
  {
    "name": "ernie",
    "system": ["<|im_start|>system\n{{content}}<|im_end|>\n\n"],
    "user": ["<|im_start|>user\n{{content}}<|im_end|>\n\n<|im_start|>assistant\n"],
    "assistant": ["{{content}}<|im_end|>\n\n"],
    "observation": ["<|im_start|>tool\n{{content}}<|im_end|>\n\n<|im_start|>assistant\n"],
    "default_system": "<global_setting>\nthink_mode=True\n</global_setting>",
    "stop_words": ["<|im_end|>"]
  },
  {
    "name": "ernie_nothink",
    "prefix": ["<|begin_of_sentence|>"],
    "system": ["{{content}}\n"],
    "user": ["User: {{content}}\nAssistant: "],
    "assistant": ["{{content}}<|end_of_sentence|>"],
    "stop_words": ["<|end_of_sentence|>"]
  },
  {
    "name": "exaone",
    "system": ["[|system|]{{content}}[|endofturn|]\n"],
    "user": ["[|user|]{{content}}\n[|assistant|]"],
    "assistant": ["{{content}}", {"token": "eos"}, "\n"]
  },
  {
    "name": "falcon",
    "user": ["User: {{content}}\nFalcon:"],
    "assistant": ["{{content}}\n"],
    "efficient_eos": true
  },
  {
    "name": "falcon_h1",
    "prefix": [{"token": "bos"}],
    "system": ["<|im_start|>system\n{{content}}<|im_end|>\n"],
    "user": ["<|im_start|>user\n{{content}}<|im_end|>\n<|im_start|>assistant\n"],
    "assistant": ["{{content}}<|im_end|>\n"],
    "observation": ["<|im_start|>tool\n{{content}}<|im_end|>\n<|im_start|>assistant\n"],
    "stop_words": ["<|im_end|>", "<|end_of_text|>"]
  },
  {
    "name": "gemma4",
    "prefix": [{"token": "bos"}],
    "system": ["<|turn>system\n<|think|>{{content}}<turn|>\n"],
    "user": ["<|turn>user\n{{content}}<turn|>\n<|turn>model\n"],
    "assistant": ["{{content}}<turn|>\n"],
    "observation": ["<|turn>tool\n{{content}}<turn|>\n<|turn>model\n"],
    "function": ["<|tool>{{content}}<tool|>"],
    "tool_format": "gemma4",
    "default_system": "You are a helpful assistant.",
    "stop_words": ["<turn|>"],
    "replace_eos": true,
    "thinks": true,
    "thought_words": ["<|channel>thought\n", "<channel|>"]
  },
  {
    "name": "glm4",
    "prefix": ["[gMASK]<sop>"],
    "system": ["<|system|>\n{{content}}"],
    "user": ["<|user|>\n{{content}}<|assistant|>"],
    "assistant": ["\n{{content}}"],
    "observation": ["<|observation|>\n{{content}}<|assistant|>"],
    "function": ["{{content}}"],
    "tool_format": "glm4",
    "stop_words": ["<|user|>", "<|observation|>"],
    "efficient_eos": true
  },
  {
    "name": "glmz1",
    "like": "glm4",
    "thinks": true
  },
  {
    "name": "glm4v",
    "like": "glmz1",
    "stop_words": ["<|user|>", "<|observation|>", "</answer>"]
  },
  {
    "name": "glm4_moe",
    "like": "glmz1",
    "tool_format": "glm4_moe"
  },
  {
    "name": "glm4_5v",
    "like": "glm4v",
    "tool_format": "glm4_moe"
  },
  {
    "name": "glm4_7",
    "like": "glm4_moe",
    "thought_words": ["<think>", "</think>"],
    "empty_thought": "</think>"
  },
  {
    "name": "gpt_oss",
    "system": ["<|start|>system<|message|>{{content}}<|end|>"],
    "user": ["<|start|>user<|message|>{{content}}<|end|><|start|>assistant"],
    "assistant": ["{{content}}"],
    "default_system": "You are ChatGPT, a large language model trained by OpenAI.",
    "efficient_eos": true,
    "thinks": true,
    "thought_words": ["<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"]
  },
  {
    "name": "granite3",
    "system": ["<|start_of_role|>system<|end_of_role|>{{content}}<|end_of_text|>\n"],
    "user": ["<|start_of_role|>user<|end_of_role|>{{content}}<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>"],
    "assistant": ["{{content}}<|end_of_text|>\n"]
  },
  {
    "name": "granite4",
    "like": "granite3",
    "observation": ["<|start_of_role|>tool<|end_of_role|>{{content}}<|end_of_text|>\n<|start_of_role|>assistant\n"],
    "default_system": "You are Granite, developed by IBM. You are a helpful AI assistant.",
    "stop_words": ["<|end_of_text|>"]
  },
  {
    "name": "hunyuan",
    "prefix": ["<|startoftext|>"],
    "system": ["{{content}}<|extra_4|>"],
    "user": ["{{content}}<|extra_0|>"],
    "assistant": ["{{content}}<|eos|>"],
    "stop_words": ["<|eos|>"]
  },
  {
    "name": "hunyuan_small",
    "prefix": ["<｜hy_begin▁of▁sentence｜>"],
    "system": ["{{content}}<｜hy_place▁holder▁no▁3｜>"],
    "user": ["<｜hy_User｜>{{content}}<｜hy_place▁holder▁no▁8｜>"],
    "assistant": ["{{content}}<｜hy_place▁holder▁no▁2｜>"],
    "stop_words": ["<｜hy_place▁holder▁no▁2｜>"]
  },
  {
    "name": "hy3",
    "prefix": [{"token": "bos"}],
    "user": ["<｜hy_User｜>{{content}}<｜hy_Assistant｜>"],
    "assistant": ["{{content}}<｜hy_eos｜>"],
    "stop_words": ["<｜hy_eos｜>"],
    "replace_eos": true,
    "thinks": true,
    "thought_words": ["<think>", "</think>"]
  },
  {
    "name": "llama4",
    "prefix": [{"token": "bos"}],
    "system": ["<|header_start|>system<|header_end|>\n\n{{content}}<|eot|>"],
    "user": ["<|header_start|>user<|header_end|>\n\n{{content}}<|eot|><|header_start|>assistant<|header_end|>\n\n"],
    "assistant": ["{{content}}<|eot|>"],
    "observation": ["<|header_start|>ipython<|header_end|>\n\n{{content}}<|eot|><|header_start|>assistant<|header_end|>\n\n"],
    "tool_format": "llama3",
    "stop_words": ["<|eot|>", "<|eom|>"],
    "replace_eos": true
  },
  {
    "name": "mistral_small",
    "prefix": [{"token": "bos"}],
    "system": ["[SYSTEM_PROMPT]{{content}}[/SYSTEM_PROMPT]"],
    "user": ["[INST]{{content}}[/INST]"],
    "observation": ["[TOOL_RESULTS]{\"content\": {{content}}}[/TOOL_RESULTS]"],
    "function": ["[TOOL_CALLS]{{content}}", {"token": "eos"}],
    "tool_format": "mistral"
  },
  {
    "name": "moonlight",
    "system": ["<|im_system|>system<|im_middle|>{{content}}<|im_end|>"],
    "user": ["<|im_user|>user<|im_middle|>{{content}}<|im_end|><|im_assistant|>assistant<|im_middle|>"],
    "assistant": ["{{content}}<|im_end|>"],
    "default_system": "You are a helpful assistant provided by Moonshot-AI.",
    "stop_words": ["<|im_end|>"],
    "replace_eos": true
  },
  {
    "name": "olmo",
    "prefix": [{"token": "eos"}],
    "user": ["<|user|>\n{{content}}<|assistant|>\n"]
  },
  {
    "name": "phi4",
    "system": ["<|im_start|>system<|im_sep|>{{content}}<|im_end|>"],
    "user": ["<|im_start|>user<|im_sep|>{{content}}<|im_end|><|im_start|>assistant<|im_sep|>"],
    "assistant": ["{{content}}<|im_end|>"],
    "stop_words": ["<|im_end|>"],
    "replace_eos": true
  },
  {
    "name": "phi4_mini",
    "system": ["<|system|>{{content}}<|end|>"],
    "user": ["<|user|>{{content}}<|end|><|assistant|>"],
    "assistant": ["{{content}}<|end|>"],
    "tool_format": "phi4_mini",
    "stop_words": ["<|end|>"],
    "replace_eos": true
  },
  {
    "name": "qwen2_vl",
    "like": "qwen",
    "default_system": "You are a helpful assistant."
  },
  {
    "name": "qwen3_5",
    "like": "qwen3",
    "tool_format": "qwen3_5"
  },
  {
    "name": "qwen3_5_nothink",
    "like": "qwen3_nothink",
    "tool_format": "qwen3_5"
  },
  {
    "name": "seed_coder",
    "system": [{"token": "bos"}, "system\n{{content}}", {"token": "eos"}],
    "user": [{"token": "bos"}, "user\n{{content}}", {"token": "eos"}, {"token": "bos"}, "assistant\n"],
    "default_system": "You are an AI programming assistant, utilizing the Seed-Coder model, developed by ByteDance Seed, and you only answer questions related to computer science. For politically sensitive questions, security and privacy issues, and other non-computer science questions, you will refuse to answer.\n\n"
  },
  {
    "name": "seed_oss",
    "like": "seed_coder",
    "function": [{"token": "bos"}, "\n{{content}}", {"token": "eos"}],
    "tool_format": "seed_oss",
    "default_system": "",
    "thinks": true,
    "thought_words": ["<seed:think>", "</seed:think>"]
  },
  {
    "name": "smollm",
    "system": ["<|im_start|>system\n{{content}}<|im_end|>\n"],
    "user": ["<|im_start|>user\n{{content}}<|im_end|>\n<|im_start|>assistant\n"],
    "assistant": ["{{content}}<|im_end|>\n"],
    "stop_words": ["<|im_end|>"]
  },
  {
    "name": "smollm2",
    "like": "smollm",
    "default_system": "You are a helpful AI assistant named SmolLM, trained by Hugging Face."
  },
  {
    "name": "starchat",
    "system": ["<|system|>\n{{content}}<|end|>\n"],
    "user": ["<|user|>\n{{content}}<|end|>\n<|assistant|>"],
    "assistant": ["{{content}}<|end|>\n"],
    "stop_words": ["<|end|>"]
  },
  {
    "name": "zephyr",
    "system": ["<|system|>\n{{content}}", {"token": "eos"}],
    "user": ["<|user|>\n{{content}}", {"token": "eos"}, "<|assistant|>\n"],
    "default_system": "You are Zephyr, a helpful assistant."
  }
])json";
// clang-format on

}  // namespace

TemplateTable family_rows() {
  return {kFamilyFormats, kFamilyRows};
}

}  // namespace octet::text
