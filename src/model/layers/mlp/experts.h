#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "layers/mlp/exchanged_rows.h"
#include "layers/mlp/expert_router.h"
#include "layers/mlp/gated_mlp.h"
#include "layers/mlp/shared_expert.h"
#include "octet/ops/expert_gemm.h"

namespace octet::model {

/// A mixture of experts: norm, router, and gated MLPs of which each token uses some (ExpertShape). The device
/// computes the routing. Without training, grouped GEMMs (expert_gemm.h) read it on the device if they exist.
/// Otherwise the host waits for the routing, and enqueues one GEMM for all experts (expert_gemm.h) or one for
/// each. If layers are split among ranks, each rank has a part of every expert's width and the whole router.
/// If experts are split among ranks, rows of tokens are sent to the ranks of their experts, and outputs are
/// sent back.
///
/// The normed stream, gate and up, and the routing are kept for backward. It recomputes the inputs of both
/// GEMMs.
class Experts final : public Mlp {
 public:
  Experts(GroupBuilder& group, const Architecture& architecture);

  /// Whether a pass of `tokens` tokens needs no host synchronisation.
  static bool unwatched(const Device& device, const Architecture& architecture,
                        const precision::Recipe& recipe, bool fixed_order, std::int64_t tokens);

  std::vector<Linear*> linears() override;
  std::vector<const Linear*> linears() const override;
  bool trained() const override;
  void set_passes_on(bool passes_on) override;
  bool runs_back() const override { return down_.runs_back() || (shared_ && shared_->runs_back()); }
  void reserve(BlockBuffers& buffers, const Common& common) override;
  std::size_t workspace(const Device& device, const Common& common) const override;
  std::vector<Operation> operations(std::int64_t tokens) const override;
  Exchanges exchanges() const override;
  void forward(const Call& call, const NormInput& before, const ops::Matrix& stream,
               const ops::Matrix& after) override;
  void backward(const Call& call, const ops::Matrix& stream, const ops::QuantizeInto& into) override;
  bool normed() const override { return false; }
  NormInput sum(const Call& call, const ops::Matrix& before, const ops::Matrix& after) const override;
  void settle(const Call& call, const ops::Matrix& before, const ops::Matrix& after) const override;
  ops::QuantizeInto wanted(const Call&) const override { return {}; }
  BlockLoad take_load(LoadOf of) override { return router_.take_load(of); }

 private:
  /// How the experts' GEMMs run: one for each expert, grouped with row indices, or grouped on gathered rows.
  enum class Way { each, by_number, gathered };
  Way way_of(const Call& call) const;
  ops::Matrix normed(const Call& call) const;
  void normalise(const Call& call, const NormInput& before, const ops::QuantizeInto& quantize);
  /// Computes the experts' outputs in the order of the router's rows, into `made_`.
  void compute(const Call& call, Way way);
  void compute_each(const Call& call);
  /// compute_each() if the experts' operands have scales of rows.
  void compute_each_by_rows(const Call& call);
  /// Rows that this rank's experts compute together: rows of its tokens, or rows that were sent to it.
  struct RowPart {
    std::int64_t begin = 0, count = 0;  ///< [begin, begin + count) in matrices of rows
    std::int64_t room = 0;              ///< rows from `begin` on that may be written
    std::int64_t received = 0;          ///< the first row of the matrix that `rows` indexes
    ExpertRows rows;
    RowWeights weights;
    ops::Matrix of(const ops::Matrix& m) const { return padded(m, count); }
    ops::Matrix padded(const ops::Matrix& m, std::int64_t rows_of_it) const {
      return rows_from(m, begin, rows_of_it);
    }
  };
  void activate(const Call& call, const RowPart& part, const Wanted& wanted);
  /// Calls act(call, part) for all parts, with the tokens and gradient buffers of the part.
  template <typename Act>
  void each_part(const Call& call, Act&& act);
  /// Returns a matrix of values for rows of experts, for values of this rank's tokens. If experts are split,
  /// `overlapped` is called while messages are under way.
  ops::Matrix at_experts(const Call& call, const char* name, const ops::Matrix& tokens,
                         const std::function<void()>& overlapped = {});
  /// Returns the outputs of all experts for this rank's rows. `made_` holds the outputs of its experts.
  ops::Matrix at_tokens(const Call& call, const char* name);
  /// `overlapped`: see at_experts().
  void backward_down(const Call& call, const std::function<void()>& overlapped);
  void backward_down(const Call& call, const RowPart& part, const ops::Matrix& d_tokens);
  void backward_gate_up(const Call& call);
  void backward_gate_up(const Call& call, const RowPart& part, const ops::Matrix& tokens);
  /// The arguments of the two grouped GEMMs.
  ops::GroupedGemmArgs gate_up_of(const Call& call, Way way) const;
  ops::GroupedGemmArgs down_of(const Call& call) const;
  /// Gathers the tokens' rows into `made_`, in the format of GEMM operands.
  void gather(const Call& call);
  void multiply(const Call& call, const ops::Operand& a, const ops::Operand& b, const ops::Matrix& d) const;

  ExpertShape shape_;  ///< with the width of the rank's share
  bool sums_;          ///< outputs are partial sums over ranks
  bool fp8_ = false;   ///< the operands of experts are in E4M3
  std::int64_t hidden_;
  ops::Activation activation_;
  float activation_limit_;
  Norm norm_;
  ExpertRouter router_;
  std::int64_t sources_;  ///< ranks that send tokens to this rank's experts
  std::int64_t own_;      ///< experts of this rank
  Linear gate_up_;        ///< [own * 2 * width, hidden]: for each expert gate, then up
  Linear down_;           ///< [own * hidden, width]
  std::optional<SharedExpert> shared_;

  ops::Matrix normed_;       ///< [tokens, hidden]
  ops::Matrix made_;         ///< [rows, hidden]: rows by expert, inputs and outputs
  ops::Matrix gated_;        ///< [rows, 2 * width]
  ops::Matrix activated_;    ///< [rows, width]
  ops::Matrix d_activated_;  ///< [rows, width]
  /// FP8 operands of three of these matrices; empty: GEMMs read the values.
  precision::Fp8Copy normed_copy_, made_copy_, activated_copy_;
  std::optional<ExchangedRows> exchanged_;  ///< with experts of other ranks
};

}  // namespace octet::model
