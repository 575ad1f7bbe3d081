// docs/models.md, written from the descriptions of families.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "../src/model/architecture/families.h"
#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/model/shapes.h"

namespace octet::model::models_page_test {
namespace {

constexpr const char* kBegin = R"(# Models

Octet trains these families of models, and `trainer generate` runs them. Each family is compared with `transformers`:
logits, loss, gradients, optimizer steps, packed documents, answers and adapters of small models. `model_type` is a key
of the model's `config.json`.

`trainer plan`, `bench` and `lint` know the shapes by their names here, and by the names of models on the Hugging Face
hub.

| `model_type` | class | blocks | shapes |
|---|---|---|---|
)";

constexpr const char* kMissing = R"(
## Not built

| `model_type` | missing |
|---|---|
)";

constexpr const char* kEnd = R"(
## Differences from transformers

- Published files of `granite`, `seed_oss` and `starcoder2` have dropout. Octet trains without it.
- With `longrope`, the length of each document selects its frequencies. In `transformers`, the longest row of a batch
  decides. With a KV cache, `--max-length` above the original length selects the frequencies of long documents.
- `dynamic` without `alpha` refuses documents longer than `max_position_embeddings`.
- `olmo2`, `olmo3` and `olmoe` cannot be divided with `--tensor-parallel-size`.
- `qwen3_next`, `qwen3_5` and `qwen3_5_moe` cannot be divided with it either. Their answers are not strict
  (`deterministic: strict`). Prompts with a common beginning are computed separately. Modules `mtp` are not trained.
  In `transformers` on a CPU, packed documents of these families see each other; in Octet, they do not.
- `deepseek_v2`, `deepseek_v3`, `kimi_k2` and `glm4_moe_lite` cannot be divided with `--tensor-parallel-size`. Their KV
  cache holds expanded keys and values, padded to the width of keys: 96 KiB per token and block of DeepSeek-V3 in bf16.
  The latents of `transformers` take 1.1 KiB.
- Attention of these families computes the padding, too. For keys of 192 and values of 128 dimensions, it needs 1.2
  times the operations in forward, and 1.15 times in backward. GLM-4.7-Flash has no padding.
- `kimi_k2` is read as `deepseek_v3`; `transformers` has no class of this name. Moonlight and Kimi-K2 are published
  without a `tokenizer.json`, which Octet needs.
- Of `gemma4`, dense models without per-layer inputs are trained, as the 31B is. E2B and E4B (per-layer inputs, layers
  that share keys and values) and 26B-A4B (experts next to MLPs) are refused.
- Attention on GPUs has heads of up to 256 dimensions. Gemma 4 31B has heads of 512, so plans and runs on GPUs refuse
  it; CPUs have no limit.
- Pages of the KV cache of `gemma4` have room for both sizes of heads, and each page is used for one. Gemma 4 31B uses
  two thirds of a page for layers with windows, and one third for the others.
- `cohere2` and `starcoder2` (layer norm), and `starcoder2` and `apertus` (no gate) decode without the fused kernels.
- Only the text model of a [vision-language model](vision.md) is trained. [Mixtures of experts](experts.md) has the details of mixtures.
)";

std::string blocks_of(const Family& family) {
  if (!family.text_model.empty()) return "as its text model";
  const std::vector<std::pair<bool, const char*>> parts = {
      {family.experts, "mixture of experts"},
      {family.shared_expert || family.sigmoid_router || family.softmax_router, "shared experts"},
      {family.latents, "multi-head latent attention"},
      {family.delta_rule, "Gated DeltaNet (linear attention)"},
      {family.output_gate, "attention with gated outputs"},
      {family.layer_norm, "layer norm"},
      {!family.input_norms, "norms after attention and MLP"},
      {family.input_norms && family.sublayer_norms, "norms before and after attention and MLP"},
      {family.parallel, "attention and MLP in parallel"},
      {!family.gated, "MLP without a gate"},
      {family.qk_norm || !family.qk_norm_key.empty(), "norms of queries and keys"},
      {family.window != WindowRule::none, "sliding windows"},
      {family.heads_by_layer, "heads that differ between layers"},
      {family.partial_rotary, "rotation of a part of each head"},
      {family.interleaved_rotary, "rotation of neighbours"},
      {family.rope_by_layer || family.rope_in_windows, "blocks without rotation"},
      {family.query_beta, "queries scaled by position"},
      {family.attention_sinks, "attention sinks"},
      {family.soft_caps, "soft caps"},
      {family.scaled_embedding, "scaled embedding"},
      {family.multipliers, "multipliers of embedding, attention, residuals and logits"},
      {!family.logit_scale_key.empty(), "scaled logits"}};
  std::string text;
  for (const auto& [has, words] : parts) {
    if (has) text += (text.empty() ? "" : ", ") + std::string(words);
  }
  return text.empty() ? "as Llama" : text;
}

std::string page() {
  std::map<std::string, std::string> shapes;
  for (const std::string& name : shape_names()) {
    if (name == "tiny") continue;
    std::string& list = shapes[find_shape(name).model_type];
    list += (list.empty() ? "" : ", ") + name;
  }
  std::string text = kBegin;
  for (const Family& family : families()) {
    if (family.class_name.ends_with("TextModel")) continue;  // only inside of another family
    const std::string type(family.model_type);
    text += "| `" + type + "` | `" + std::string(family.class_name) + "` | " + blocks_of(family) + " | " +
            shapes[type] + " |\n";
  }
  text += kMissing;
  for (const RefusedFamily& family : refused_families())
    text += "| `" + std::string(family.model_type) + "` | " + std::string(family.part) + " |\n";
  return text + kEnd;
}

// OCTETRUN_WRITE_DOCS=1 writes the page instead of comparing it.
TEST(Models, ThePageInDocsIsTheTable) {
  const std::string path = std::string(OCTET_SOURCE_DIR) + "/docs/models.md";
  if (environment_variable("OCTETRUN_WRITE_DOCS") != nullptr) write_file_atomically(path, page());
  ASSERT_TRUE(path_exists(path));
  EXPECT_EQ(read_file(path), page())
      << "docs/models.md is old: run OCTETRUN_WRITE_DOCS=1 model_tests --gtest_filter='*ThePageInDocs*'";
}

TEST(Models, OfOtherKindsAreRefusedWithTheMissingPart) {
  for (const RefusedFamily& family : refused_families()) {
    for (const Family& known : families()) EXPECT_NE(known.model_type, family.model_type);
    try {
      read_architecture({{"model_type", std::string(family.model_type)}}, "config.json");
      ADD_FAILURE() << family.model_type;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_NE(std::string(error.what()).find(std::string(family.part)), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace octet::model::models_page_test
