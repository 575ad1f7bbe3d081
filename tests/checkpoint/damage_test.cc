// Checkpoints after kills, full disks and bit errors.
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "octet/base/files.h"
#include "sample.h"

namespace octet::checkpoint::damage_test {
namespace {

// Runs `work` in a child process that the failpoint should kill. Returns whether it was killed.
template <class Work>
bool killed_at(const std::string& failpoint, Work&& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("OCTETRUN_FAILPOINT", failpoint.c_str(), 1);
    try {
      work();
    } catch (...) {
      ::_exit(3);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

class KilledAt : public testing::TestWithParam<const char*> {};

TEST_P(KilledAt, TheNewOrThePreviousCheckpointIsWhole) {
  for (const int ranks : {1, 3}) {
    const Scratch scratch;
    save_sample(scratch.path(), 10, 2);
    ASSERT_TRUE(killed_at(GetParam(), [&] { save_sample(scratch.path(), 20, ranks); }));
    const Found found = latest(scratch.path());
    const bool named = std::string(GetParam()) == "after_rename";
    EXPECT_EQ(found.path, scratch / (named ? "checkpoint-20" : "checkpoint-10"));
    EXPECT_TRUE(found.rejected.empty());
    expect_sample(found.path);
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch.path()), {}), named ? 2 : 1)
        << "files of the killed process are removed";
  }
}

INSTANTIATE_TEST_SUITE_P(Failpoints, KilledAt,
                         testing::Values("before_write", "mid_write", "mid_write:2", "mid_write:8",
                                         "before_fsync", "before_manifest", "before_rename", "after_rename"),
                         [](const auto& failpoint) {
                           std::string name = failpoint.param;
                           std::replace(name.begin(), name.end(), ':', '_');
                           return name;
                         });

TEST(KilledAt, ReplacingTheSameStepKeepsOneOfTheTwo) {
  for (const char* failpoint : {"before_rename", "after_rename"}) {
    const Scratch scratch;
    save_sample(scratch.path(), 10, 2);
    ASSERT_TRUE(killed_at(failpoint, [&] { save_sample(scratch.path(), 10, 3); }));
    EXPECT_EQ(latest(scratch.path()).path, scratch / "checkpoint-10");
    EXPECT_EQ(Checkpoint(scratch / "checkpoint-10").manifest().world,
              std::string(failpoint) == "before_rename" ? 2 : 3);
    expect_sample(scratch / "checkpoint-10");
  }
}

TEST(KilledAt, PruningLeavesOnlyWholeCheckpoints) {
  const Scratch scratch;
  for (const std::int64_t step : {1, 2, 3}) save_sample(scratch.path(), step, 1);
  ASSERT_TRUE(killed_at("before_prune:2", [&] { rotate(scratch.path(), 1); }));
  EXPECT_EQ(latest(scratch.path()).path, scratch / "checkpoint-3");
  for (const auto& [step, path] : list_checkpoints(scratch.path())) expect_sample(path);
  EXPECT_EQ(list_checkpoints(scratch.path()).size(), 2u);
}

// Expects that both ranks fail to save step 20, with the same message, which contains `part`.
void expect_failure_on_all_ranks(const std::string& output_dir, const char* part) {
  std::vector<std::string> errors(2, "none");
  on_ranks(2, [&](comm::Channel& channel) {
    auto tensors = sample(20);
    try {
      save(channel, output_dir, contents_of(tensors, 20, channel.rank(), 2));
    } catch (const Error& e) {
      errors[static_cast<std::size_t>(channel.rank())] = e.what();
    }
  });
  EXPECT_NE(errors[0].find(part), std::string::npos) << errors[0];
  EXPECT_NE(errors[1], "none");
}

void expect_only_step_10(const std::string& output_dir) {
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(output_dir), {}), 1);
  EXPECT_EQ(latest(output_dir).path, output_dir + "/checkpoint-10");
  expect_sample(output_dir + "/checkpoint-10");
}

// A file system mounted on a folder while the object lives. Requires root.
class Mount {
 public:
  Mount(const std::string& path, unsigned long flags, const char* options)
      : path_(path), mounted_(::mount("octet-test", path.c_str(), "tmpfs", flags, options) == 0) {}
  ~Mount() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;
  explicit operator bool() const { return mounted_; }

 private:
  std::string path_;
  bool mounted_;
};

