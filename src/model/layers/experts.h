#pragma once

#include <cstdint>
#include <vector>

#include "layers/mlp.h"
#include "octet/ops/grouped_gemm.h"

namespace octet::model {

/// A mixture of experts: norm, router, and gated MLPs of which each token takes some (ExpertShape). Forward
/// alone. Which token goes where is decided on the device. Where there are grouped products (grouped_gemm.h)
/// they find there what is theirs; else the host waits for it, and enqueues for each expert that was taken
/// its two products. With the recipe `rows` experts are in E4M3, the router is in the compute dtype. Where
/// layers are split among ranks, each has a part of every expert's width and the whole router.
class Experts final : public Mlp {
 public:
  Experts(GroupBuilder& group, const Architecture& architecture);

  /// Whether the host has no part in what so many tokens do.
  static bool unwatched(const Device& device, const Architecture& architecture,
                        const precision::Recipe& recipe, bool fixed_order, std::int64_t tokens);

  std::vector<Linear*> linears() override { return {}; }
  std::vector<const Linear*> linears() const override { return {}; }
  bool trained() const override { return false; }
  void set_passes_on(bool) override {}
  bool runs_back() const override { return false; }
  void reserve(BlockBuffers& buffers, const Common& common) override;
  std::size_t workspace(const Device& device, const Common& common) const override;
  std::vector<Operation> operations(std::int64_t tokens) const override;
  void forward(const Call& call, const NormInput& before, const ops::Matrix& stream,
               const ops::Matrix& after) override;
  void backward(const Call& call, const ops::Matrix& stream, const ops::QuantizeInto& into) override;
  bool normed() const override { return false; }
  NormInput sum(const Call& call, const ops::Matrix& before, const ops::Matrix& after) const override;
  void settle(const Call& call, const ops::Matrix& before, const ops::Matrix& after) const override;
  ops::QuantizeInto wanted(const Call&) const override { return {}; }

 private:
  /// How the experts' products are made: each by itself, or as grouped ones, which read the tokens' rows by
  /// their numbers, or as gathered before.
  enum class Way { each, by_number, gathered };
  Way way_of(const Call& call) const;
  /// Sends all tokens to experts.
  void pick(const Call& call);
  /// What the experts make of their tokens, in the order of `row_tokens_`, into `made_`.
  void compute(const Call& call, Way way);
  void compute_each(const Call& call);
  /// The two products as grouped ones.
  ops::GroupedGemmArgs gate_up_of(const Call& call, Way way) const;
  ops::GroupedGemmArgs down_of(const Call& call) const;
  /// Enqueues that the tokens' rows lie in `made_`, as products read them.
  void gather(const Call& call);
  void multiply(const Call& call, const ops::Operand& a, const ops::Operand& b, const ops::Matrix& d) const;

  ExpertShape shape_;  ///< its width is that of the rank's share
  bool sums_;          ///< over ranks
  bool fp8_ = false;   ///< what experts multiply is in E4M3
  std::int64_t hidden_;
  ops::Activation activation_;
  Norm norm_;
  MatrixHandle router_;   ///< [count, hidden]
  MatrixHandle gate_up_;  ///< [count * 2 * width, hidden]: of each expert gate, then up
  MatrixHandle down_;     ///< [count * hidden, width]

  ops::Matrix normed_;     ///< [tokens, hidden]
  ops::Matrix made_;       ///< [tokens * taken, hidden]: rows by expert, what goes in and what comes out
  ops::Matrix gated_;      ///< [tokens * taken, 2 * width]
  ops::Matrix activated_;  ///< [tokens * taken, width]
  /// Of three of them, what products read; empty: the values.
  precision::Fp8Copy normed_copy_, made_copy_, activated_copy_;
  float* logits_ = nullptr;        ///< [tokens, count]
  std::int32_t* taken_ = nullptr;  ///< [tokens, taken], as route() gives them
  float* shares_ = nullptr;        ///< [tokens, taken] of the same
  /// As deal() gives them.
  std::int32_t *begins_ = nullptr, *row_tokens_ = nullptr, *places_ = nullptr;
  float* weights_ = nullptr;
  std::vector<std::int32_t> host_begins_;
};

}  // namespace octet::model
