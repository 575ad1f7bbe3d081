// Fresh weights: training from scratch starts near the loss of a uniform guess.
#include "octet/base/json.h"
#include "support.h"
#include "support/samples.h"

namespace octet::model::testing::fresh_test {
namespace {

/// Returns the mean loss of fresh weights over random tokens.
double first_loss(const Architecture& architecture) {
  const auto vocabulary = static_cast<std::uint64_t>(architecture.vocabulary);
  std::vector<std::int32_t> tokens(64);
  std::uint64_t state = 1;
  for (std::int32_t& token : tokens) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    token = static_cast<std::int32_t>((state >> 33) % vocabulary);
  }
  HostBatch batch;
  batch.add_document(tokens, tokens);
  batch.drop_unlabelled_rows();
  Machine machine(architecture, batch, {.gradients = false});
  machine.source.initialise(3);
  return machine.run(batch, false).loss_sum / static_cast<double>(batch.label_tokens());
}

struct Fresh {
  const char* name;
  const char* model;
  Json change;
};

TEST(FreshWeights, StartNearTheLossOfAnEvenGuess) {
  const Json wide{{"hidden_size", 2048}, {"intermediate_size", 32}};
  Json deep = wide;
  deep["num_hidden_layers"] = 8, deep["layer_types"] = std::vector<std::string>(8, "full_attention");
  const Json large_table{{"hidden_size", 128}, {"embedding_initializer_range", 0.4}};
  const std::vector<Fresh> all{
      {"small", "llama3", {}},
      {"small, tied", "llama3-tied", {}},
      {"wide", "llama3", wide},
      {"wide, tied", "llama3-tied", wide},
      {"large embeddings", "llama3", large_table},
      {"large embeddings, tied", "llama3-tied", large_table},
      {"scaled embeddings, tied", "gemma2", {}},
      {"scaled embeddings, tied, wide", "gemma2", deep},
      {"scaled embeddings, tied, wide, uncapped", "gemma3", deep},
  };
  for (const Fresh& row : all) {
    Json config = read_json(golden_folder(row.model) + "/config.json");
    if (!row.change.is_null()) config.update(row.change);
    const Architecture architecture = read_architecture(config, "config.json");
    EXPECT_NEAR(first_loss(architecture), std::log(static_cast<double>(architecture.vocabulary)), 0.3)
        << row.name;
  }
}

}  // namespace
}  // namespace octet::model::testing::fresh_test
