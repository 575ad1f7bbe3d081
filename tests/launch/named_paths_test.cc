// The files and folders that a configuration names.
#include "check/named_paths.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "octet/base/error.h"
#include "support/program.h"
#include "support/temporary_folder.h"

namespace octet::launch::named_paths_test {
namespace {

namespace fs = std::filesystem;

std::string named(const std::string& yaml) {
  std::string text;
  for (const auto& [key, value] : named_paths(yaml)) text += key + "=" + value + ";";
  return text;
}

TEST(NamedPaths, AreValuesOfTheirKeys) {
  struct Row {
    std::string yaml, named;
  };
  for (const Row& row : std::vector<Row>{
           {"", ""},
           {"model_name_or_path: /m\n", "model_name_or_path=/m;"},
           {"model_name_or_path: '/m'  # here", "model_name_or_path=/m;"},
           {"model_name_or_path: \"/m#1\"", "model_name_or_path=/m#1;"},
           {"# model_name_or_path: /m", ""},
           {"template: chatml\n- a\n", ""},
           {" dataset: a\n", ""},
           {"dataset: a, b,\r\n", "dataset=a;dataset=b;"},
           {"dataset: [a, 'b c', null]\n", "dataset=a;dataset=b c;"},
           {"dataset: null\n", ""},
           {"eval_dataset:\n  - \"a\"  # first\n-\tb\n  -c\n", "eval_dataset=a;eval_dataset=b;"},
           {"dataset:\n- a\ntemplate:\n- b\ndataset_dir: d\n", "dataset=a;dataset_dir=d;"},
           {"dataset :\n- a", ""},
           {"adapter_name_or_path: a:b\ntokenized_path: t", "adapter_name_or_path=a:b;tokenized_path=t;"},
       })
    EXPECT_EQ(named(row.yaml), row.named) << row.yaml;
}

// The existing paths without the folder, or the message with its place.
std::string existing(const test::TemporaryFolder& folder, const std::string& yaml) {
  test::spill(folder / "c.yaml", yaml);
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  std::string text;
  try {
    for (const std::string& path : existing_paths("c.yaml", {{"PWD", folder.path()}})) {
      EXPECT_TRUE(path.starts_with(folder.path() + "/")) << path;
      text += path.substr(folder.path().size() + 1) + ";";
    }
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    EXPECT_EQ(e.problem().fix, "check the path, or leave out -c c.yaml");
    text = e.problem().what + ": " + e.problem().where + ", " + e.problem().expected;
  }
  fs::current_path(before);
  return text;
}

TEST(NamedPaths, ThatExistAreKept) {
  const test::TemporaryFolder folder("named_paths");
  for (const char* file : {"m/config.json", "data/a.jsonl", "rows/a.jsonl", "rows/b.jsonl"})
    test::spill(folder / file, "");
  const std::string missing = "the configuration names a path that does not exist: ";
  struct Row {
    std::string yaml, existing;
  };
  for (const Row& row : std::vector<Row>{
           {"model_name_or_path: m\n", "m;"},
           {"model_name_or_path: org/name\n", ""},
           {"dataset: a.jsonl\n", "data/a.jsonl;"},
           {"dataset: a.jsonl,b.jsonl\ndataset_dir: rows\n", "rows/a.jsonl;rows/b.jsonl;rows;"},
           {"dataset: ./rows/../m\n", "m;"},
           {"model_name_or_path: ./none\n", missing + "./none, a file or folder, after model_name_or_path"},
           {"dataset: [m, ../none]\n", missing + "../none, a file or folder, after dataset"},
           {"dataset: /none\n", missing + "/none, a file or folder, after dataset"},
           {"dataset: /none/*.jsonl,./a?\n", ""},
           {"tokenized_path: /none\n", ""},
           {"tokenized_path: ./m\n", "m;"},
       })
    EXPECT_EQ(existing(folder, row.yaml), row.existing) << row.yaml;
  EXPECT_TRUE(existing_paths("", {}).empty());
}

}  // namespace
}  // namespace octet::launch::named_paths_test
