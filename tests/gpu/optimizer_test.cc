// The end of a step on the GPU has the bits of the CPU: exact sums, norms, and AdamW without contraction.
#include <limits>

#include "gpu/sides.h"
#include "octet/ops/optimizer.h"

namespace octet::ops::optimizer_test {
namespace {

std::vector<float> gradients(std::int64_t count, double scale) {
  std::vector<float> x = random_floats(count, 11, scale);
  for (std::size_t i = 0; i < x.size(); i += 97) x[i] *= 1e-30f;
  for (std::size_t i = 5; i < x.size(); i += 101) x[i] = 0;
  return x;
}

void norm_of(Side& s, const std::vector<float>& x, double label_tokens) {
  auto* limbs = s.put(std::vector<std::int64_t>(kExactLimbs + 1, 0));
  const auto n = static_cast<std::int64_t>(x.size());
  square_sum(s, {s.put(x), DType::f32, n, limbs});
  square_sum(s, {s.put(x), DType::f32, n / 2, limbs});
  s.out("limbs", reinterpret_cast<const std::uint8_t*>(limbs), (kExactLimbs + 1) * 8, DType::u8);
  for (const float limit : {0.0f, 1e-3f, 1e30f}) {
    StepScalars scalars;
    scalars.max_grad_norm = limit;
    scalars.label_tokens = label_tokens;
    auto* out = s.put(std::vector<StepScalars>{scalars});
    finish_norm(s, limbs, out);
    s.out("norm and scale", &out->grad_norm, 2, DType::f32);
    s.out("skip", reinterpret_cast<const std::uint8_t*>(&out->skip), 4, DType::u8);
  }
}

TEST(GradientNorm, HasTheSameBitsForAnySizeAndScale) {
  for (const std::int64_t n : {1, 127, 128, 129, 4095, 4097, 300001}) {
    for (const double scale : {1e-30, 1e-3, 1.0, 1e30}) {
      both([&](Side& s) { norm_of(s, gradients(n, scale), 1234); }, {});
    }
  }
  both([&](Side& s) { norm_of(s, gradients(1000, 1), 0); }, {});
  both([&](Side& s) { norm_of(s, std::vector<float>(1000, 0.0f), 7); }, {});
  // Many equal blocks produce limbs with carries, and exact ties.
  both([&](Side& s) { norm_of(s, std::vector<float>(1 << 20, 0x1.FFFFFEp-1f), 1); }, {});
}

TEST(GradientNorm, SeesWhatIsNotFinite) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x = gradients(5000, 1);
    x[4321] = bad;
    both([&](Side& s) { norm_of(s, x, 10); }, {.absolute = 1e-300});
  }
}