TEST(FullDisk, IsFoundBeforeAnythingIsWritten) {
  const Scratch scratch;
  const Mount small(scratch.path(), 0, "size=12m");
  if (!small) GTEST_SKIP() << "mounting a small tmpfs needs root";
  save_sample(scratch.path(), 10, 2);
  expect_failure_on_all_ranks(scratch.path(), "too little space for a checkpoint");
  expect_only_step_10(scratch.path());
}

TEST(FullDisk, AFileSizeLimitEndsInAMessage) {
  const Scratch scratch;
  save_sample(scratch.path(), 10, 2);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{1 << 20, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  expect_failure_on_all_ranks(scratch.path(), "File too large");
  ::setrlimit(RLIMIT_FSIZE, &before);
  expect_only_step_10(scratch.path());
}

TEST(UnwritableFolder, EndsInAMessageOnAllRanks) {
  const Scratch scratch;
  put(scratch / "file", "in the way");
  expect_failure_on_all_ranks(scratch / "file", "Not a directory");
  if (::geteuid() == 0) {
    // Root can write anywhere, except to a read-only file system.
    const Mount read_only(scratch.path(), MS_RDONLY, "size=64m");
    if (!read_only) GTEST_SKIP() << "mounting needs privileges";
    expect_failure_on_all_ranks(scratch.path(), "Read-only file system");
  } else {
    ::chmod(scratch.path().c_str(), 0555);
    expect_failure_on_all_ranks(scratch.path(), "Permission denied");
  }
}

void flip(const std::string& path, std::int64_t offset) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(offset);
  const char byte = static_cast<char>(file.get() ^ 4);
  file.seekp(offset);
  file.put(byte);
  ASSERT_TRUE(file.good());
}

// Saves steps 10 and 20 and damages the newer one. Expects that the older one is found, and that the message
// contains `part`.
template <class Damage>
void expect_fallback(const char* part, Damage&& damage) {
  const Scratch scratch;
  save_sample(scratch.path(), 10, 2);
  save_sample(scratch.path(), 20, 2);
  damage(scratch / "checkpoint-20");
  for (const int ranks : {1, 3}) {
    on_ranks(ranks, [&](comm::Channel& channel) {
      const Found found = find_latest(channel, scratch.path());
      EXPECT_EQ(found.path, scratch / "checkpoint-10") << part;
      ASSERT_EQ(found.rejected.size(), 1u);
      EXPECT_NE(found.rejected[0].second.find(part), std::string::npos) << found.rejected[0].second;
    });
  }
  expect_sample(latest(scratch.path()).path);
}

TEST(BitRot, InDataFallsBackAndNamesTheTensor) {
  expect_fallback(
      "tensor 'exp_avg_sq/model.embed_tokens.weight', bytes 2097152 to 2520000", [](const std::string& path) {
        const std::int64_t offset = Checkpoint(path).at("exp_avg_sq/model.embed_tokens.weight").offset;
        flip(path + "/checkpoint.h5", offset + 2500000);
        EXPECT_ERROR("a hash does not match", expect_sample(path));
        Checkpoint(path).verify(1, 1000000);  // a share without the damaged chunk
      });
}

// Several ranks share the verification. Damage in the share of any rank counts.
TEST(BitRot, InTheShareOfAnyRankFallsBack) {
  for (const std::int64_t at : {100, 1100000, 2200000}) {  // three chunks, three ranks
    expect_fallback("tensor 'exp_avg_sq/model.embed_tokens.weight'", [at](const std::string& path) {
      flip(path + "/checkpoint.h5", Checkpoint(path).at("exp_avg_sq/model.embed_tokens.weight").offset + at);
    });
  }
}

// A rank reads its slice, which rarely consists of whole chunks. Damage anywhere in the chunk must be
// detected, even outside the slice.
TEST(BitRot, IsFoundByThoseWhoReadAPartOfAChunk) {
  const Scratch scratch;
  save_sample(scratch.path(), 10, 2);
  const std::string path = scratch / "checkpoint-10";
  const CheckpointTensor tensor = Checkpoint(path).at("model.embed_tokens.weight");
  flip(path + "/checkpoint.h5", tensor.offset + 5000);
  const Checkpoint checkpoint(path);
  std::vector<float> values(50);
  const auto read = [&](std::int64_t begin, std::int64_t count, DType dtype = DType::f32) {
    checkpoint.read({TensorSlice{tensor.name, dtype, tensor.shape, begin, count, values.data()}});
  };
  for (const std::int64_t begin : {0, 1240, 3000}) {
    EXPECT_ERROR("a hash does not match", read(begin, 50));
    EXPECT_ERROR("a hash does not match", read(begin, 50, DType::bf16));
  }
  EXPECT_EQ(error_of([&] { read(300000, 50); }), "") << "another chunk is whole";
}

