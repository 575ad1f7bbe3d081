// Compares attention on the GPU with its definition in float64 and with the CPU side.
#include "octet/ops/attention.h"

#include <algorithm>
#include <limits>

#include "gpu/device_arrays.h"
#include "support/float64.h"

namespace octet::ops::attention_test {
namespace {

struct Shape {
  std::vector<std::int32_t> lengths = {1};
  Heads heads = {1, 1, 64};
  DType dtype = DType::f32;
  float soft_cap = 0.0f;
  std::int64_t window = 0;
  std::int64_t after = 0;  ///< tokens without a document at the end
  bool host_lengths = true;
  bool host_lengths_back = true;  ///< in backward; only if host_lengths
  bool reproducible = false;      ///< Stream::reproducible
  std::string name() const {
    return "heads " + std::to_string(heads.q_heads) + "/" + std::to_string(heads.kv_heads) + " of " +
           std::to_string(heads.head_dim) + ", " + std::to_string(lengths.size()) + " documents, first of " +
           std::to_string(lengths[0]) + ", window " + std::to_string(window) + ", cap " +
           std::to_string(soft_cap) + ", " + std::string(name_of(dtype)) +
           (host_lengths ? "" : ", lengths on the device only");
  }
};

struct Inputs {
  explicit Inputs(const Shape& s) : shape(s), starts(1, 0), qkv(0, s.dtype), d_out(0, s.dtype) {
    for (const auto length : s.lengths) starts.push_back(starts.back() + length);
    tokens = starts.back() + s.after;
    qkv = HostArray(tokens * s.heads.qkv_width(), s.dtype);
    d_out = HostArray(tokens * s.heads.q_heads * s.heads.head_dim, s.dtype);
    std::mt19937 random(static_cast<unsigned>(tokens * 131 + s.heads.head_dim));
    qkv.fill(random, 1.5f);
    d_out.fill(random, 1.0f);
  }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape.heads.head_dim)); }
  Shape shape;
  std::vector<std::int32_t> starts;
  std::int64_t tokens = 0;
  HostArray qkv, d_out;
};

struct Outcome {
  HostArray out, lse, d_qkv;
};

/// `left_over`: initial byte value of the workspace.
Outcome run(Bench& bench, const Inputs& in, std::uint8_t left_over = 0xFF) {
  const Shape& s = in.shape;
  bench.stream().set_reproducible(s.reproducible);
  const Heads& heads = s.heads;
  const std::int64_t width = heads.q_heads * heads.head_dim, all = heads.qkv_width();
  Outcome r{.out = HostArray(in.tokens * width, s.dtype),
            .lse = HostArray(heads.q_heads * in.tokens, DType::f32),
            .d_qkv = HostArray(in.tokens * all, s.dtype)};
  Workspace workspace;
  const std::int64_t longest = *std::max_element(s.lengths.begin(), s.lengths.end());
  workspace.bytes = attention_workspace(bench.device(), heads, s.dtype, in.tokens, longest);
  workspace.data = bench.put(std::vector<std::uint8_t>(workspace.bytes, left_over));
  const Documents documents{.cu_seqlens = bench.put(in.starts),
                            .host_cu_seqlens = s.host_lengths ? in.starts.data() : nullptr,
                            .count = static_cast<std::int64_t>(s.lengths.size()),
                            .max_length = longest,
                            .tokens = in.tokens};
  Documents documents_back = documents;
  if (!s.host_lengths_back) documents_back.host_cu_seqlens = nullptr;
  const ConstMatrix qkv(bench.put(in.qkv), s.dtype, in.tokens, all, all);
  const Matrix out{bench.put(r.out), s.dtype, in.tokens, width, width};
  auto* lse = static_cast<float*>(bench.put(r.lse));
  attention(bench.stream(), {.qkv = qkv,
                             .heads = heads,
                             .documents = documents,
                             .scale = in.scale(),
                             .soft_cap = s.soft_cap,
                             .window = s.window,
                             .out = out,
                             .lse = lse,
                             .workspace = workspace});
  const Matrix d_qkv{bench.put(r.d_qkv), s.dtype, in.tokens, all, all};
  attention_backward(bench.stream(),
                     {.qkv = qkv,
                      .out = out,
                      .d_out = ConstMatrix(bench.put(in.d_out), s.dtype, in.tokens, width, width),
                      .lse = lse,
                      .heads = heads,
                      .documents = documents_back,
                      .scale = in.scale(),
                      .soft_cap = s.soft_cap,
                      .window = s.window,
                      .d_qkv = d_qkv,
                      .workspace = workspace});
  bench.get(r.out, out.data);
  bench.get(r.lse, lse);
  bench.get(r.d_qkv, d_qkv.data);
  return r;
}

