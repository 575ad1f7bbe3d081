#include <string>

#include "octet/base/error.h"
#include "octet/model/architecture.h"

namespace octet::model {

namespace {

ops::Heads piece_of_heads(const ops::Heads& heads, const Share& share) {
  return {.q_heads = piece_of(kEven, heads.q_heads, share).count,
          .kv_heads = piece_of(each_kv_head(1), heads.kv_heads, share).count,
          .head_dim = heads.head_dim};
}

}  // namespace

ops::Heads heads_of_share(const Architecture& a) {
  return piece_of_heads(a.heads, a.share);
}

ops::Heads heads_of_share(const Architecture& a, std::int64_t layer) {
  return piece_of_heads(a.heads_of(layer), a.share);
}

Piece vocabulary_of_share(const Architecture& a) {
  return piece_of(kVocabulary, a.vocabulary, a.share);
}

void require_splits(const Architecture& a, int tensor_size, int stages) {
  const auto refuse_split = [](const std::string& what, const std::string& expected, const std::string& found,
                               const std::string& fix) {
    throw Error({.what = what, .expected = expected, .found = found, .fix = fix, .code = ExitCode::usage});
  };
  if (stages < 1 || stages > a.layers) {
    refuse_split("pipeline_parallel_size is larger than the number of the model's layers",
                 "1 to " + std::to_string(a.layers) + " stages", std::to_string(stages),
                 "lower --pipeline-parallel-size");
  }
  const auto require = [&](std::int64_t size, const std::string& name) {
    if (size % tensor_size == 0) return;
    refuse_split("the model's layers cannot be split among so many ranks",
                 "a tensor_parallel_size that divides its " + name + ", " + std::to_string(size),
                 std::to_string(tensor_size), "give another tensor_parallel_size");
  };
  if (a.qk_norm_of_all_heads && tensor_size > 1) {
    refuse_split("the model's layers cannot be split among ranks, because a norm reads all its heads",
                 "a tensor_parallel_size of 1", std::to_string(tensor_size),
                 "leave tensor_parallel_size out");
  }
  if (a.has_delta_rule() && tensor_size > 1) {
    refuse_split("the model's delta rules (linear attention) cannot be split among ranks",
                 "a tensor_parallel_size of 1", std::to_string(tensor_size),
                 "leave tensor_parallel_size out; stages, data parallel ranks and ZeRO can hold the model");
  }
  if (a.has_latents() && tensor_size > 1) {
    refuse_split("the model's multi-head latent attention cannot be split among ranks",
                 "a tensor_parallel_size of 1", std::to_string(tensor_size),
                 "leave tensor_parallel_size out; stages, data parallel ranks and ZeRO can hold the model");
  }
  require(a.heads.q_heads, "attention heads");
  for (std::int64_t layer = 0; layer < a.layers; ++layer) {
    const std::int64_t kv_heads = a.heads_of(layer).kv_heads;
    if (kv_heads < tensor_size ? tensor_size % kv_heads != 0 : kv_heads % tensor_size != 0) {
      refuse_split("the model's layers cannot be split among so many ranks",
                   "a tensor_parallel_size that divides, or is a multiple of, its key and value heads, " +
                       std::to_string(kv_heads),
                   std::to_string(tensor_size), "give another tensor_parallel_size");
    }
    if (!a.block(layer).mixes_experts) require(a.block(layer).intermediate, "intermediate_size");
  }
  if (a.experts.count > 0) require(a.experts.width, "moe_intermediate_size");
  if (a.experts.shared > 0) require(a.experts.shared, "width of shared experts");
  if (a.vocabulary < tensor_size) require(a.vocabulary, "vocab_size");
}

}  // namespace octet::model
