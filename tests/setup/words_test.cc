// Every word that the configuration allows reaches the option that it names.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "octet/config/derive.h"
#include "octet/config/key_table.h"
#include "octet/optim/schedule.h"
#include "octet/setup/model_options.h"
#include "octet/setup/run_options.h"
#include "octet/setup/setup.h"

namespace octet::setup::words_test {
namespace {

/// The words of a key, without refused words.
std::vector<std::string> words_of(const std::string& key) {
  const config::Field* field = config::find_field(key);
  if (field == nullptr) return {};
  std::vector<std::string> words;
  for (const std::string& word : field->choices) {
    const auto is_it = [&](const auto& refused) { return refused.first == word; };
    if (std::ranges::none_of(field->refused_values, is_it)) words.push_back(word);
  }
  return words;
}

/// What `read` makes of each word of a key that `set` puts into a configuration.
template <typename Set, typename Read>
std::set<int> read_each(const std::string& key, const Set& set, const Read& read) {
  std::set<int> seen;
  for (const std::string& word : words_of(key)) {
    config::Config config;
    set(config, word);
    seen.insert(static_cast<int>(read(config)));
  }
  return seen;
}

TEST(ExportSize, IsInUnitsOfABillionBytes) {
  config::Config config;
  config.export_size = 5;
  EXPECT_EQ(export_bytes(config), 5'000'000'000);
  config.export_size = 1e-12;
  EXPECT_EQ(export_bytes(config), 1) << "a file holds something";
}

TEST(Words, EveryValueOfGpuTransportAsksForACarrierOfItsOwn) {
  const config::Field* field = config::find_field("gpu_transport");
  ASSERT_NE(field, nullptr);
  std::set<comm::Carrier> carriers;
  for (const std::string& value : field->choices) {
    EXPECT_TRUE(carriers.insert(carrier_of(value)).second) << value;
  }
  EXPECT_EQ(carriers, (std::set{comm::Carrier::automatic, comm::Carrier::peer, comm::Carrier::nccl,
                                comm::Carrier::host}));
  EXPECT_EQ(carrier_of(config::Config{}.gpu_transport), comm::Carrier::automatic);
}

TEST(Words, EveryOneOfAKeyMeansSomethingElse) {
  using C = config::Config;
  using W = std::string;
  const auto differs = [](const W& key, const auto& set, const auto& read) {
    EXPECT_FALSE(words_of(key).empty()) << key;
    EXPECT_EQ(read_each(key, set, read).size(), words_of(key).size()) << key;
  };
  const auto options = [](const C& c) { return instance_options(c, {}, 1, 1, 1); };
  differs(
      "save_strategy", [](C& c, const W& w) { c.save_strategy = w; }, saves_when);
  differs(
      "eval_strategy", [](C& c, const W& w) { c.eval_strategy = w; }, evaluates_when);
  differs(
      "fp8_statistics", [](C& c, const W& w) { c.fp8 = true, c.fp8_statistics = w; }, cast_log);
  differs(
      "packing_strategy", [](C& c, const W& w) { c.packing = true, c.packing_strategy = w; }, packing_of);
  differs(
      "fp8_recipe", [](C& c, const W& w) { c.fp8 = true, c.fp8_recipe = w; },
      [](const C& c) { return recipe_of(c).kind; });
  // Without a setting, moments have the format of the last storage; a run takes an earlier one that fits.
  differs(
      "optim_dtype", [](C& c, const W& w) { c.optim_dtype = w, c.bf16 = true; },
      [](const C& c) {
        return config::leaves_storage_open(c) && c.optim_dtype == "auto"
                   ? -static_cast<int>(config::storages(c).size())
                   : static_cast<int>(storage_of(c).moments);
      });
  differs(
      "reduce_dtype", [](C& c, const W& w) { c.reduce_dtype = w; },
      [&](const C& c) { return options(c).store.wire; });
  differs(
      "hierarchical_comm", [](C& c, const W& w) { c.hierarchical_comm = w; },
      [&](const C& c) { return options(c).store.hierarchical; });
}

TEST(Words, StrategiesAreNeverStepsAndEpochs) {
  config::Config config;
  config.save_strategy = "no", config.eval_strategy = "epoch";
  EXPECT_EQ(saves_when(config), When::never);
  EXPECT_EQ(evaluates_when(config), When::epoch);
  config.save_strategy = "steps";
  EXPECT_EQ(saves_when(config), When::steps);
  config.fp8_statistics = "layers", config.fp8 = false;
  EXPECT_EQ(cast_log(config), CastLog::none) << "without FP8 there are no casts";
}

TEST(Words, TextsOfPretrainingAreCutInBlocksOnlyWherePackedAsLlamaFactoryDoes) {
  config::Config config;
  config.packing_strategy = "llamafactory", config.stage = "pt";
  EXPECT_EQ(packing_of(config), Packing::none);
  config.packing = true;
  EXPECT_EQ(packing_of(config), Packing::blocks);
  config.stage = "sft";
  EXPECT_EQ(packing_of(config), Packing::knapsack);
  config.packing_strategy = "best_fit";
  EXPECT_EQ(packing_of(config), Packing::best_fit);
}

// The configuration accepts exactly the schedules that are built.
TEST(Words, EveryScheduleOfTheConfigurationIsBuilt) {
  const std::vector<std::string> words = words_of("lr_scheduler_type");
  const std::set<std::string> accepted(words.begin(), words.end());
  for (const std::string& name : accepted) {
    config::Config config;
    config.lr_scheduler_type = name;
    if (name.ends_with("with_min_lr")) config.lr_scheduler_kwargs = {{"min_lr_rate", 0.1}};
    EXPECT_NO_THROW(optim::Schedule(schedule_options(config, 100))) << name;
  }
  const std::vector<std::string>& built = optim::schedule_names();
  EXPECT_EQ(accepted, std::set<std::string>(built.begin(), built.end()));
}

}  // namespace
}  // namespace octet::setup::words_test