TEST(BitRot, InAnyFileFallsBack) {
  expect_fallback("HDF5 metadata", [](const std::string& path) { flip(path + "/checkpoint.h5", 9); });
  expect_fallback("/state", [](const std::string& path) {
    flip(path + "/checkpoint.h5", Checkpoint(path).manifest().state.offset);
  });
  expect_fallback("/config", [](const std::string& path) {
    flip(path + "/checkpoint.h5", Checkpoint(path).manifest().config.offset);
  });
  expect_fallback("hash does not match", [](const std::string& path) { flip(path + "/manifest.json", 200); });
  expect_fallback("hash does not match", [](const std::string& path) { flip(path + "/manifest.json", 12); });
  expect_fallback("does not start with its hash",
                  [](const std::string& path) { flip(path + "/manifest.json", 2); });
}

TEST(BitRot, TruncatedAndMissingFilesFallBack) {
  namespace fs = std::filesystem;
  expect_fallback("wrong size",
                  [](const std::string& path) { fs::resize_file(path + "/checkpoint.h5", 100000); });
  expect_fallback("wrong size", [](const std::string& path) { fs::resize_file(path + "/checkpoint.h5", 0); });
  expect_fallback("cannot open", [](const std::string& path) { fs::remove(path + "/checkpoint.h5"); });
  expect_fallback("no manifest", [](const std::string& path) { fs::remove(path + "/manifest.json"); });
  expect_fallback("does not start",
                  [](const std::string& path) { fs::resize_file(path + "/manifest.json", 0); });
  expect_fallback("hash does not match", [](const std::string& path) {
    fs::resize_file(path + "/manifest.json", fs::file_size(path + "/manifest.json") - 1);
  });
  // Files of another checkpoint, each intact.
  expect_fallback("HDF5 metadata", [](const std::string& path) {
    fs::copy_file(path + "/../checkpoint-10/checkpoint.h5", path + "/checkpoint.h5",
                  fs::copy_options::overwrite_existing);
  });
}

TEST(HostileManifest, WithAHashThatHoldsIsStillChecked) {
  const Scratch scratch;
  save_sample(scratch.path(), 10, 1);
  const std::string path = scratch / "checkpoint-10/manifest.json";
  const std::string good = read_file(path);
  const auto with = [&](const std::string& what, const std::string& instead) {
    std::string body = good.substr(good.find('\n') + 1);
    const std::size_t at = body.find(what);
    EXPECT_NE(at, std::string::npos) << what;
    body.replace(at, what.size(), instead);
    put(path, "{\"hash\":\"" + hash128_hex(body) + "\",\n" + body);
    return error_of([&] { Checkpoint{scratch / "checkpoint-10"}; });
  };
  const auto expect_refused = [&](const std::string& what, const std::string& instead, const char* part) {
    EXPECT_PRED_FORMAT2(testing::IsSubstring, part, with(what, instead));
  };
  EXPECT_EQ(with("\"step\": 10", "\"step\": 10"), "");
  expect_refused("\"version\": 1", "\"version\": 2", "another format version");
  expect_refused("\"step\": 10", "\"step\": -1", "whole number");
  expect_refused("\"step\": 10", "\"step\": 99999999999999999999", "whole number");
  expect_refused("checkpoint.h5", "../../secret", "another data file");
  expect_refused("\"offset\": ", "\"offset\": 9000000000000", "outside the file");
  expect_refused("\"bytes\": ", "\"bytes\": 9", "wrong size");
  expect_refused("  700,\n", "  9223372036854775807,\n", "impossible");
  expect_refused("  700,\n", "  -700,\n", "impossible");
  expect_refused("  700,\n", "  701,\n", "disagree");
  expect_refused("\"dtype\": \"bf16\"", "\"dtype\": \"fp16\"", "disagree");
  expect_refused("\"dtype\": \"bf16\"", "\"dtype\": \"fp7\"", "not known");
  expect_refused("\"chunks\": \"", "\"chunks\": \"0", "chunk hashes");
  expect_refused("\"tensors\": [", "\"tensors\": 5, \"more\": [", "not a list");
  expect_refused("\"state\"", "\"estate\"", "lacks 'state'");
  expect_refused("octet checkpoint", "octet checkpoints", "not the manifest of a checkpoint");
  expect_refused("\"chunk_bytes\": 1", "\"chunk_bytes\": 2", "another chunk size");
  expect_refused("\"shape\": [", "\"shape\": 3, \"more\": [", "is not a list");
  expect_refused("\"world\": 1", "\"world\": 0", "'world'");
  expect_refused("\"zero_stage\": 1", "\"zero_stage\": 4", "'zero_stage'");
  expect_refused("\"step\": 10", "\"step\": null", "lacks 'step'");
  // The first chunk hash is not hexadecimal.
  const std::size_t chunks = good.find("\"chunks\": \"") + 11;
  const std::string first = good.substr(chunks, 16);
  expect_refused("\"chunks\": \"" + first, "\"chunks\": \"g" + first.substr(1), "not hexadecimal");
  // One entry occurs twice.
  const std::size_t list = good.find("\"tensors\": [") + 12, end = good.find("\n  }", list) + 4;
  expect_refused("\"tensors\": [", "\"tensors\": [" + good.substr(list, end - list) + ",", "twice");
}

