#include "octet/train/model_folder.h"

#include "octet/base/error.h"
#include "octet/checkpoint/safetensors.h"

namespace octet::train {

model::Architecture read_model(const std::string& folder) {
  model::Architecture architecture = model::read_architecture(folder);
  if (!architecture.multimodal || !checkpoint::WeightFolder::exists(folder)) return architecture;
  const checkpoint::WeightFolder weights(folder);
  model::name_tensors(architecture, [&](const std::string& name) { return weights.find(name) != nullptr; });
  return architecture;
}

void require_fit(const text::Tokenizer& tokenizer, const model::Architecture& architecture,
                 const std::string& folder) {
  if (tokenizer.vocab_size() <= architecture.vocabulary) return;
  throw Error(
      {.what = "the tokenizer does not fit the model",
       .expected = "at most " + std::to_string(architecture.vocabulary) + " tokens, the model's vocab_size",
       .found = std::to_string(tokenizer.vocab_size()) + " tokens",
       .where = folder,
       .fix = "use the tokenizer that belongs to the model, and a template whose tokens it has",
       .code = ExitCode::usage});
}

}  // namespace octet::train
