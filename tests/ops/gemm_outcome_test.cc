// Outcomes of GEMMs: on a CPU from execution, on a GPU from shapes, copies and alignment. (tests/gpu checks
// that the library behaves accordingly.)
#include <gtest/gtest.h>

#include <array>

#include "octet/device/device.h"
#include "octet/ops/gemm.h"
#include "ops/tensor.h"

namespace octet::ops::gemm_outcome_test {
namespace {

/// Y [rows, out] = X [rows, in] · Wᵀ, and the GEMMs of its gradients.
struct Shapes {
  std::int64_t rows = 32, in = 64, out = 48;
  DType dtype = DType::e4m3, d = DType::bf16;
  bool blocks = false;
};

GemmArgs args_of(const Shapes& s, GemmKind gemm_kind) {
  const Scaling by_rows = s.blocks ? Scaling::rows : Scaling::tensor;
  const Scaling by_squares = s.blocks ? Scaling::squares : Scaling::tensor;
  const Operand x{.dtype = s.dtype, .rows = s.rows, .cols = s.in, .scaling = by_rows};
  const Operand w{.dtype = s.dtype, .rows = s.out, .cols = s.in, .scaling = by_squares};
  const Operand dy{.dtype = s.dtype, .rows = s.rows, .cols = s.out, .scaling = by_rows};
  switch (gemm_kind) {
    case GemmKind::forward:
      return {.gemm_kind = gemm_kind, .a = x, .b = w, .d = {nullptr, s.d, s.rows, s.out, s.out}};
    case GemmKind::dgrad:
      return {.gemm_kind = gemm_kind, .a = dy, .b = w, .d = {nullptr, s.d, s.rows, s.in, s.in}};
    default:
      return {.gemm_kind = gemm_kind, .a = dy, .b = x, .d = {nullptr, s.d, s.out, s.in, s.in}};
  }
}

constexpr std::array kGemms = {GemmKind::forward, GemmKind::dgrad, GemmKind::wgrad};

/// Ways and reasons of the three GEMMs on a GPU.
using Ways = std::array<std::pair<GemmWay, GemmReason>, 3>;
Ways on_gpu(const Shapes& s) {
  const auto device = make_dry_device({.stands_for = DeviceKind::cuda});
  Ways ways;
  for (std::size_t i = 0; i < 3; ++i) {
    const GemmOutcome outcome = gemm_outcome(*device, args_of(s, kGemms[i]));
    ways[i] = {outcome.way, outcome.reason};
    const bool decoded = outcome.way == GemmWay::decoded;
    EXPECT_EQ(outcome.a, decoded ? DType::bf16 : s.dtype);
    EXPECT_EQ(outcome.b, decoded ? DType::bf16 : s.dtype);
    EXPECT_EQ(outcome.calls, 1);
  }
  return ways;
}

constexpr std::pair kDirect{GemmWay::fp8, GemmReason::none};
constexpr std::pair kColumns{GemmWay::decoded, GemmReason::columns};
constexpr std::pair kFilled{GemmWay::filled, GemmReason::inner};

TEST(GemmOutcome, FollowsTheRulesOfTheGpusLibrary) {
  EXPECT_EQ(on_gpu({}), (Ways{kDirect, kDirect, kDirect}));
  // A hidden size of 104: the inner dimension of forward is filled up, but the gradients' columns cannot be.
  EXPECT_EQ(on_gpu({.in = 104}), (Ways{kFilled, kColumns, kColumns}));
  EXPECT_EQ(on_gpu({.out = 104}), (Ways{kColumns, kFilled, kDirect}));
  EXPECT_EQ(on_gpu({.rows = 40}), (Ways{kDirect, kDirect, kFilled})) << "sums over tokens";
  EXPECT_EQ(on_gpu({.in = 104, .out = 104}), (Ways{kColumns, kColumns, kColumns}));
}

TEST(GemmOutcome, FillsNothingBetweenBlocks) {
  constexpr std::pair inner{GemmWay::decoded, GemmReason::inner}, rows{GemmWay::decoded, GemmReason::rows};
  EXPECT_EQ(on_gpu({.rows = 128, .in = 256, .out = 128, .blocks = true}), (Ways{kDirect, kDirect, kDirect}));
  EXPECT_EQ(on_gpu({.rows = 128, .in = 104, .out = 128, .blocks = true}), (Ways{inner, kColumns, kColumns}));
  EXPECT_EQ(on_gpu({.rows = 126, .in = 128, .out = 128, .blocks = true}), (Ways{rows, rows, inner}));
}

TEST(GemmOutcome, OtherOperandsKeepTheirFormat) {
  for (const auto& [dtype, way] :
       {std::pair{DType::bf16, GemmWay::bf16}, std::pair{DType::f32, GemmWay::f32}}) {
    const std::pair plain{way, GemmReason::none};
    EXPECT_EQ(on_gpu({.in = 104, .dtype = dtype}), (Ways{plain, plain, plain}));
  }
}

/// A dgrad or forward GEMM with addresses for its operands.
class GemmOutcomeOfData : public testing::Test {
 protected:
  GemmArgs placed(GemmKind gemm_kind) {
    GemmArgs args = args_of({.blocks = blocks_}, gemm_kind);
    for (Operand* x : {&args.a, &args.b}) {
      x->data = bytes_.data();
      x->transposed = bytes_.data();
      x->scale_inv = x->transposed_scale_inv = reinterpret_cast<const float*>(bytes_.data());
    }
    args.d.data = bytes_.data();
    return args;
  }
  std::pair<GemmWay, GemmReason> outcome(const GemmArgs& args) const {
    const GemmOutcome o = gemm_outcome(*device_, args);
    return {o.way, o.reason};
  }
  std::unique_ptr<Device> device_ = make_dry_device({.stands_for = DeviceKind::cuda});
  alignas(16) std::array<std::uint8_t, 64> bytes_{};
  bool blocks_ = false;
};

TEST_F(GemmOutcomeOfData, NeedsTheTransposedCopies) {
  EXPECT_EQ(outcome(placed(GemmKind::wgrad)), kDirect);
  constexpr std::pair missing{GemmWay::decoded, GemmReason::no_transposed_copy};
  for (const GemmKind gemm_kind : {GemmKind::dgrad, GemmKind::wgrad}) {
    GemmArgs args = placed(gemm_kind);
    args.b.transposed = nullptr;
    EXPECT_EQ(outcome(args), missing);
  }
  GemmArgs args = placed(GemmKind::wgrad);
  args.a.transposed = nullptr;
  EXPECT_EQ(outcome(args), missing);
  args = placed(GemmKind::forward);
  args.a.transposed = args.b.transposed = nullptr;
  EXPECT_EQ(outcome(args), kDirect);
}

TEST_F(GemmOutcomeOfData, NeedsBoundariesAndRoomBetweenRows) {
  const std::pair copied{GemmWay::filled, GemmReason::boundary},
      decoded{GemmWay::decoded, GemmReason::boundary};
  GemmArgs args = placed(GemmKind::forward);
  args.a.data = bytes_.data() + 8;
  EXPECT_EQ(outcome(args), copied);
  args = placed(GemmKind::forward);
  args.b.data = bytes_.data() + 1;
  EXPECT_EQ(outcome(args), copied);
  args = placed(GemmKind::forward);
  args.d.data = bytes_.data() + 8;
  EXPECT_EQ(outcome(args), decoded);
  args = placed(GemmKind::forward);
  args.d.ld += 4;
  EXPECT_EQ(outcome(args), (std::pair{GemmWay::decoded, GemmReason::leading_dimension}));
  args.d.ld += 4;
  EXPECT_EQ(outcome(args), kDirect);
  // A whole tensor's scale is copied to an aligned address; the GEMM is unchanged.
  args.a.scale_inv += 1;
  EXPECT_EQ(outcome(args), kDirect);
}

TEST_F(GemmOutcomeOfData, ScalesOfBlocksAreReadWhereTheyLie) {
  blocks_ = true;
  EXPECT_EQ(outcome(placed(GemmKind::forward)), kDirect);
  GemmArgs args = placed(GemmKind::forward);
  args.a.scale_inv += 1;
  EXPECT_EQ(outcome(args), (std::pair{GemmWay::decoded, GemmReason::scale_boundary}));
  args = placed(GemmKind::forward);
  args.b.data = bytes_.data() + 8;
  EXPECT_EQ(outcome(args), (std::pair{GemmWay::decoded, GemmReason::boundary}));
}

TEST(GemmOutcome, OfNothingIsNothing) {
  const auto device = make_dry_device({.stands_for = DeviceKind::cuda});
  for (const Shapes& s : {Shapes{.rows = 0}, Shapes{.in = 0}, Shapes{.out = 0}}) {
    EXPECT_EQ(gemm_outcome(*device, args_of(s, GemmKind::forward)), GemmOutcome{});
  }
}

TEST(GemmOutcome, ACpuEmulates) {
  const auto cpu = make_cpu_device();
  const auto stream = cpu->make_stream({.name = "test"});
  std::vector<std::uint8_t> x(64 * 64), room(1 << 20);
  std::vector<float> d(64 * 64);
  GemmArgs args{.a = {.data = x.data(), .dtype = DType::e5m2, .rows = 5, .cols = 13},
                .b = {.data = x.data(), .dtype = DType::e4m3, .rows = 7, .cols = 13},
                .d = {d.data(), DType::f32, 5, 7, 7},
                .workspace = {room.data(), room.size()}};
  const GemmOutcome emulated{.way = GemmWay::emulated, .a = DType::e5m2, .b = DType::e4m3, .calls = 1};
  EXPECT_EQ(gemm(*stream, args), emulated);
  EXPECT_EQ(gemm_outcome(*cpu, args), emulated);
  args.a.cols = args.b.cols = 0;
  EXPECT_EQ(gemm(*stream, args), GemmOutcome{}) << "no inner dimension";
  args.a = {.data = d.data(), .dtype = DType::f32, .rows = 5, .cols = 2};
  args.b = {.data = d.data(), .dtype = DType::f32, .rows = 7, .cols = 2};
  EXPECT_EQ(gemm(*stream, args).way, GemmWay::f32);
  stream->synchronize();
}

// With the memory layout of a GPU, a CPU still multiplies like a CPU. A dry device multiplies nothing, but
// predicts the outcome.
TEST(GemmOutcome, FollowsWhoMultiplies) {
  const auto like_gpu = make_cpu_device({.stands_for = DeviceKind::cuda});
  EXPECT_EQ(gemm_outcome(*like_gpu, args_of({}, GemmKind::wgrad)).way, GemmWay::emulated);
  const auto dry = make_dry_device({.stands_for = DeviceKind::cuda});
  const auto stream = dry->make_stream({.name = "test"});
  std::array<float, 4> some{};
  GemmArgs args = args_of({}, GemmKind::forward);
  args.a.data = args.b.data = args.d.data = some.data();
  EXPECT_EQ(gemm(*stream, args), GemmOutcome{});
  EXPECT_EQ(gemm_outcome(*make_dry_device(), args).way, GemmWay::emulated);
}

}  // namespace
}  // namespace octet::ops::gemm_outcome_test
