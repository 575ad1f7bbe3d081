#include "octet/base/model_file.h"

#include <gtest/gtest.h>

#include <map>

#include "octet/base/files.h"
#include "support/program.h"

namespace octet::hub_cache_test {
namespace {

std::string folder_with(std::map<std::string, std::string> set) {
  return hub_folder([&](const char* name) { return set[name]; });
}

// huggingface_hub/constants.py: in this order.
TEST(HubCache, LiesWhereHuggingFacesLibrariesPutIt) {
  EXPECT_EQ(folder_with({{"HF_HUB_CACHE", "/a"}, {"HF_HOME", "/b"}, {"HOME", "/h"}}), "/a");
  EXPECT_EQ(folder_with({{"HUGGINGFACE_HUB_CACHE", "/a"}, {"HF_HOME", "/b"}}), "/a");
  EXPECT_EQ(folder_with({{"HF_HOME", "/b"}, {"XDG_CACHE_HOME", "/c"}, {"HOME", "/h"}}), "/b/hub");
  EXPECT_EQ(folder_with({{"XDG_CACHE_HOME", "/c"}, {"HOME", "/h"}}), "/c/huggingface/hub");
  EXPECT_EQ(folder_with({{"HOME", "/h"}}), "/h/.cache/huggingface/hub");
  EXPECT_EQ(folder_with({}), "");
}

TEST(HubCache, GivesTheSnapshotThatAReferenceOrACommitNames) {
  const test::TemporaryFolder hub("hub");
  const std::string model = hub / "models--org--small";
  for (const char* commit : {"aaa", "bbb"}) make_folders(model + "/snapshots/" + commit);
  make_folders(model + "/refs");
  write_file_atomically(model + "/refs/main", "bbb\n");
  write_file_atomically(model + "/refs/gone", "ccc");
  write_file_atomically(model + "/refs/evil", "../../..");
  make_folders(hub / "datasets--rows/snapshots/main");
  const auto of = [&](const std::string& name, const std::string& revision = "main") {
    return hub_snapshot(hub.path(), HubKind::model, name, revision);
  };
  EXPECT_EQ(of("org/small"), model + "/snapshots/bbb");
  EXPECT_EQ(of("org/small", "aaa"), model + "/snapshots/aaa");
  EXPECT_EQ(hub_snapshot(hub.path(), HubKind::dataset, "rows"), hub / "datasets--rows/snapshots/main");
  for (const char* revision : {"gone", "evil", "other", "..", "", "../refs"})
    EXPECT_EQ(of("org/small", revision), "");
  for (const char* name :
       {"org/large", "small", "", "/", "org/", "/small", "../x", "org/small/more", "org small"}) {
    EXPECT_EQ(of(name), "") << name;
  }
  EXPECT_EQ(hub_snapshot("", HubKind::model, "org/small"), "");
}

}  // namespace
}  // namespace octet::hub_cache_test
