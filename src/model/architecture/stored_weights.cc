#include "stored_weights.h"

#include <array>

#include "families.h"
#include "octet/base/json.h"

namespace octet::model {
namespace {

/// What to do instead, where weights cannot be read.
constexpr const char* kInstead =
    "use the unquantised model, and set quantization_bit: 4 to store its weights in NF4, or fp8: true for "
    "FP8";

struct Method {
  const char* name;
  const char* meaning;
};
constexpr std::array kNotRead{
    Method{"gptq", "GPTQ"},
    Method{"awq", "AWQ"},
    Method{"aqlm", "AQLM"},
    Method{"mxfp4", "MXFP4 in this family"},
    Method{"quanto", "Quanto"},
    Method{"eetq", "EETQ, 8 bits"},
    Method{"hqq", "HQQ"},
    Method{"torchao", "torchao"},
    Method{"compressed-tensors", "compressed tensors"},
    Method{"fbgemm_fp8", "FP8 with a scale for each row"},
    Method{"modelopt", "ModelOpt"},
    Method{"bitnet", "BitNet"},
    Method{"higgs", "HIGGS"},
    Method{"vptq", "VPTQ"},
};

StoredWeights bitsandbytes(Reader& config) {
  if (config.boolean("load_in_8bit", false) || config.boolean("_load_in_8bit", false)) {
    refuse("weights in 8 bits (LLM.int8) are not supported",
           "load_in_4bit: true, or weights that are not quantised", "load_in_8bit: true", config.where(),
           kInstead);
  }
  const std::string type = config.text("bnb_4bit_quant_type", "fp4");
  if (type != "nf4") {
    refuse("weights in 4 bits of this type are not supported", "bnb_4bit_quant_type: nf4", type,
           config.where(), kInstead);
  }
  return {.format = StoredWeights::Format::nf4,
          .double_quantization = config.boolean("bnb_4bit_use_double_quant", false),
          .unquantised = {}};
}

StoredWeights fine_grained_fp8(Reader& config) {
  const Json* block = config.find("weight_block_size");
  if (block == nullptr || *block != Json::array({128, 128})) {
    refuse("FP8 weights with scales of this kind are not supported", "weight_block_size: [128, 128]",
           block == nullptr ? "none" : short_json(*block), config.where(), kInstead);
  }
  return {.format = StoredWeights::Format::fp8_blocks, .unquantised = {}};
}

}  // namespace

StoredWeights read_stored_weights(const Json& config, const std::string& where, bool has_biased_experts) {
  const std::string at = where + ": 'quantization_config'";
  if (!config.is_object())
    refuse("the quantisation_config of the model is not an object", "{…}", short_json(config), at);
  Reader reader(config, at);
  const std::string method = reader.text("quant_method", "");
  if (method == "bitsandbytes") return bitsandbytes(reader);
  if (method == "fp8") return fine_grained_fp8(reader);
  if (method == "mxfp4" && has_biased_experts)
    return {.format = StoredWeights::Format::mxfp4, .unquantised = {}};
  for (const Method& known : kNotRead) {
    if (method != known.name) continue;
    refuse("weights that are quantised with " + std::string(known.meaning) + " are not supported",
           "bitsandbytes (nf4), fp8 (fine-grained), mxfp4 (gpt_oss), or weights that are not quantised",
           "quant_method: " + method, at, kInstead);
  }
  refuse("the method by which the weights are quantised is not known",
         "bitsandbytes (nf4), fp8 (fine-grained), mxfp4 (gpt_oss), or weights that are not quantised",
         method.empty() ? "no quant_method" : "quant_method: " + method, at, kInstead);
}

}  // namespace octet::model
