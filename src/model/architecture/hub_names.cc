#include "hub_names.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <utility>

#include "octet/model/shapes.h"

namespace octet::model {
namespace {

/// Beginnings of names on the hub, and of the shapes that these models have. They are replaced in this order.
constexpr auto kBeginnings = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"meta-llama-", "llama-"},
    {"hermes-3-llama-", "llama-"},
    {"deepseek-r1-distill-llama-", "llama-3.1-"},
    {"llama-3.3-70b", "llama-3.1-70b"},
    {"deepseek-r1-distill-qwen-1.5b", "r1-distill-qwen-1.5b"},
    {"deepseek-r1-distill-qwen-", "qwen2.5-"},
    {"deepseek-r1-0528-qwen3-", "qwen3-"},
    {"qwen2.5-coder-", "qwen2.5-"},
    {"qwen2.5-math-", "qwen2.5-"},
    {"qwen2-math-", "qwen2.5-"},
    {"qwen2-", "qwen2.5-"},
    {"qwq-32b", "qwen2.5-32b"},
    {"qwen3-coder-30b", "qwen3-30b"},
    {"mistral-7b-instruct-v", "mistral-7b-v"},
    {"mistral-7b-v0.3", "mistral-7b"},
    {"mistral-nemo-base", "mistral-nemo-12b"},
    {"mistral-nemo-instruct", "mistral-nemo-12b"},
    {"tinyllama_v1.1", "tinyllama-1.1b"},
    {"yi-6b", "yi-1.5-6b"},
    {"yi-9b", "yi-1.5-9b"},
    {"yi-34b", "yi-1.5-34b"},
});

/// Endings that do not change a shape.
constexpr auto kEndings = std::to_array<std::string_view>({
    "-instruct",
    "-it",
    "-chat",
    "-base",
    "-hf",
    "-pt",
    "-thinking",
    "-preview",
    "-coder",
    "-0125",
    "-0924",
    "-2407",
    "-2501",
    "-2507",
    "-v0.1",
    "-v1.0",
    "-v0.6",
    "-intermediate-step-1431k-3t",
});

struct Quantised {
  std::string_view ending, family, stored;
};

constexpr std::string_view kNf4 =
    R"({"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": true})";

constexpr auto kQuantised = std::to_array<Quantised>({
    {"-unsloth-bnb-4bit", "", kNf4},
    {"-bnb-4bit", "", kNf4},
    {"-fp8", "qwen3-", R"({"quant_method": "fp8", "weight_block_size": [128, 128]})"},
});

bool is_shape(const std::string& name) {
  const std::vector<std::string> names = shape_names();
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

bool is_name_on_hub(const std::string& text) {
  if (text.empty() || text.front() == '.' || text.front() == '/' || text.front() == '~') return false;
  return std::ranges::count(text, '/') <= 1 && text.back() != '/';
}

HubName name_on_hub(const std::string& name) {
  HubName found;
  std::string word = name;
  for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const auto& [from, to] : kBeginnings) {
    if (word.starts_with(from)) word = std::string(to) + word.substr(from.size());
  }
  for (const Quantised& format : kQuantised) {
    if (!found.stored.empty() || !word.ends_with(format.ending) || !word.starts_with(format.family)) continue;
    word.resize(word.size() - format.ending.size());
    found.stored = format.stored;
  }
  while (!is_shape(word)) {
    const auto ending =
        std::ranges::find_if(kEndings, [&](const std::string_view each) { return word.ends_with(each); });
    if (ending == kEndings.end()) return {};
    word.resize(word.size() - ending->size());
  }
  found.shape = word == "tiny" ? "" : word;
  return found;
}

}  // namespace octet::model
