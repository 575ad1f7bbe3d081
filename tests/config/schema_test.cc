#include <cstdlib>
#include <set>

#include "config/explained.h"
#include "config/support.h"

namespace octet::config::test::schema_test {
namespace {

TEST(Schema, EveryKeyIsDocumentedAndItsDefaultIsAcceptable) {
  std::set<std::string> seen;
  for (const Field& field : schema()) {
    EXPECT_TRUE(seen.insert(field.name).second) << field.name;
    EXPECT_FALSE(field.status == Status::used ? field.doc.empty() : field.reason.empty()) << field.name;
    if (default_text(field).empty() || default_text(field) == "\"\"" || default_text(field) == "[]") continue;
    // Keys of adapters require finetuning_type.
    const std::string beside = field.group == "Adapters" ? "\nfinetuning_type: full" : "";
    EXPECT_NO_THROW(load_text(field.name + ": " + default_text(field) + beside, "t.yaml", {}, quiet(false)))
        << field.name;
  }
  EXPECT_GT(seen.size(), 150u);
}

TEST(Schema, TheReferenceNamesEveryKeyAndWhatIsRefused) {
  const std::string used = reference_markdown(), others = other_keys_markdown();
  for (const Field& field : schema()) {
    const std::string row = "| `" + field.name + "` |";
    EXPECT_SAYS(field.status == Status::used ? used : others, row);
    EXPECT_EQ((field.status == Status::used ? others : used).find(row), std::string::npos) << row;
  }
  EXPECT_SAYS(used + others, "adapters are not built");
}

TEST(Schema, TheIndexLinksEveryNameToAHeadingOfThePage) {
  const std::string page = reference_markdown();
  const std::size_t start = page.find("\n## Index\n");
  ASSERT_NE(start, std::string::npos);
  const std::string index = page.substr(start);
  for (const std::string& name : field_names()) EXPECT_SAYS(index, "[`" + name + "`](");
  EXPECT_SAYS(index, "[`lora_rank`](#adapters)");
  EXPECT_SAYS(index, "[`evaluation_strategy`](#output)");
  EXPECT_SAYS(index, "[`fp16`](llamafactory_keys.md#known-and-refused-when-they-ask-for-more)");
}

TEST(Schema, DetailsAreBelowTheTableAndInTheMeaning) {
  const std::string page = reference_markdown();
  for (const Field& field : schema()) {
    EXPECT_LE(field.doc.size(), 200u) << field.name << ": move the rest to details()";
    if (field.more.empty()) continue;
    EXPECT_SAYS(page, "\n- `" + field.name + "`: " + field.more);
    EXPECT_SAYS(meaning_text(field), field.doc + " " + field.more);
  }
}

// OCTETRUN_WRITE_DOCS=1 writes the pages instead of comparing them.
TEST(Schema, ThePageInDocsIsTheTable) {
  const std::pair<const char*, std::string> pages[] = {{"config.md", reference_markdown()},
                                                       {"llamafactory_keys.md", other_keys_markdown()}};
  for (const auto& [name, text] : pages) {
    const std::string path = std::string(OCTET_SOURCE_DIR) + "/docs/" + name;
    if (std::getenv("OCTETRUN_WRITE_DOCS") != nullptr) write_file_atomically(path, text);
    ASSERT_TRUE(path_exists(path));
    EXPECT_EQ(read_file(path), text)
        << path << " is old: run OCTETRUN_WRITE_DOCS=1 config_tests --gtest_filter='*ThePageInDocs*'";
  }
}

TEST(Schema, TheResolvedYamlLoadsToTheSameConfiguration) {
  const Resolved first = read(
      "dataset_dir: 'a: b # c'\ndefault_system: \"two\\nlines \\\"quoted\\\" \\t\"\ntemplate: llama3\nstage: "
      "pt\n"
      "lr_scheduler_type: polynomial\nlr_scheduler_kwargs: {power: 2}\nval_size: 0.25\neval_strategy: steps\n"
      "eval_steps: 5\nlearning_rate: 1e-5\nsave_total_limit: 2\nrun_name: '010'\nresume_from_checkpoint: "
      "false\n"
      "bf16: true\nmax_steps: 7\ngpu_hour_price: 2.5\nreport_to: tensorboard\nnum_train_epochs: 2\n");
  const Resolved second = load_text(first.to_yaml(), "dump.yaml", {}, quiet());
  for (const Field& field : schema()) {
    if (field.status == Status::used) {
      EXPECT_EQ(value_text(field, first.config), value_text(field, second.config)) << field.name;
    }
  }
  EXPECT_EQ(second.config.default_system, "two\nlines \"quoted\" \t");
  EXPECT_EQ(second.config.run_name, "010");
  EXPECT_EQ(resume_hash(first.config), resume_hash(second.config));
}

TEST(Schema, TheYamlOfDefaultsMakesNoNotes) {
  const Resolved again = load_text(read("").to_yaml(), "dump.yaml", {}, quiet());
  EXPECT_TRUE(again.notes.empty()) << again.notes.front();
}

TEST(Schema, EveryValueHasItsSource) {
  const std::string text = explained(read("seed: 3", {"max_steps=4"}));
  EXPECT_SAYS(text, "YAML (test.yaml:4)");
  EXPECT_SAYS(text, "override (command line)");
  EXPECT_SAYS(text, "default");
}

TEST(Schema, TheHashChangesWithTheNumbersAndNotWithTheFolders) {
  const auto hash = [](const std::string& yaml) { return resume_hash(read("", {yaml}).config); };
  const std::string base = resume_hash(read("").config);
  EXPECT_EQ(base.size(), 32u);
  for (const char* same : {"output_dir=other", "save_steps=3", "logging_steps=1", "zero_stage=1",
                           "overlap_comm=false", "seed=42", "plot_loss=true", "dataset_dir=e"}) {
    EXPECT_EQ(hash(same), base) << same;
  }
  for (const char* other : {"seed=43", "dataset=e", "cutoff_len=64", "learning_rate=1", "bf16=true",
                            "packing=true", "lr_scheduler_type=cosine", "per_device_train_batch_size=1",
                            "model_name_or_path=n", "fp8_fast_accumulation=all", "max_grad_norm=0.5"}) {
    EXPECT_NE(hash(other), base) << other;
  }
}

TEST(Schema, AResumeNamesWhatChanged) {
  const Strings differences = resume_differences(read("").config, read("seed: 43\nsave_steps: 3").config);
  EXPECT_EQ(differences, Strings{"seed: 42 -> 43"});
}

}  // namespace
}  // namespace octet::config::test::schema_test