test::AttentionReference reference(const Inputs& in) {
  return test::attention_reference(
      {.heads = in.shape.heads,
       .starts = {in.starts.begin(), in.starts.end()},
       .tokens = in.tokens,
       .scale = in.scale(),
       .soft_cap = in.shape.soft_cap,
       .window = in.shape.window},
      [&](std::int64_t at) { return in.qkv[at]; }, [&](std::int64_t at) { return in.d_out[at]; });
}

double distance(const HostArray& got, const std::vector<double>& want) {
  return relative_distance([&](std::int64_t i) { return got[i]; },
                           [&](std::int64_t i) { return want[static_cast<std::size_t>(i)]; }, got.count());
}

double distance(const HostArray& got, const HostArray& want) {
  return relative_distance([&](std::int64_t i) { return got[i]; }, [&](std::int64_t i) { return want[i]; },
                           got.count());
}

void check_shape(const Shape& shape) {
  SCOPED_TRACE(shape.name());
  const Inputs in(shape);
  Bench gpu(make_cuda_device()), cpu(make_cpu_device());
  try {
    const Outcome got = run(gpu, in), other = run(cpu, in);
    const test::AttentionReference want = reference(in);
    // Norms over whole arrays: bf16 rounds weights, gradients of scores and results, each by at most 2^-9.
    const bool narrow = shape.dtype == DType::bf16;
    EXPECT_LT(distance(got.out, want.out), narrow ? 6e-3 : 2e-6) << shape.name();
    EXPECT_LT(distance(got.lse, want.lse), 2e-6) << shape.name();
    EXPECT_LT(distance(got.d_qkv, want.d_qkv), narrow ? 1.2e-2 : 6e-6) << shape.name();
    EXPECT_LT(distance(got.out, other.out), narrow ? 8e-3 : 3e-6) << shape.name() << " (against the CPU)";
    EXPECT_LT(distance(got.d_qkv, other.d_qkv), narrow ? 1.6e-2 : 8e-6)
        << shape.name() << " (against the CPU)";
  } catch (const std::exception& e) {
    ADD_FAILURE() << shape.name() << ": " << e.what();
  }
}

constexpr DType dtypes[] = {DType::f32, DType::bf16};

TEST(GpuAttention, AgreesForEveryHeadSize) {
  for (const std::int64_t head_dim : {1, 8, 33, 64, 80, 96, 128, 192, 256}) {
    for (const DType dtype : dtypes) {
      check_shape({.lengths = {129}, .heads = {2, 1, head_dim}, .dtype = dtype});
      check_shape({.lengths = {127, 2}, .heads = {2, 2, head_dim}, .dtype = dtype});
    }
  }
}

TEST(GpuAttention, AgreesForEveryLength) {
  for (const std::int32_t length : {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200, 513}) {
    for (const DType dtype : dtypes) check_shape({.lengths = {length}, .heads = {2, 1, 64}, .dtype = dtype});
  }
}

TEST(GpuAttention, DocumentsDoNotSeeEachOther) {
  for (const DType dtype : dtypes) {
    for (const bool host : {true, false}) {
      check_shape(
          {.lengths = {3, 127, 1, 0, 64, 129}, .heads = {4, 2, 48}, .dtype = dtype, .host_lengths = host});
      check_shape({.lengths = {128, 128, 128}, .heads = {4, 1, 128}, .dtype = dtype, .host_lengths = host});
      check_shape(
          {.lengths = {100, 100}, .heads = {4, 4, 64}, .dtype = dtype, .after = 28, .host_lengths = host});
      check_shape({.lengths = {0, 0, 5, 0}, .heads = {2, 1, 128}, .dtype = dtype, .host_lengths = host});
      check_shape({.lengths = {1, 1, 1, 1, 1}, .heads = {2, 1, 128}, .dtype = dtype, .host_lengths = host});
      check_shape({.lengths = {700, 31, 290}, .heads = {8, 2, 128}, .dtype = dtype, .host_lengths = host});
    }
  }
}

