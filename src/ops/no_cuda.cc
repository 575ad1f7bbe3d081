// Replaces the CUDA side in builds without CUDA. Never reached, because no device is a GPU. A new op of a GPU
// needs a line here, unless kernels.h lists it.
#include <span>
#include <string>

#include "kernels.h"
#include "nf4_rules.h"
#include "octet/base/error.h"
#include "octet/ops/attention.h"
#include "octet/ops/decode_gemm.h"
#include "octet/ops/expert_gemm.h"
#include "octet/ops/expert_low_rank.h"
#include "octet/ops/gemm.h"
#include "octet/ops/latent_heads.h"
#include "octet/ops/logits.h"
#include "octet/ops/peer_sum.h"
#include "octet/ops/routing.h"

namespace octet::ops::cuda {
namespace {

[[noreturn]] void throw_no_cuda(const char* op) {
  throw Error(Problem{.what = std::string("this build has no CUDA code for ") + op,
                      .expected = "a build with OCTET_CUDA=ON and a CUDA toolkit",
                      .found = "a build for the CPU",
                      .fix = "rebuild with CUDA, or set device: cpu"});
}

}  // namespace

#define OCTET_LEFT_OUT(op, Args)  \
  void op(Stream&, const Args&) { \
    throw_no_cuda(#op);           \
  }
OCTET_ROW_OPS(OCTET_LEFT_OUT)
OCTET_LEFT_OUT(add_hash, HashArgs)
OCTET_LEFT_OUT(add_load, AddLoadArgs)
OCTET_LEFT_OUT(add_log_sums, AddLogSumsArgs)
OCTET_LEFT_OUT(attention, AttentionArgs)
OCTET_LEFT_OUT(attention_backward, AttentionBackwardArgs)
OCTET_LEFT_OUT(balance_loss, BalanceLossArgs)
OCTET_LEFT_OUT(best_tokens, BestTokensArgs)
OCTET_LEFT_OUT(cached_attention, CachedAttentionArgs)
OCTET_LEFT_OUT(cut_head_values, CutHeadValuesArgs)
OCTET_LEFT_OUT(deal, DealArgs)
OCTET_LEFT_OUT(expert_gemm, ExpertGemmArgs)
OCTET_LEFT_OUT(expert_low_rank, ExpertLowRankArgs)
OCTET_LEFT_OUT(fill_ids, FillIdsArgs)
OCTET_LEFT_OUT(gated_rows, GatedRowsArgs)
OCTET_LEFT_OUT(gated_rows_backward, GatedRowsBackwardArgs)
OCTET_LEFT_OUT(grouped_gemm, GroupedGemmArgs)
OCTET_LEFT_OUT(join_latent_heads, JoinLatentHeadsArgs)
OCTET_LEFT_OUT(limit_rows, LimitRowsArgs)
OCTET_LEFT_OUT(limit_step, LimitStepArgs)
OCTET_LEFT_OUT(listed_logits, ListedLogitsArgs)
OCTET_LEFT_OUT(decode_gemm, DecodeGemmArgs)
OCTET_LEFT_OUT(nf4_decode, Nf4DecodeArgs)
OCTET_LEFT_OUT(nf4_quantize, Nf4QuantizeArgs)
OCTET_LEFT_OUT(nf4_quantize_scales, Nf4QuantizeScalesArgs)
OCTET_LEFT_OUT(nf4_to_fp8, Nf4ToFp8Args)
OCTET_LEFT_OUT(pad_head_values, PadHeadValuesArgs)
OCTET_LEFT_OUT(peer_sum, PeerSumArgs)
OCTET_LEFT_OUT(route, RouteArgs)
OCTET_LEFT_OUT(route_backward, RouteBackwardArgs)
OCTET_LEFT_OUT(split_latent_heads, SplitLatentHeadsArgs)
OCTET_LEFT_OUT(weigh_backward, WeighBackwardArgs)
OCTET_LEFT_OUT(weighted_rows, WeightedRowsArgs)
OCTET_LEFT_OUT(z_loss, ZLossArgs)
#undef OCTET_LEFT_OUT

GemmOutcome gemm(Stream&, const GemmArgs&) {
  throw_no_cuda("gemm");
}

void decode_chain(Stream&, std::span<const DecodeGemmArgs>) {
  throw_no_cuda("decode_chain");
}

bool has_expert_gemm() {
  return false;
}

bool has_expert_low_rank() {
  return false;
}

bool has_grouped_gemm(const GroupedGemmArgs&) {
  return false;
}

bool has_grouped_tiles(const GroupedGemmArgs&) {
  return false;
}

bool has_decode_chain(const Device&, std::span<const DecodeGemmArgs>) {
  return false;
}

bool has_decode_gemm(const Device&, const DecodeGemmArgs&) {
  return false;
}

std::string gemm_machine(const Device&) {
  return {};
}

std::string why_no_fp8_gemm(const Device&) {
  return {};
}

std::string autotuned_gemms(const Device&) {
  return {};
}

void learn_autotuned_gemms(const Device&, const std::string&) {}

void set_gemm_choosing(const Device&, bool) {}

}  // namespace octet::ops::cuda