TEST(BitRot, WithoutAnyValidCheckpointTheReasonsAreGiven) {
  const Scratch scratch;
  save_sample(scratch.path(), 10, 1);
  flip(scratch / "checkpoint-10/manifest.json", 300);
  const Found found = latest(scratch.path());
  EXPECT_EQ(found.path, "");
  EXPECT_EQ(found.rejected.size(), 1u);
}

TEST(FindLatest, LooksBeforeAStep) {
  const Scratch scratch;
  for (const std::int64_t step : {10, 20, 30}) save_sample(scratch.path(), step, 1);
  EXPECT_EQ(latest(scratch.path(), {.before_step = 30}).path, scratch / "checkpoint-20");
}

// Special files and files of impossible size must be rejected unread. A pipe would block, a device has no
// end, and a huge size would exhaust memory.
TEST(NotAFile, InPlaceOfAManifestOrOfTheDataFallsBack) {
  const auto replace = [](const std::string& path, const char* name, auto&& with) {
    std::filesystem::remove(path + "/" + name);
    with((path + "/" + name).c_str());
  };
  expect_fallback("a pipe", [&](const std::string& path) {
    replace(path, "manifest.json", [](const char* file) { ASSERT_EQ(::mkfifo(file, 0600), 0); });
  });
  expect_fallback("a device", [&](const std::string& path) {
    replace(path, "manifest.json", [](const char* file) { ASSERT_EQ(::symlink("/dev/zero", file), 0); });
  });
  expect_fallback("is too large", [](const std::string& path) {
    ASSERT_EQ(::truncate((path + "/manifest.json").c_str(), std::int64_t{1} << 40), 0);
  });
  expect_fallback("not a regular file", [&](const std::string& path) {
    replace(path, "checkpoint.h5", [](const char* file) { ASSERT_EQ(::mkfifo(file, 0600), 0); });
  });
}

TEST(WrongName, ACheckpointUnderTheNameOfAnotherStepIsNotTaken) {
  const Scratch scratch;
  save_sample(scratch.path(), 10, 2);
  std::filesystem::copy(scratch / "checkpoint-10", scratch / "checkpoint-30");
  const Found found = latest(scratch.path());
  EXPECT_EQ(found.path, scratch / "checkpoint-10");
  ASSERT_EQ(found.rejected.size(), 1u);
  EXPECT_NE(found.rejected[0].second.find("the name of another one"), std::string::npos);
  // The invalid checkpoint is not counted as kept either.
  save_sample(scratch.path(), 20, 1);
  rotate(scratch.path(), 2);
  EXPECT_TRUE(path_exists(scratch / "checkpoint-10"));
  EXPECT_TRUE(path_exists(scratch / "checkpoint-20"));
  EXPECT_NO_THROW(require_own_name(scratch / "checkpoint-10/", 10));
  EXPECT_NO_THROW(require_own_name(scratch / "best", 10));
}

}  // namespace
}  // namespace octet::checkpoint::damage_test
