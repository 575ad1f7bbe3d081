// Loading NCCL, with stand-in libraries: the files tried, the rejections and their messages.
#include "gpu/nccl_library.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>

#include "support/temporary_folder.h"

namespace octet::comm::nccl_library_test {
namespace {

const std::string good = STAND_IN_NCCL_GOOD;
const std::string old = STAND_IN_NCCL_OLD;
const std::string ancient = STAND_IN_NCCL_ANCIENT;
const std::string incomplete = STAND_IN_NCCL_INCOMPLETE;

/// Returns the problem of the Error that `work` throws.
Problem problem_from(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& e) {
    return e.problem();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}
Problem refusal_of(const std::vector<std::string>& files) {
  return problem_from([&] { const NcclLibrary library(files); });
}

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in '" << text << "'";
}

/// Sets an environment variable until the end of the test.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~Environment() {
    if (before_) {
      setenv(name_, before_->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

TEST(NcclVersion, IsSpelledAsPeopleDo) {
  EXPECT_EQ(nccl_version_name(22809), "2.28.9");
  EXPECT_EQ(nccl_version_name(22200), "2.22.0");
  EXPECT_EQ(nccl_version_name(21805), "2.18.5");
  EXPECT_EQ(nccl_version_name(2708), "2.7.8");
}

TEST(NcclLibrary, IsLoadedWithItsFunctions) {
  const NcclLibrary library({good});
  EXPECT_EQ(library.version(), 22809);
  EXPECT_EQ(library.file(), good);
  EXPECT_EQ(library.description(), "NCCL 2.28.9 (" + good + ")");
  int (*get_version)(int*) = nullptr;
  library.find(get_version, "ncclGetVersion");
  ASSERT_NE(get_version, nullptr);
  int version = 0;
  EXPECT_EQ(get_version(&version), 0);
  EXPECT_EQ(version, 22809);
  const char* (*words)(int) = nullptr;
  library.find(words, "ncclGetErrorString");
  EXPECT_STREQ(words(3), "an error");
  int (*aborts)() = nullptr;
  EXPECT_THROW(library.find(aborts, "ncclCommAbort"), std::logic_error);
}

TEST(NcclLibrary, IsTheFirstFileThatLoads) {
  EXPECT_EQ(NcclLibrary({"libnccl-of-nobody.so.2", good, incomplete}).file(), good);
}

TEST(NcclLibrary, SaysWhereItLookedWhenThereIsNone) {
  const octet::test::TemporaryFolder scratch("nccl");
  const std::filesystem::path folder = scratch.path();
  const std::string text = folder / "libnccl.so.2";
  std::ofstream(text) << "not a library";
  const Problem problem = refusal_of({"libnccl-of-nobody.so.2", text});
  expect_has(problem.what, "NCCL");
  expect_has(problem.what, "cannot be loaded");
  EXPECT_EQ(problem.expected, "NCCL 2.22.0 or newer");
  expect_has(problem.found, "libnccl-of-nobody.so.2: cannot open");
  expect_has(problem.found, text);
  expect_has(problem.fix, "OCTETRUN_NCCL_LIBRARY");
  expect_has(problem.fix, "LD_LIBRARY_PATH");
  EXPECT_EQ(problem.code, ExitCode::usage);
}

TEST(NcclLibrary, IsRefusedWhenTooOld) {
  const Problem problem = refusal_of({old, good});
  EXPECT_EQ(problem.what, "this NCCL is too old");
  EXPECT_EQ(problem.expected, "NCCL 2.22.0 or newer");
  EXPECT_EQ(problem.found, "NCCL 2.18.5");
  EXPECT_EQ(problem.where, old);
  expect_has(problem.fix, "OCTETRUN_NCCL_LIBRARY");
  EXPECT_EQ(problem.code, ExitCode::usage);
}

TEST(NcclLibrary, IsTooOldBeforeItIsIncomplete) {
  const Problem problem = refusal_of({ancient});
  EXPECT_EQ(problem.what, "this NCCL is too old");
  EXPECT_EQ(problem.found, "NCCL 2.7.8");
}

TEST(NcclLibrary, IsRefusedWithoutAFunction) {
  const Problem problem = refusal_of({incomplete});
  EXPECT_EQ(problem.what, "this NCCL has no function ncclRecv");
  EXPECT_EQ(problem.expected, "NCCL 2.22.0 or newer, complete");
  EXPECT_EQ(problem.found, "NCCL 2.23.4 without it");
  EXPECT_EQ(problem.where, incomplete);
  EXPECT_FALSE(problem.fix.empty());
  EXPECT_EQ(problem.code, ExitCode::usage);
}

TEST(NcclLibrary, IsNotAnyLibrary) {
  const Problem problem = refusal_of({"libc.so.6"});
  EXPECT_EQ(problem.what, "a library is not NCCL");
  EXPECT_EQ(problem.found, "no function ncclGetVersion");
  expect_has(problem.where, "/libc.so.6");
}

TEST(NcclFiles, AreTheLoadersTheEnvironmentsAndTheToolkits) {
  const octet::test::TemporaryFolder scratch("nccl");
  const std::filesystem::path folder = scratch.path();
  const Environment nothing_told("OCTETRUN_NCCL_LIBRARY", "");
  const Environment python("VIRTUAL_ENV", folder.string());
  const std::vector<std::string> usual = {"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2"};
  EXPECT_EQ(nccl_files(), usual);
  const auto wheel = folder / "lib/python3.12/site-packages/nvidia/nccl/lib";
  std::filesystem::create_directories(wheel);
  std::filesystem::create_directories(folder / "lib/pkgconfig");
  EXPECT_EQ(nccl_files(), usual);
  std::filesystem::create_symlink(good, wheel / "libnccl.so.2");
  EXPECT_EQ(nccl_files(), (std::vector<std::string>{usual[0], wheel / "libnccl.so.2", usual[1]}));
}

TEST(NcclFiles, AreOneWhenTheUserNamesIt) {
  const Environment told("OCTETRUN_NCCL_LIBRARY", good);
  EXPECT_EQ(nccl_files(), std::vector<std::string>{good});
  EXPECT_EQ(NcclLibrary(nccl_files()).version(), 22809);
  // Loading another library instead would be worse than an error.
  const Environment wrong("OCTETRUN_NCCL_LIBRARY", good + ".missing");
  expect_has(refusal_of(nccl_files()).found, good + ".missing");
}

TEST(NcclVersions, AreTheSameOnAllRanks) {
  EXPECT_NO_THROW(require_one_nccl_version({}));
  EXPECT_NO_THROW(require_one_nccl_version({22809}));
  EXPECT_NO_THROW(require_one_nccl_version({22809, 22809, 22809}));
}

TEST(NcclVersions, AreToldWithTheRanksThatDiffer) {
  const Problem one = problem_from([] { require_one_nccl_version({22304, 22809, 22809, 22809}); });
  EXPECT_EQ(one.what, "ranks run different versions of NCCL");
  EXPECT_EQ(one.expected, "NCCL 2.28.9 on all, as on ranks 1, 2, 3");
  EXPECT_EQ(one.found, "NCCL 2.23.4 on rank 0");
  expect_has(one.fix, "OCTETRUN_NCCL_LIBRARY");
  EXPECT_EQ(one.code, ExitCode::usage);
  const Problem three = problem_from([] {
    require_one_nccl_version({22809, 22703, 22809, 22304, 22703, 22809});
  });
  EXPECT_EQ(three.found, "NCCL 2.23.4 on rank 3; NCCL 2.27.3 on ranks 1, 4");
  const Problem even = problem_from([] { require_one_nccl_version({22703, 22809}); });
  EXPECT_EQ(even.expected, "NCCL 2.27.3 on all, as on rank 0");
  EXPECT_EQ(even.found, "NCCL 2.28.9 on rank 1");
}

TEST(NcclVersions, AreToldInOneLineHoweverManyRanks) {
  std::vector<int> versions(1000, 22809);
  versions[7] = 22703;
  const Problem problem = problem_from([&] { require_one_nccl_version(versions); });
  expect_has(problem.expected,
             "as on ranks 0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16 and 983 more");
  EXPECT_EQ(problem.found, "NCCL 2.27.3 on rank 7");
}

TEST(NcclGroups, HaveARankForEachGpu) {
  EXPECT_NO_THROW(require_a_gpu_each({}));
  EXPECT_NO_THROW(require_a_gpu_each({"GPU-a", "GPU-b", "GPU-c"}));
  const Problem problem = problem_from([] { require_a_gpu_each({"GPU-a", "GPU-b", "GPU-a", "GPU-a"}); });
  EXPECT_EQ(problem.what, "NCCL allows only one rank on each GPU");
  EXPECT_EQ(problem.found, "ranks 0, 2, 3 on GPU-a");
  expect_has(problem.fix, "gpu_transport: auto");
}

TEST(NcclFailures, NameTheCallTheMembersAndTheLibrary) {
  const Problem problem = nccl_problem({.call = "ncclSend",
                                        .code = 2,
                                        .reason = "unhandled system error",
                                        .detail = "Call to connect failed",
                                        .library = "NCCL 2.28.9 (libnccl.so.2)",
                                        .member = 3,
                                        .members = 8,
                                        .peer = 5});
  EXPECT_EQ(problem.what, "ncclSend failed: unhandled system error (2)");
  EXPECT_EQ(problem.found, "Call to connect failed");
  EXPECT_EQ(problem.where, "member 3 of a group of 8, with member 5, NCCL 2.28.9 (libnccl.so.2)");
  expect_has(problem.fix, "NCCL_DEBUG");
  const Problem all = nccl_problem({.call = "ncclGroupEnd", .code = 1, .library = "NCCL", .members = 2});
  EXPECT_EQ(all.where, "member 0 of a group of 2, NCCL");
}

TEST(NcclFailures, SayPlainlyThatAGpuIsShared) {
  for (const char* detail :
       {"Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000",
        "Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this"}) {
    const Problem problem = nccl_problem({.call = "ncclCommInitRankConfig",
                                          .code = 5,
                                          .reason = "invalid usage",
                                          .detail = detail,
                                          .library = "NCCL 2.28.9 (libnccl.so.2)",
                                          .member = 1,
                                          .members = 2});
    EXPECT_EQ(problem.what, "two ranks of one host use the same GPU, which NCCL does not allow");
    EXPECT_EQ(problem.expected, "a GPU for every rank");
    EXPECT_EQ(problem.found, detail);
    expect_has(problem.where, "member 1 of a group of 2");
    expect_has(problem.fix, "CUDA_VISIBLE_DEVICES");
    EXPECT_EQ(problem.code, ExitCode::usage);
  }
}

}  // namespace
}  // namespace octet::comm::nccl_library_test
