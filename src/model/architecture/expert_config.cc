#include <algorithm>
#include <set>
#include <string>

#include "families.h"
#include "octet/ops/routing.h"

namespace octet::model {
namespace {

[[noreturn]] void refuse_groups(const Reader& config, const std::string& what, const std::string& expected,
                                const std::string& found) {
  refuse(what, expected, found, config.where(), "correct the keys of the router in this file");
}

void require_experts_in_groups(const Reader& config, const ExpertShape& experts) {
  const auto number = [](std::int64_t n) { return std::to_string(n); };
  if (experts.count % experts.groups != 0 || (experts.groups > 1 && experts.count / experts.groups < 2)) {
    refuse_groups(config, "the experts cannot be grouped",
                  "an n_group that divides n_routed_experts, " + number(experts.count) +
                      ", with two or more experts in a group",
                  "n_group: " + number(experts.groups));
  }
  if (experts.taken_groups > experts.groups) {
    refuse_groups(config, "there are more groups per token than groups",
                  "a topk_group of at most n_group, " + number(experts.groups),
                  "topk_group: " + number(experts.taken_groups));
  }
  const std::int64_t most = experts.taken_groups * (experts.count / experts.groups);
  if (experts.taken > most) {
    refuse_groups(config, "there are more experts per token than experts in its groups",
                  "num_experts_per_tok of at most " + number(most), number(experts.taken));
  }
}

/// Reads the router of DeepSeek-V3 (arXiv:2412.19437) with the keys and defaults of Glm4MoeConfig in
/// transformers.
void read_sigmoid_scores(Reader& config, ExpertShape& experts) {
  const std::string scores = config.text("scoring_func", "sigmoid");
  if (scores != "sigmoid") {
    refuse("the scoring function of the router is not supported by this family", "scoring_func: sigmoid",
           scores, config.where());
  }
  const std::string method = config.text("topk_method", "noaux_tc");
  if (method != "noaux_tc") {
    refuse("the choice of experts is not supported by this family", "topk_method: noaux_tc", method,
           config.where());
  }
  experts.scores = ops::RouterScores::sigmoid;
  experts.normalised = config.boolean("norm_topk_prob", true);
  experts.choice_bias = true;
  experts.groups = config.size("n_group", 1, ops::kMostExperts);
  experts.taken_groups = config.size("topk_group", 1, ops::kMostExperts);
}

/// Reads the router of DeepSeek-V2 (arXiv:2405.04434) with the keys of DeepseekV2Config in transformers.
void read_softmax_scores(Reader& config, ExpertShape& experts) {
  const std::string scores = config.text("scoring_func", "softmax");
  if (scores != "softmax") {
    refuse("the scoring function of the router is not supported by this family", "scoring_func: softmax",
           scores, config.where());
  }
  const std::string method = config.text("topk_method", "greedy");
  if (method != "greedy" && method != "group_limited_greedy") {
    refuse("the choice of experts is not supported by this family",
           "topk_method: greedy or group_limited_greedy", method, config.where());
  }
  if (config.boolean("norm_topk_prob", false)) {
    refuse("normalised weights of experts are not supported by this family", "norm_topk_prob: false", "true",
           config.where());
  }
  // Without groups, both keys are null or have no effect.
  const Json *groups = config.find("n_group"), *taken = config.find("topk_group");
  if (method == "greedy") return;
  if (groups == nullptr || taken == nullptr) {
    refuse("the groups of experts are missing", "'n_group' and 'topk_group'", "topk_method: " + method,
           config.where());
  }
  experts.groups = config.size("n_group", ops::kMostExperts);
  experts.taken_groups = config.size("topk_group", ops::kMostExperts);
  experts.group_best = 1;
}

/// Reads which blocks have experts: the list mlp_layer_types, or all blocks from first_k_dense_replace on.
void read_sparse_blocks(Reader& config, const Family& family, Architecture& a) {
  const std::int64_t dense =
      json_int(config.object(), "first_k_dense_replace", 1, 0, kMaxLayers, config.where());
  config.find("first_k_dense_replace");
  for (std::int64_t i = dense; i < a.layers; ++i) a.blocks[static_cast<std::size_t>(i)].mixes_experts = true;
  const Json* list = family.block_list ? config.find("mlp_layer_types") : nullptr;
  if (list != nullptr) {
    const auto known = [](const Json& one) { return one == "dense" || one == "sparse"; };
    if (!list->is_array() || list->size() != a.blocks.size() || !std::ranges::all_of(*list, known)) {
      refuse("'mlp_layer_types' cannot be used",
             "a list of " + std::to_string(a.layers) + " names, dense or sparse", short_json(*list),
             config.where());
    }
    for (std::size_t i = 0; i < a.blocks.size(); ++i) a.blocks[i].mixes_experts = (*list)[i] == "sparse";
  } else if (family.block_list && dense != 1) {
    // transformers does not read this key in this family.
    refuse("'first_k_dense_replace' has no effect in this family", "mlp_layer_types, a list of names",
           "first_k_dense_replace: " + std::to_string(dense), config.where(),
           "write mlp_layer_types in this file");
  }
  if (config.size("moe_layer_freq", 1, kMaxLayers) != 1) {
    refuse("dense blocks between blocks of experts are not supported by this family", "moe_layer_freq: 1",
           short_json(*config.find("moe_layer_freq")), config.where());
  }
  if (std::ranges::none_of(a.blocks, &BlockShape::mixes_experts)) a.experts = {};
}

/// Reads a mixture with the keys of DeepSeek: n_routed_experts, n_shared_experts, …
void read_routed_experts(Reader& config, const Family& family, Architecture& a) {
  // DeepseekV2Config has no default of this key.
  const bool needed = family.softmax_router;
  a.experts = {.count = config.size("n_routed_experts", 128, ops::kMostExperts),
               .taken = needed ? config.size("num_experts_per_tok", ops::kMostExperts)
                               : config.size("num_experts_per_tok", 8, ops::kMostExperts),
               .width = config.size("moe_intermediate_size", 1408, kMaxWidth),
               .shared_gate = false,
               .scale = config.positive("routed_scaling_factor", 1.0, 1e-6, 1e6)};
  family.softmax_router ? read_softmax_scores(config, a.experts) : read_sigmoid_scores(config, a.experts);
  a.experts.shared = a.experts.width * config.size("n_shared_experts", 1, ops::kMostExperts);
  if (a.experts.shared > kMaxWidth) {
    refuse("the shared experts are too wide", "at most " + std::to_string(kMaxWidth),
           std::to_string(a.experts.shared), config.where());
  }
  require_experts_in_groups(config, a.experts);
  read_sparse_blocks(config, family, a);
  const Json* further = config.find("num_nextn_predict_layers");
  const char* const key = further != nullptr ? "num_nextn_predict_layers" : "num_mtp_layers";
  config.find(key);
  a.further_blocks = json_int(config.object(), key, 1, 0, kMaxLayers, config.where());
}

}  // namespace

void read_experts(Reader& config, const Family& family, Architecture& a) {
  if (!family.experts) return;
  if (family.sigmoid_router || family.softmax_router) return read_routed_experts(config, family, a);
  // As transformers 5 writes it, and as 4 did.
  const Json *newer = config.find("num_local_experts"), *older = config.find("num_experts");
  if (newer != nullptr && older != nullptr && *newer != *older) {
    refuse("the number of experts is given twice, and differs", "num_local_experts, or num_experts",
           short_json(*newer) + " and " + short_json(*older), config.where());
  }
  const char* const key = newer != nullptr ? "num_local_experts" : "num_experts";
  a.experts = {.count = json_int(config.object(), key, 128, 0, ops::kMostExperts, config.where()),
               .taken = config.size("num_experts_per_tok", 8, ops::kMostExperts),
               .width = a.intermediate,
               .normalised = true,
               .names = ExpertShape::Names::mixtral};
  if (!family.uniform_experts) a.experts.width = config.size("moe_intermediate_size", 768, kMaxWidth);
  if (family.biased_experts) {
    a.experts.names = ExpertShape::Names::gpt_oss;
    a.experts.biases = true;
  } else if (!family.mixtral_experts) {
    a.experts.normalised = config.boolean("norm_topk_prob", false);
    a.experts.names = ExpertShape::Names::mlp;
  }
  if (family.shared_expert) {
    a.experts.shared = config.size("shared_expert_intermediate_size", kMaxWidth);
    if (family.qkv_bias == BiasRule::always && !config.boolean("qkv_bias", true))
      refuse("a model of this family without biases is not supported", "qkv_bias: true", "false",
             config.where());
  }
  if (a.experts.count > 0 && a.experts.taken > a.experts.count) {
    refuse("there are more experts per token than experts",
           "num_experts_per_tok of at most " + std::to_string(a.experts.count),
           std::to_string(a.experts.taken), config.where());
  }
  const std::int64_t step = family.uniform_experts ? 1 : config.size("decoder_sparse_step", 1, kMaxLayers);
  std::set<std::int64_t> dense;
  if (const Json* list = family.uniform_experts ? nullptr : config.find("mlp_only_layers")) {
    if (!list->is_array() ||
        !std::ranges::all_of(*list, [](const Json& one) { return one.is_number_integer(); }))
      refuse("'mlp_only_layers' cannot be used", "a list of numbers of blocks", short_json(*list),
             config.where());
    for (const Json& one : *list) dense.insert(one.get<std::int64_t>());
  }
  // transformers adds the loss if it returns the logits of routers.
  const double balance = config.positive("router_aux_loss_coef", 0.001, 0.0, 1e6);
  if (config.boolean("output_router_logits", false)) a.experts.balance = balance;
  for (std::int64_t i = 0; i < a.layers; ++i) {
    const bool mixes = a.experts.count > 0 && (i + 1) % step == 0 && !dense.contains(i);
    a.blocks[static_cast<std::size_t>(i)].mixes_experts = mixes;
  }
  const auto mixes = [](const BlockShape& block) { return block.mixes_experts; };
  if (std::ranges::none_of(a.blocks, mixes)) a.experts = {};
}

}  // namespace octet::model