TEST(GpuAttention, QueryHeadsShareKeyHeads) {
  for (const DType dtype : dtypes) {
    check_shape({.lengths = {90, 40}, .heads = {8, 8, 32}, .dtype = dtype});
    check_shape({.lengths = {90, 40}, .heads = {8, 4, 64}, .dtype = dtype});
    check_shape({.lengths = {90, 40}, .heads = {6, 2, 128}, .dtype = dtype});
    check_shape({.lengths = {90, 40}, .heads = {7, 1, 64}, .dtype = dtype});
  }
}

TEST(GpuAttention, WindowsOfEveryWidthAreKept) {
  for (const DType dtype : dtypes) {
    for (const std::int64_t window : {1, 2, 63, 64, 65, 129, 1000}) {
      check_shape({.lengths = {260, 33}, .heads = {2, 1, 64}, .dtype = dtype, .window = window});
    }
  }
}

TEST(GpuAttention, SoftCapsAndTheirDerivative) {
  for (const DType dtype : dtypes) {
    check_shape({.lengths = {150}, .heads = {2, 2, 64}, .dtype = dtype, .soft_cap = 2.0f});
    check_shape(
        {.lengths = {150, 77}, .heads = {4, 2, 256}, .dtype = dtype, .soft_cap = 30.0f, .window = 50});
  }
}

TEST(GpuAttention, TokensOfNoDocumentGetZeros) {
  for (const DType dtype : dtypes) {
    const Inputs in({.lengths = {20, 44}, .heads = {2, 1, 64}, .dtype = dtype, .after = 70});
    Bench gpu(make_cuda_device());
    const Outcome got = run(gpu, in);
    for (std::int64_t i = 64 * 128; i < got.out.count(); ++i) ASSERT_EQ(got.out[i], 0.0);
    for (std::int64_t i = 64 * 256; i < got.d_qkv.count(); ++i) ASSERT_EQ(got.d_qkv[i], 0.0);
  }
}

/// Returns the shape with a stream on which equal inputs give equal bits.
Shape reproducible(Shape shape) {
  shape.reproducible = true;
  return shape;
}

TEST(GpuAttention, EqualInputsGiveEqualBitsOnDemand) {
  const std::vector<Shape> shapes = {
      {.lengths = {300, 5, 130}, .heads = {4, 2, 64}},
      {.lengths = {300, 5, 130}, .heads = {4, 2, 64}, .dtype = DType::bf16},
      {.lengths = {256, 256, 256}, .heads = {8, 2, 128}, .dtype = DType::bf16},
      // In a fixed order, too large for the workspace at once.
      {.lengths = {2048, 2048}, .heads = {8, 2, 64}, .dtype = DType::bf16},
      {.lengths = {2048, 2048}, .heads = {8, 4, 128}, .dtype = DType::bf16, .window = 700},
      {.lengths = {2048, 100, 700, 30, 2048, 5}, .heads = {8, 2, 64}, .dtype = DType::bf16},
      {.lengths = {33, 700, 129, 1}, .heads = {14, 2, 64}, .dtype = DType::bf16},
      {.lengths = {300, 41, 700, 5, 260}, .heads = {14, 2, 64}, .dtype = DType::bf16, .after = 30},
      {.lengths = {1, 1, 640, 1, 0, 1, 1100, 1}, .heads = {6, 3, 96}, .dtype = DType::bf16},
      {.lengths = {90, 600, 0, 31, 385}, .heads = {8, 2, 128}, .dtype = DType::bf16, .window = 200},
      // The first document runs in portions of heads. The second is too long even for this.
      {.lengths = {7, 2047}, .heads = {8, 2, 64}, .dtype = DType::bf16},
      {.lengths = {5000, 3}, .heads = {8, 1, 128}, .dtype = DType::bf16}};
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(shape.name());
    Inputs in(shape);
    Bench gpu(make_cuda_device());
    const Outcome any_order = run(gpu, in);
    in.shape = reproducible(shape);
    const Outcome first = run(gpu, in);
    // The contents of the workspace must not affect the result: NaN, zeros, numbers.
    for (const std::uint8_t left_over : {0xFF, 0x00, 0x3F}) {
      const Outcome next = run(gpu, in, left_over);
      EXPECT_EQ(next.out.bytes, first.out.bytes);
      EXPECT_EQ(next.d_qkv.bytes, first.d_qkv.bytes);
      EXPECT_EQ(next.lse.bytes, first.lse.bytes);
    }
    // The sums have another order, and documents that are too long use other kernels.
    EXPECT_LT(distance(first.d_qkv, any_order.d_qkv), shape.dtype == DType::bf16 ? 1.2e-2 : 2e-6);
  }
}

