// Folders of models: what counts as weights, and what is said of folders that are something else.
#include "octet/runtime/model_folder.h"

#include <gtest/gtest.h>

#include <functional>

#include "octet/base/error.h"
#include "octet/runtime/adapter_file.h"
#include "support/program.h"

namespace octet::runtime {
namespace {

using test::spill;
using test::TemporaryFolder;

/// The message of an error of usage; "none" without one.
std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  return "none";
}

void expect_holds(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

TEST(ModelFolder, WeightsInOtherFormatsAreNotTakenForNone) {
  for (const char* name : {"pytorch_model.bin", "model.pt", "consolidated.00.pth", "last.ckpt", "q4.gguf",
                           "flax_model.msgpack", "tf_model.h5", "weights.safetensors"}) {
    const TemporaryFolder folder("weights");
    spill(folder / "config.json", "{}");
    spill(folder / "training_args.bin", "what a trainer leaves");
    EXPECT_FALSE(has_weights(folder.path())) << "no weights";
    expect_holds(refusal([&] { require_weights(folder.path()); }), "there are no weights to begin with");
    spill(folder / name, "");
    const std::string said = refusal([&] { has_weights(folder.path()); });
    expect_holds(said, "in a format that is not read");
    expect_holds(said, "  found:    " + std::string(name) + "\n  where:    " + folder.path());
    spill(folder / "model.safetensors", "");
    EXPECT_TRUE(has_weights(folder.path())) << "those beside it do not matter";
    EXPECT_EQ(refusal([&] { require_weights(folder.path()); }), "none");
  }
}

TEST(ModelFolder, OfAnAdapterIsNoModel) {
  const TemporaryFolder folder("adapter");
  spill(folder / "adapter_config.json", "{}");
  const std::string said = refusal([&] { read_model(folder.path()); });
  expect_holds(said, "the folder holds an adapter and no model");
  expect_holds(said, "merge it into its base with trainer export FOLDER OUT --merge");
  // A whole model that an adapter lies beside is one.
  spill(folder / "config.json", "{}");
  try {
    read_model(folder.path());
    ADD_FAILURE() << "config.json says nothing";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find("holds an adapter"), std::string::npos) << error.what();
  }
}

TEST(AdapterFolder, WithoutWeightsSaysWhatLiesThere) {
  const TemporaryFolder folder("no_weights");
  std::string said = refusal([&] { AdapterFile file(folder.path()); });
  expect_holds(said, "the adapter's weights are not there\n  expected: adapter_model.safetensors\n  where:");
  spill(folder / "adapter_model.bin", "");
  said = refusal([&] { AdapterFile file(folder.path()); });
  expect_holds(said, "  found:    adapter_model.bin\n  where:    " + folder.path());
  spill(folder / "adapter_model.safetensors", "broken");
  said = refusal([&] { AdapterFile file(folder.path()); });
  expect_holds(said, folder / "adapter_model.safetensors");
}

}  // namespace
}  // namespace octet::runtime
