// Hashes of memory: the changes that they must detect, and sums of partial hashes.
#include "octet/ops/step_checks.h"

#include <limits>
#include <set>
#include <utility>

#include "ops/tensor.h"

namespace octet::ops::hash_test {
namespace {

std::vector<std::uint8_t> bytes_of(std::size_t count, std::uint64_t seed) {
  std::vector<std::uint8_t> bytes(count);
  for (std::size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::uint8_t>(philox(seed, RandomUse::data, i)[0]);
  return bytes;
}

Hash hash_of(const void* data, std::size_t bytes, std::uint64_t at = 0, int threads = 1) {
  Hash hash;
  CpuStream stream(threads);
  add_hash(stream, {.data = data, .bytes = static_cast<std::int64_t>(bytes), .at = at, .to = &hash});
  return hash;
}

TEST(Hash, EverySingleBitChangesBothSums) {
  std::vector<std::uint8_t> bytes = bytes_of(1031, 1);  // the last word is partial
  const Hash before = hash_of(bytes.data(), bytes.size());
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen{{before.first, before.second}};
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1u << (bit % 8));
    const Hash now = hash_of(bytes.data(), bytes.size());
    EXPECT_NE(now.first, before.first) << bit;
    EXPECT_NE(now.second, before.second) << bit;
    EXPECT_TRUE(seen.emplace(now.first, now.second).second) << bit;
    bytes[bit / 8] ^= static_cast<std::uint8_t>(1u << (bit % 8));
  }
}

TEST(Hash, PlacesCount) {
  std::vector<std::uint64_t> words(64, 0);
  const auto hash = [&] { return hash_of(words.data(), words.size() * 8); };
  const Hash zeros = hash();
  EXPECT_NE(zeros, hash_of(words.data(), words.size() * 8 - 8)) << "zeros have places, too";
  words[3] = 77;
  const Hash third = hash();
  std::swap(words[3], words[9]);
  EXPECT_NE(hash(), third) << "two words changed places";
  // The same bit in two words: a plain sum or an exclusive or would miss this change.
  words.assign(64, 0);
  words[5] = words[6] = UINT64_C(1) << 63;
  EXPECT_NE(hash(), zeros);
}

TEST(Hash, PartsAddUpToTheWholeOnAnyNumberOfThreads) {
  const std::vector<std::uint8_t> bytes = bytes_of(800'003, 2);
  const Hash whole = hash_of(bytes.data(), bytes.size());
  EXPECT_EQ(hash_of(bytes.data(), bytes.size(), 0, 2), whole);
  EXPECT_EQ(hash_of(bytes.data(), bytes.size(), 0, 5), whole);
  Hash sum;
  for (const auto& [begin, end] :
       {std::pair<std::size_t, std::size_t>{400'000, 800'003}, {0, 8}, {8, 400'000}}) {
    const Hash part = hash_of(bytes.data() + begin, end - begin, begin);
    sum.first += part.first, sum.second += part.second;
  }
  EXPECT_EQ(sum, whole);
  EXPECT_NE(hash_of(bytes.data(), bytes.size(), 8), whole) << "elsewhere";
}

StepScalars limited(double loss, float norm, const StepLimits& limits, std::int32_t skip = 0) {
  StepScalars s;
  s.label_tokens = 4, s.grad_norm = norm, s.grad_scale = 0.25f, s.skip = skip;
  const double sums[] = {loss, 3 * loss};  // of four tokens
  CpuStream stream;
  limit_step(stream, {.limits = limits, .loss_sums = sums, .losses = 2, .scalars = &s});
  return s;
}

TEST(LimitStep, SkipsWhatIsAboveALimit) {
  const StepLimits limits{.loss = 2, .grad_norm = 10};
  EXPECT_TRUE(limits.any());
  EXPECT_FALSE(StepLimits{}.any());
  EXPECT_EQ(limited(2, 10, limits).skip, 0) << "as much is not more";
  EXPECT_EQ(limited(2, 10, limits).grad_scale, 0.25f);
  EXPECT_EQ(limited(2.01, 1, limits).skip, 1);
  EXPECT_EQ(limited(2.01, 1, limits).grad_scale, 0.0f);
  EXPECT_EQ(limited(1, 10.01f, limits).skip, 1);
  EXPECT_EQ(limited(1e9, 1e9f, {}).skip, 0);
  EXPECT_EQ(limited(1, 1, limits, 1).skip, 1) << "what was skipped stays so";
  EXPECT_EQ(limited(std::numeric_limits<double>::infinity(), 1, limits).skip, 1);
}

}  // namespace
}  // namespace octet::ops::hash_test
