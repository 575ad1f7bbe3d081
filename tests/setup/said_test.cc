// The trained parts of adapters and the messages on refused adapters, word by word.
#include <gtest/gtest.h>

#include <cstdio>

#include "model/support.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/config/config.h"
#include "octet/setup/adapters.h"
#include "support/page.h"

namespace octet::setup::said_test {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

/// Returns the trained parts of a model, and the written adapter_config.json.
std::string trained(const AdapterWish& wish, const model::Architecture& architecture) {
  const model::Tuning tuning = tuning_of(wish, architecture);
  std::string text;
  for (const auto& [name, shape] : tuning.modules) {
    text += name + ": rank " + std::to_string(shape.rank) + ", factor " + number(shape.factor) +
            ", dropout " + number(shape.dropout) + (shape.dora ? ", with magnitudes" : "") + "\n";
  }
  for (const std::string& name : tuning.whole) text += name + ": whole\n";
  if (tuning.output_rate != 1) text += "B at " + number(tuning.output_rate) + " times\n";
  Json written = adapter_config(wish, architecture, "base");
  for (const char* fixed : {"fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern",
                            "layers_to_transform", "revision", "base_model_name_or_path"})
    written.erase(fixed);
  return text + written.dump() + "\n";
}

// A question is an adapter_config.json, or keys of a configuration. "tied" before it: for a model with tied
// head and embedding.
TEST(Said, OfAdapters) {
  model::Architecture plain = model::read_architecture(model::testing::golden_folder("llama3"));
  plain.layers = 1;
  plain.blocks.resize(1);
  test::expect_page("setup/said/adapters.txt", [&](std::string question) {
    model::Architecture architecture = plain;
    architecture.tied = question.starts_with("tied ");
    if (architecture.tied) question = question.substr(5);
    try {
      if (question.starts_with("{") || question.starts_with("["))
        return trained(read_adapter_config(parse_json(question, "question"), "adapter_config.json"),
                       architecture);
      std::vector<std::string> words;
      for (const std::string& word : split(std::string(trim(question)), ' ')) words.push_back(word);
      words.push_back("finetuning_type=lora");
      const config::Config config =
          config::load_text("", "question", words, {.for_training = false, .environment = {}}).config;
      return trained(adapter_wish(config), architecture);
    } catch (const Error& error) {
      return std::string(error.what()) + "\nexit code " + std::to_string(static_cast<int>(error.code())) +
             "\n";
    }
  });
}

}  // namespace
}  // namespace octet::setup::said_test
