#include "octet/base/random.h"

#include "cpu/rows.h"
#include "kernels.h"

namespace octet::ops::cpu {

void random_normal(const RandomNormalArgs& a) {
  constexpr std::int64_t kWork = 64;  // cost of a logarithm, a cosine and ten rounds of the generator
  with_type(a.dtype, [&](auto type) {
    simd::parallel_rows(a.count, kWork, [&](std::int64_t begin, std::int64_t end) {
      auto* out = static_cast<decltype(type)*>(a.out);
      for (std::int64_t i = begin; i < end; ++i) {
        simd::store(out[i], a.deviation * normal(a.seed, RandomUse::init, number_of(a, i)));
      }
    });
  });
}

}  // namespace octet::ops::cpu
