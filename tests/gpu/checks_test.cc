// Hashes of memory and step limits on the GPU equal the CPU's.
#include "gpu/sides.h"
#include "octet/ops/step_checks.h"

namespace octet::ops::checks_test {
namespace {

std::vector<std::uint8_t> noise(std::int64_t count) {
  std::vector<std::uint8_t> bytes;
  for (const float x : random_floats(count, 5, 1e3))
    bytes.push_back(static_cast<std::uint8_t>(static_cast<int>(x)));
  return bytes;
}

TEST(HashOnBothSides, HasTheSameBitsForAnySizeAndBeginning) {
  for (const std::int64_t n : {1, 7, 8, 9, 1000, 4099, 1'000'003}) {
    for (const std::int64_t begin : {0, 1, 8}) {
      both(
          [&](Side& s) {
            auto* hash = s.put(std::vector<Hash>(1));
            const std::uint8_t* data = s.put(noise(n + begin)) + begin;
            add_hash(s, {.data = data, .bytes = n, .at = 64, .to = hash});
            add_hash(s, {.data = data, .bytes = n, .at = 1 << 20, .to = hash});
            s.out("hash", reinterpret_cast<const std::uint8_t*>(hash), sizeof *hash, DType::u8);
          },
          {});
    }
  }
}

TEST(LimitStepOnBothSides, SkipsTheSame) {
  for (const double loss : {1.0, 2.0, 2.5}) {
    for (const float norm : {1.0f, 10.0f, 10.5f}) {
      both(
          [&](Side& s) {
            StepScalars scalars;
            scalars.label_tokens = 3, scalars.grad_norm = norm, scalars.grad_scale = 0.5f;
            auto* out = s.put(std::vector<StepScalars>{scalars});
            const double* sums = s.put(std::vector<double>{loss, loss, loss});
            limit_step(
                s, {.limits = {.loss = 2, .grad_norm = 10}, .loss_sums = sums, .losses = 3, .scalars = out});
            s.out("scale", &out->grad_scale, 1, DType::f32);
            s.out("skip", reinterpret_cast<const std::uint8_t*>(&out->skip), 4, DType::u8);
          },
          {});
    }
  }
}

}  // namespace
}  // namespace octet::ops::checks_test
