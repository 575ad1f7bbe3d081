// DoRA on bases of every kind. A new adapter changes nothing, and a 4-bit base trains like any other.
#include "cli/adapter_task.h"

namespace octet::test::new_magnitudes_test {
namespace {

const std::string kPlain = OCTET_SOURCE_DIR "/tests/golden/models/llama3";
const std::string kNf4 = OCTET_SOURCE_DIR "/tests/golden/adapters/saved-nf4";

TEST(WholeNewMagnitudes, AreThoseOfTheWeightsThatAreComputedWith) {
  const TemporaryFolder folder("new_magnitudes");
  const std::string four = " quantization_bit=4 double_quantization=";
  const std::vector<std::pair<std::string, std::string>> bases = {
      {kPlain, ""}, {kPlain, four + "false"}, {kPlain, four + "true"}, {kNf4, ""}};
  for (const auto& [model, keys] : bases) {
    const std::string lora = "device=cpu bf16=false finetuning_type=lora" + keys;
    const std::vector<float> base = probed(folder, model, lora);
    for (const auto& [np, stage] : {std::pair{1, 0}, {2, 3}, {3, 1}}) {
      SCOPED_TRACE(model + keys + ", np " + std::to_string(np));
      const std::vector<float> fresh =
          probed(folder, model, lora + " use_dora=true zero_stage=" + std::to_string(stage), np);
      EXPECT_LT(distance(fresh, base), 1e-6);
    }
  }
  // Weights rounded to bf16 use their rounded norms, not the norms of the file. The remaining difference is
  // the rounding of outputs.
  const std::string bf16 = "device=cpu bf16=true finetuning_type=lora";
  const std::vector<float> base = probed(folder, kPlain, bf16);
  EXPECT_LT(distance(probed(folder, kPlain, bf16 + " use_dora=true"), base), 6e-3);
}

TEST(NewMagnitudes, OfABaseIn4BitsTrainTheSameAtAnyNumberOfRanks) {
  const TemporaryFolder folder("magnitudes_4bit");
  for (const std::string kind : {"use_dora=true", "lora_dropout=0.2"}) {
    std::string first;
    for (const auto& [np, how] : {std::pair<int, std::string>{1, "recompute=full"}, {3, "zero_stage=3"}}) {
      const std::string output = folder / (kind.substr(0, 7) + std::to_string(np));
      const std::string keys = "quantization_bit=4 deterministic=strict save_strategy=no " + kind + " " + how;
      const Outcome run = on_ranks(np, lora(output, keys));
      ASSERT_EQ(run.code, 0) << run.both();
      const std::string weights = slurp(output + "/adapter_model.safetensors");
      if (first.empty()) first = weights;
      EXPECT_TRUE(weights == first) << kind << ", np " << np;
    }
  }
  EXPECT_NE(slurp(folder / "use_dor1/adapter_model.safetensors"),
            slurp(folder / "lora_dr1/adapter_model.safetensors"));
}

}  // namespace
}  // namespace octet::test::new_magnitudes_test
