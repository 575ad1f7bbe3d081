// Reward models: scores of last tokens and their loss, against PyTorch (tests/golden/make/make_losses).
#include <algorithm>
#include <cmath>
#include <string>

#include "octet/base/json.h"
#include "octet/weights/safetensors_writer.h"
#include "support.h"
#include "support/golden_models.h"
#include "support/temporary_folder.h"

namespace octet::model::testing::rewards_test {
namespace {

const Json& golden() {
  static const Json file = read_json(OCTET_SOURCE_DIR "/tests/golden/losses/losses.json");
  return file;
}

/// The golden documents. The only label row of each is its last token.
HostBatch answers() {
  HostBatch batch;
  for (const Json& document : golden()["documents"]) {
    const auto ids = document.get<std::vector<std::int32_t>>();
    batch.add_document(ids, std::vector<std::int32_t>(ids.size(), -100));
  }
  batch.rows.clear();
  batch.targets.clear();
  for (std::size_t d = 1; d < batch.cu_seqlens.size(); ++d) {
    batch.rows.push_back(batch.cu_seqlens[d] - 1);
    batch.targets.push_back(0);
  }
  return batch;
}

/// Writes the head that the golden values were computed with.
std::string write_head(const ::octet::test::TemporaryFolder& folder, std::int64_t hidden) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < hidden; ++i)
    values.push_back(static_cast<float>(0.1 * std::sin(static_cast<double>(i + 1))));
  weights::SafetensorsWriter file(folder / "head.safetensors",
                                  {{.name = "score.weight", .dtype = DType::f32, .shape = {1, hidden}}});
  file.append(values.data(), hidden);
  file.publish();
  return folder / "head.safetensors";
}

struct Rewards {
  explicit Rewards(RunOptions options)
      : host(answers()), machine(as_reward_model(golden_architecture("llama"), "here"), host, options) {
    machine.source.load(golden_folder("llama"), write_head(folder, machine.core.architecture().hidden));
    batch = machine.upload_batch(host);
    const std::vector<std::int32_t> begins{0, 1, 2, 3, 4};
    batch.pairs = {.count = 2,
                   .answers = machine.upload(begins),
                   .figures = machine.upload(std::vector<double>(ops::kPreferenceFigures))};
    machine.arena.reserve("spare", 256);
  }
  ::octet::test::TemporaryFolder folder{"rewards"};
  HostBatch host;
  Machine machine;
  MicroBatch batch;
};

std::vector<double> fetched(Machine& machine, const double* from, std::size_t count) {
  std::vector<double> values(count);
  machine.device->copy_to_host(*machine.stream, values.data(), from, count * sizeof(double));
  machine.stream->synchronize();
  return values;
}

TEST(RewardModel, HasTheScoresLossAndGradientsOfPyTorch) {
  const Json& wanted = golden()["rewards"];
  for (const std::size_t bytes : {std::size_t{4}, std::size_t{1} << 20}) {
    Rewards run({.logits_bytes = bytes,
                 .preference = ops::PreferenceRule{.kind = ops::PreferenceKind::bradley_terry, .beta = 1}});
    Machine& machine = run.machine;
    double* const scores = machine.arena.reserve_as<double>("scores", 4);
    machine.core.score_answers(machine.source, *machine.stream, run.batch, scores);
    const std::vector<double> of_answers = fetched(machine, scores, 4);
    for (std::size_t a = 0; a < 4; ++a)
      EXPECT_NEAR(of_answers[a], wanted["scores"][a].get<double>(), 1e-5) << a;
    machine.device->zero(*machine.stream, machine.loss, sizeof(double));
    machine.source.start_step();
    machine.core.train(machine.source, *machine.stream, run.batch, machine.loss);
    EXPECT_NEAR(fetched(machine, machine.loss, 1).front(), wanted["loss"].get<double>(), 1e-5);
    const auto gradients = machine.source.named_gradients();
    for (const auto& [tensor, values] : wanted["gradients"].items()) {
      const auto want = values.get<std::vector<float>>();
      const std::vector<float>& whole = gradients.at(tensor);
      const Json row = golden()["rows"].value(tensor, Json());
      const std::size_t begin = row.is_null() ? 0 : row.get<std::size_t>() * want.size();
      const std::vector<float> part(whole.begin() + static_cast<std::ptrdiff_t>(begin),
                                    whole.begin() + static_cast<std::ptrdiff_t>(begin + want.size()));
      EXPECT_LT(relative_l2(part, want), 1e-3) << tensor;
    }
    const std::vector<double> figures = fetched(machine, run.batch.pairs.figures, 3);
    EXPECT_NEAR(figures[0], of_answers[0] + of_answers[2], 1e-6);
    EXPECT_NEAR(figures[1], of_answers[1] + of_answers[3], 1e-6);
  }
}

TEST(RewardModel, NeedsAFamilyThatHasOneInTransformers) {
  const Architecture llama = as_reward_model(golden_architecture("llama"), "here");
  EXPECT_EQ(reward_class(llama), "LlamaForSequenceClassification");
  EXPECT_TRUE(llama.scores && !llama.tied);
  EXPECT_EQ(tensor_names(build_layout(llama)).count("score.weight"), 1u);
  EXPECT_EQ(tensor_names(build_layout(llama)).count("lm_head.weight"), 0u);
  Architecture other = llama;
  other.model_type = "granite";
  try {
    (void)as_reward_model(other, "here");
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.problem().what, "transformers has no reward models of this family");
  }
}

TEST(RewardModel, IsReadFromTheConfigOfTransformers) {
  Json config = read_json(golden_folder("llama") + "/config.json");
  config["architectures"] = {"LlamaForSequenceClassification"};
  config["id2label"] = {{"0", "LABEL_0"}};
  EXPECT_EQ(read_architecture(config, "here"), as_reward_model(golden_architecture("llama"), "here"));
  config["id2label"]["1"] = "LABEL_1";
  EXPECT_THROW(read_architecture(config, "here"), Error);
  config.erase("id2label");
  EXPECT_THROW(read_architecture(config, "here"), Error) << "transformers has two labels by default";
}

}  // namespace
}  // namespace octet::model::testing::rewards_test