/// True if backward differs in bits when only the device has the lengths. Our own kernels handle this case.
bool is_cudnns(Shape shape) {
  Bench gpu(make_cuda_device());
  const Outcome with = run(gpu, Inputs(shape));
  shape.host_lengths_back = false;
  return run(gpu, Inputs(shape)).d_qkv.bytes != with.d_qkv.bytes;
}

TEST(GpuAttention, PackedDocumentsReachCudnnInAFixedOrder) {
  if (!is_cudnns(reproducible({.lengths = {256, 256}, .heads = {4, 2, 64}, .dtype = DType::bf16}))) {
    GTEST_SKIP() << "no cuDNN";
  }
  for (const std::int64_t head_dim : {64, 96, 128}) {
    EXPECT_TRUE(is_cudnns(
        reproducible({.lengths = {300, 41, 700, 5}, .heads = {4, 2, head_dim}, .dtype = DType::bf16})))
        << head_dim;
  }
}

TEST(GpuAttention, AgreesInAFixedOrderToo) {
  check_shape(reproducible({.lengths = {127}, .heads = {2, 1, 64}, .dtype = DType::bf16}));
  check_shape(reproducible({.lengths = {128, 128, 128}, .heads = {4, 1, 128}, .dtype = DType::bf16}));
  check_shape(reproducible({.lengths = {100, 100}, .heads = {4, 4, 64}, .dtype = DType::bf16, .after = 28}));
  check_shape(reproducible({.lengths = {3, 127, 1, 0, 64, 129}, .heads = {4, 2, 80}, .dtype = DType::bf16}));
  check_shape(reproducible(
      {.lengths = {300, 41, 700, 5, 260}, .heads = {14, 2, 64}, .dtype = DType::bf16, .after = 30}));
  check_shape(
      reproducible({.lengths = {90, 600, 0, 31}, .heads = {4, 2, 128}, .dtype = DType::bf16, .window = 64}));
  check_shape(reproducible({.lengths = {33, 700, 129, 1}, .heads = {14, 2, 64}, .dtype = DType::bf16}));
  check_shape(reproducible({.lengths = {1, 2, 1, 1, 200, 1}, .heads = {2, 1, 128}, .dtype = DType::bf16}));
  check_shape(reproducible({.lengths = {127, 2}, .heads = {3, 3, 96}, .dtype = DType::bf16}));
  check_shape(reproducible(
      {.lengths = {385, 128, 129, 256}, .heads = {4, 1, 96}, .dtype = DType::bf16, .window = 130}));
  check_shape(
      reproducible({.lengths = {64, 192, 320, 513}, .heads = {6, 2, 64}, .dtype = DType::bf16, .window = 1}));
  // One document runs in portions of heads.
  check_shape(reproducible({.lengths = {7, 2047}, .heads = {8, 2, 64}, .dtype = DType::bf16}));
  check_shape(
      reproducible({.lengths = {513, 513}, .heads = {6, 2, 96}, .dtype = DType::bf16, .window = 100}));
  check_shape(reproducible({.lengths = {150}, .heads = {2, 2, 64}, .dtype = DType::bf16, .soft_cap = 2.0f}));
}

TEST(GpuAttention, LargeScoresDoNotOverflow) {
  Inputs in({.lengths = {100}, .heads = {1, 1, 64}});
  for (std::int64_t i = 0; i < in.qkv.count(); ++i) {
    if (i % 192 < 128) in.qkv.set(i, static_cast<float>(in.qkv[i]) * 60.0f);
  }
  Bench gpu(make_cuda_device());
  EXPECT_LT(distance(run(gpu, in).out, reference(in).out), 2e-2);  // scores near 1e4 lose digits
}

}  // namespace
}  // namespace octet::ops::attention_test