// Unaligned arrays, numbers of every bf16 magnitude, and non-finite values.
TEST(GradientNorm, OfBf16) {
  for (const std::int64_t first : {0, 1, 8}) {
    for (const double scale : {1e-39, 1e-30, 1.0, 1e30}) {
      for (const float bad :
           {0.0f, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
            std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<std::uint16_t> x;
        for (const float value : gradients(20011, scale)) x.push_back(to_bf16(value));
        x[17000] = to_bf16(bad);
        both(
            [&](Side& s) {
              auto* limbs = s.put(std::vector<std::int64_t>(kExactLimbs + 1, 0));
              square_sum(s, {s.put(x) + first, DType::bf16, 20011 - first, limbs});
              s.out("limbs", reinterpret_cast<const std::uint8_t*>(limbs), (kExactLimbs + 1) * 8, DType::u8);
            },
            {});
      }
    }
  }
}

TEST(AdamW, UpdatesWithTheSameBits) {
  constexpr std::int64_t n = 5003;
  const std::vector<AdamWSpan> spans = {
      {.begin = 0, .count = 1, .decay = true, .amax_index = 2},
      {.begin = 128, .count = 129, .decay = false, .amax_index = -1},
      {.begin = 384, .count = 4000, .decay = true, .rate = 16.0f, .amax_index = 0},
      {.begin = 4385, .count = 618, .decay = true, .amax_index = 1}};
  for (const DType copy_dtype : {DType::bf16, DType::f32}) {
    for (const int skip : {0, 1}) {
      both(
          [&](Side& s) {
            std::vector<float> squares = random_floats(n, 4, 1e-2);
            for (float& x : squares) x *= x;
            auto* master = s.put(random_floats(n, 1));
            auto* m = s.put(random_floats(n, 3, 1e-2));
            auto* v = s.put(squares);
            auto* copy = s.put(std::vector<std::uint32_t>(n, 0x12345678u));
            auto* amax = s.put(std::vector<float>{0.0f, 100.0f, 0.0f});
            StepScalars scalars;
            scalars.learning_rate = 3e-4f;
            scalars.bias_correction1 = 0.19f;
            scalars.bias_correction2 = 0.002f;
            scalars.grad_scale = 0.37f;
            scalars.skip = skip;
            adamw(s, {.master = master,
                      .grad = s.put(random_floats(n, 2)),
                      .exp_avg = m,
                      .exp_avg_sq = v,
                      .spans = spans,
                      .weight_decay = 0.1,
                      .scalars = s.put(std::vector<StepScalars>{scalars}),
                      .copy = copy,
                      .copy_dtype = copy_dtype,
                      .amax = amax});
            s.out("master", master, n, DType::f32);
            s.out("exp_avg", m, n, DType::f32);
            s.out("exp_avg_sq", v, n, DType::f32);
            s.out("copy", reinterpret_cast<const std::uint8_t*>(copy), 4 * n, DType::u8);
            s.out("amax", amax, 3, DType::f32);
          },
          {});
    }
  }
}

// bf16 masters may round to the other neighbour if the GPU's root or reciprocal is one unit off. All other
// results have the same bits, and so does a master with a zero update.
void narrow_states(const std::vector<AdamWSpan>& spans) {
  const std::int64_t n = spans.back().begin + spans.back().count;
  const auto narrow = [](const std::vector<float>& x) {
    std::vector<std::uint16_t> bits;
    for (const float value : x) bits.push_back(to_bf16(value));
    return bits;
  };
  for (const DType moments : {DType::bf16, DType::u8}) {
    for (const DType grads : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(std::string(name_of(moments)) + " " + std::string(name_of(grads)));
      both(
          [&](Side& s) {
            std::vector<float> squares = random_floats(n, 4, 1e-2);
            for (float& x : squares) x *= x;
            const std::vector<float> g = random_floats(n, 2), first = random_floats(n, 3, 1e-2);
            auto* master = s.put(narrow(random_floats(n, 1)));
            const std::size_t blocks = static_cast<std::size_t>(n / kMomentBlock + 1);
            auto* m_scale = s.put(std::vector<float>(blocks, 0x1p-12f));
            auto* v_scale = s.put(std::vector<float>(blocks, 0x1p-30f));
            std::vector<std::uint8_t> codes(static_cast<std::size_t>(n));
            for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i * 37 % 120);
            void* m = moments == DType::bf16 ? static_cast<void*>(s.put(narrow(first))) : s.put(codes);
            void* v = moments == DType::bf16 ? static_cast<void*>(s.put(narrow(squares))) : s.put(codes);
            auto* amax = s.put(std::vector<float>{0.0f, 0.0f});
            StepScalars scalars;
            scalars.learning_rate = 3e-4f;
            scalars.bias_correction1 = 0.19f;
            scalars.bias_correction2 = 0.002f;
            scalars.grad_scale = 0.37f;
            scalars.noise = 0x123456789ABCDEFull;
            adamw(s, {.master = master,
                      .master_dtype = DType::bf16,
                      .grad = grads == DType::f32 ? static_cast<const void*>(s.put(g)) : s.put(narrow(g)),
                      .grad_dtype = grads,
                      .exp_avg = m,
                      .exp_avg_sq = v,
                      .moment_dtype = moments,
                      .exp_avg_scale = m_scale,
                      .exp_avg_sq_scale = v_scale,
                      .spans = spans,
                      .weight_decay = 0.1,
                      .scalars = s.put(std::vector<StepScalars>{scalars}),
                      .amax = amax});
            const auto width = static_cast<std::int64_t>(size_of(moments));
            s.out("exp_avg", static_cast<const std::uint8_t*>(m), n * width, DType::u8);
            s.out("exp_avg_sq", static_cast<const std::uint8_t*>(v), n * width, DType::u8);
            s.out("exp_avg_scale", m_scale, static_cast<std::int64_t>(blocks), DType::f32);
            s.out("exp_avg_sq_scale", v_scale, static_cast<std::int64_t>(blocks), DType::f32);
            s.out("master", master, n, DType::bf16);
          },
          {.bf16_steps = 1.01});
    }
  }
}

