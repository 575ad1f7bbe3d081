// Facts about kinds of processors, and the functions of devices that return them.
#include "octet/device/traits.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "octet/device/device.h"
#include "octet/device/gpu_choice.h"

namespace octet::traits_test {
namespace {

TEST(Traits, AreTheFactsOfEachKind) {
  // One letter per fact, as in `kFacts`; a dot for a fact that does not hold.
  struct Row {
    DeviceKind kind;
    const char* word;
    const char* facts;
    std::size_t library_bytes;
    std::int64_t busy_tokens;
  };
  const Row rows[] = {
      {DeviceKind::cpu, "cpu", "C..c...E..R", 0, 512},
      {DeviceKind::cuda, "cuda", "CGH.APT.NK.", 805306368, 4096},
      {DeviceKind::dry, "dry", "..........R", 0, 512},
  };
  struct Fact {
    char letter;
    bool DeviceTraits::*holds;
  };
  const Fact facts[] = {{'C', &DeviceTraits::computes},
                        {'G', &DeviceTraits::counts_as_gpu},
                        {'H', &DeviceTraits::has_host_link},
                        {'c', &DeviceTraits::uses_host_cores},
                        {'A', &DeviceTraits::runs_ahead},
                        {'P', &DeviceTraits::has_known_rates},
                        {'T', &DeviceTraits::has_transports},
                        {'E', &DeviceTraits::emulates_fp8},
                        {'N', &DeviceTraits::needs_transposed_fp8},
                        {'K', &DeviceTraits::autotunes_gemms},
                        {'R', &DeviceTraits::reproducible}};
  for (const Row& row : rows) {
    const DeviceTraits& traits = traits_of(row.kind);
    EXPECT_STREQ(traits.word, row.word);
    std::string found;
    for (const Fact& fact : facts) found += traits.*fact.holds ? fact.letter : '.';
    EXPECT_EQ(found, row.facts) << row.word;
    EXPECT_EQ(traits.library_bytes, row.library_bytes) << row.word;
    EXPECT_EQ(traits.busy_tokens, row.busy_tokens) << row.word;
  }
}

TEST(Traits, OfADeviceAreThoseOfItsKindAndOfThePlannedKind) {
  struct Case {
    std::unique_ptr<Device> device;
    const char *itself, *planned;
  };
  Case cases[] = {
      {make_cpu_device({.threads = 1}), "cpu", "cpu"},
      {make_cpu_device({.threads = 1, .stands_for = kGpuKind}), "cpu", "cuda"},
      {make_dry_device(), "dry", "cpu"},
      {make_dry_device({.stands_for = kGpuKind}), "dry", "cuda"},
  };
  for (const Case& c : cases) {
    EXPECT_STREQ(c.device->traits().word, c.itself);
    EXPECT_STREQ(c.device->planned_traits().word, c.planned);
  }
}

TEST(Traits, KnowTheHostAndTheGpu) {
  EXPECT_TRUE(traits_of(kHostKind).uses_host_cores);
  EXPECT_FALSE(traits_of(kHostKind).counts_as_gpu);
  EXPECT_TRUE(traits_of(kGpuKind).counts_as_gpu);
}

TEST(DeviceWishes, AreNamedByTheWordsOfTheKey) {
  for (const DeviceWish wish : {DeviceWish::automatic, DeviceWish::cpu, DeviceWish::cuda})
    EXPECT_EQ(wish_named(name_of(wish)), wish) << name_of(wish);
  EXPECT_EQ(wish_named("cpu"), kWithoutGpus);
  EXPECT_EQ(wish_named(""), DeviceWish::automatic);
}

TEST(DeviceWishes, LeadToAGpuIfOneIsAskedForOrThere) {
  EXPECT_FALSE(leads_to_gpu(kWithoutGpus));
  EXPECT_TRUE(leads_to_gpu(DeviceWish::cuda));
  EXPECT_EQ(leads_to_gpu(DeviceWish::automatic), cuda_available(0));
}

}  // namespace
}  // namespace octet::traits_test
