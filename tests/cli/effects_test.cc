#include "cli/effects.h"

#include <set>

#include "cli/task.h"
#include "octet/base/error.h"
#include "octet/config/key_table.h"

namespace octet::test {

config::Resolved resolved(const Keys& keys) {
  Keys all{{"model_name_or_path", Task::get().model()},
           {"dataset", Task::get().data()},
           {"output_dir", "out"},
           {"train_from_scratch", "true"},
           {"template", "chatml"},
           {"cutoff_len", "64"},
           {"max_samples", "10"},
           {"per_device_train_batch_size", "2"},
           {"learning_rate", "2.0e-3"},
           {"max_steps", "3"},
           {"logging_steps", "1"},
           {"save_strategy", "no"},
           {"device", "cpu"}};
  for (const auto& [key, value] : keys) all[key] = value;
  std::string yaml;
  for (const auto& [key, value] : all) {
    if (value != "unset") yaml += key + ": " + value + "\n";
  }
  return config::load_text(yaml, "effects.yaml", {}, {.for_training = true, .environment = {}});
}

std::string seen(const Keys& keys, const See& see) {
  try {
    return see(resolved(keys));
  } catch (const Error& e) {
    return std::string("refused: ") + e.what();
  }
}

void expect_effects(const std::vector<KeyRow>& rows) {
  for (const KeyRow& row : rows) {
    SCOPED_TRACE(row.key);
    ASSERT_FALSE(row.values.empty());
    Keys keys = row.beside;
    const std::string without = seen(keys, row.see);
    EXPECT_EQ(without, row.without.empty() ? without : row.without);
    EXPECT_EQ(without, seen(keys, row.see)) << "what is seen changes by itself";
    std::map<std::string, std::string> values{{without, "nothing"}};
    for (const Tried& tried : row.values) {
      keys[row.key] = tried.value;
      const std::string with = seen(keys, row.see);
      EXPECT_EQ(with, tried.seen.empty() ? with : tried.seen) << tried.value;
      const auto [same, fresh] = values.emplace(with, tried.value);
      EXPECT_TRUE(fresh) << tried.value << " does what " << same->second << " does: " << with;
    }
  }
}

std::string notes_of(const config::Resolved& resolved) {
  std::string all;
  for (const std::string& note : resolved.notes) all += note + "\n";
  for (const std::string& warning : resolved.warnings) all += warning + "\n";
  return all;
}

namespace {

// A new key needs a row, or the test fails.
TEST(Effects, EveryKeyHasARow) {
  std::set<std::string> with_row;
  for (const auto& rows : {engine_rows(), data_rows(), run_rows(), idle_rows()}) {
    for (const KeyRow& row : rows) EXPECT_TRUE(with_row.insert(row.key).second) << row.key << " has two rows";
  }
  for (const config::Field& field : config::schema()) {
    EXPECT_EQ(with_row.erase(field.name), 1u) << field.name << " has no row in tests/cli/effects_*_test.cc";
  }
  for (const std::string& key : with_row) ADD_FAILURE() << key << " is no key";
}

}  // namespace
}  // namespace octet::test