TEST(AdamW, NarrowStatesAreThoseOfTheCpu) {
  narrow_states({{.begin = 0, .count = 4096, .decay = true, .amax_index = 0, .tensor = 3, .first = 1024},
                 {.begin = 4224, .count = 77, .decay = false, .amax_index = 1, .tensor = 4, .first = 0}});
}

// Spans of whole packs have a separate kernel. Their ends are inside a tile of a thread block and inside a
// block of moments.
TEST(AdamW, NarrowStatesOfWholePacksAreThoseOfTheCpu) {
  narrow_states(
      {{.begin = 0, .count = 4096, .decay = true, .amax_index = 0, .tensor = 3, .first = 1024},
       {.begin = 4224, .count = 2048 + 136, .decay = false, .amax_index = 1, .tensor = 4, .first = 0},
       {.begin = 6528, .count = 8, .decay = true, .amax_index = -1, .tensor = 5, .first = 0}});
}

// A NaN in a state stays in its element for any noise of the rounding.
TEST(AdamW, NaNStaysWhereItIs) {
  constexpr std::int64_t n = 4096;
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<AdamWSpan> spans = {{.begin = 0, .count = n, .decay = true, .amax_index = -1}};
  const auto narrow = [](std::vector<float> x, std::size_t at, float what) {
    x[at] = what;
    std::vector<std::uint16_t> bits;
    for (const float value : x) bits.push_back(to_bf16(value));
    return bits;
  };
  both(
      [&](Side& s) {
        std::vector<float> squares = random_floats(n, 4, 1e-2);
        for (float& x : squares) x *= x;
        auto* master = s.put(narrow(random_floats(n, 1), 7, nan));
        auto* m = s.put(narrow(random_floats(n, 3, 1e-2), 1000, nan));
        auto* v = s.put(narrow(squares, 2049, nan));
        StepScalars scalars;
        scalars.learning_rate = 3e-4f;
        scalars.bias_correction1 = 0.19f;
        scalars.bias_correction2 = 0.002f;
        scalars.grad_scale = 0.37f;
        scalars.noise = 42;
        adamw(s, {.master = master,
                  .master_dtype = DType::bf16,
                  .grad = s.put(narrow(random_floats(n, 2), 0, 0)),
                  .grad_dtype = DType::bf16,
                  .exp_avg = m,
                  .exp_avg_sq = v,
                  .moment_dtype = DType::bf16,
                  .spans = spans,
                  .weight_decay = 0.1,
                  .scalars = s.put(std::vector<StepScalars>{scalars})});
        s.out("master", master, n, DType::bf16);
        s.out("exp_avg", m, n, DType::bf16);
        s.out("exp_avg_sq", v, n, DType::bf16);
      },
      {.bf16_steps = 1.01});
}

}  // namespace
}  // namespace octet::ops::optimizer_test
