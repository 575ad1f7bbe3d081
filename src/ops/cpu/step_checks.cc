#include "octet/ops/step_checks.h"

#include <atomic>
#include <cstring>

#include "cpu/simd.h"
#include "hash_word.h"
#include "kernels.h"

namespace octet::ops::cpu {
namespace {

OCTET_SIMD Hash hash_range(const std::byte* __restrict data, std::uint64_t place, std::int64_t words) {
  Hash sum;
  for (std::int64_t i = 0; i < words; ++i) {
    std::uint64_t word;
    std::memcpy(&word, data + i * 8, 8);
    const std::uint64_t at = place + static_cast<std::uint64_t>(i);
    const std::uint64_t mixed = hash_word(word, at);
    sum.first += mixed;
    sum.second += hash_weighted(mixed, at);
  }
  return sum;
}

void add(Hash& to, const Hash& part) {
  std::atomic_ref(to.first).fetch_add(part.first, std::memory_order_relaxed);
  std::atomic_ref(to.second).fetch_add(part.second, std::memory_order_relaxed);
}

}  // namespace

void add_hash(const HashArgs& a) {
  const auto* data = static_cast<const std::byte*>(a.data);
  const std::int64_t words = a.bytes / 8, rest = a.bytes % 8;
  const std::uint64_t place = a.at / 8;
  simd::parallel_rows(words, 4, [&](std::int64_t begin, std::int64_t end) {
    add(*a.to, hash_range(data + begin * 8, place + static_cast<std::uint64_t>(begin), end - begin));
  });
  if (rest == 0) return;
  std::array<std::byte, 8> last{};
  std::memcpy(last.data(), data + words * 8, static_cast<std::size_t>(rest));
  add(*a.to, hash_range(last.data(), place + static_cast<std::uint64_t>(words), 1));
}

void limit_step(const LimitStepArgs& a) {
  StepScalars& s = *a.scalars;
  double loss = 0;
  for (std::int64_t i = 0; i < a.losses; ++i) loss += a.loss_sums[i];
  const bool above = loss / s.label_tokens > a.limits.loss || s.grad_norm > a.limits.grad_norm;
  if (s.skip != 0 || !above) return;
  s.skip = 1;
  s.grad_scale = 0.0f;
}

}  // namespace octet::ops::cpu
