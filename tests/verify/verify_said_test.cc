// verify's texts about carriers between GPUs, and its cleanup.
#include <gtest/gtest.h>

#include <filesystem>

#include "../src/verify/verify_checks.h"
#include "octet/base/error.h"
#include "octet/verify/run_checks.h"
#include "support/program.h"

namespace octet::verify::verify_said_test {
namespace {

namespace fs = std::filesystem;
using test::spill;
using test::TemporaryFolder;

TEST(VerifyLinks, ACarrierThatWorksOnSuchAMachineAndDoesNotIsNoTick) {
  const LinkTrial peer{.carrier = "peer", .rates = " rates of peer"};
  const LinkTrial nccl{.carrier = "nccl", .trouble = "NCCL cannot be loaded"};
  const LinkTrial host{.carrier = "host", .rates = " rates of host"};
  EXPECT_EQ(links_text("GB/s", {peer, host}),
            "GB/s\n              peer rates of peer\n              host rates of host");
  try {
    links_text("GB/s", {peer, nccl, host});
    FAIL() << "a tick";
  } catch (const Error& error) {
    const Problem& problem = error.problem();
    EXPECT_NE(problem.what.find("does not work: nccl"), std::string::npos) << problem.what;
    EXPECT_EQ(problem.found, "nccl: NCCL cannot be loaded");
    EXPECT_FALSE(problem.fix.empty());
  }
}

TEST(VerifyLinks, ACarrierThatSuchAMachineHasNotIsNoFault) {
  const LinkTrial peer{.carrier = "peer", .expected = false, .trouble = "memory is not shared"};
  const LinkTrial host{.carrier = "host", .rates = " rates"};
  EXPECT_EQ(links_text("GB/s", {peer, host}),
            "GB/s\n              peer cannot be used with these GPUs: memory is not shared\n              "
            "host rates");
}

TEST(VerifyLeftovers, GoWithTheirOwnerAndFoldersOnlyWhereTheyAreEmpty) {
  const TemporaryFolder folder("leftovers");
  spill(folder / "kept/file", "of somebody else");
  {
    Leftovers leftovers;
    leftovers.add_missing_folders(folder / "new/er");
    leftovers.add_missing_folders(folder / "kept/new");
    leftovers.add(folder / "new/er/checkpoint");
    spill(folder / "new/er/checkpoint/part/file", "made");
    spill(folder / "kept/new/other", "of somebody else");
    try {
      const Leftovers::Own own(leftovers, folder / "kept/mine");
      spill(own.path() + "/file", "made");
      throw Error("a check fails");
    } catch (const Error&) {
      EXPECT_FALSE(fs::exists(folder / "kept/mine"));
    }
    EXPECT_TRUE(fs::exists(folder / "new/er/checkpoint/part/file"));
  }
  EXPECT_FALSE(fs::exists(folder / "new"));
  EXPECT_TRUE(fs::exists(folder / "kept/new/other"));
}

TEST(VerifyLeftovers, ThatAreRemovedMayComeAgain) {
  const TemporaryFolder folder("leftovers_again");
  Leftovers leftovers;
  leftovers.add(folder / "file");
  for (int i = 0; i < 2; ++i) {
    spill(folder / "file", "made");
    leftovers.remove_all();
    EXPECT_FALSE(fs::exists(folder / "file"));
  }
}

}  // namespace
}  // namespace octet::verify::verify_said_test
