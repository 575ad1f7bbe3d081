// Losses of tokens and of pairs of answers, against PyTorch (tests/golden/make/make_losses).
#include <array>
#include <string>

#include "octet/base/json.h"
#include "support.h"
#include "support/golden_models.h"

namespace octet::model::testing::losses_test {
namespace {

const Json& golden() {
  static const Json file = read_json(OCTET_SOURCE_DIR "/tests/golden/losses/losses.json");
  return file;
}

HostBatch answers() {
  HostBatch batch;
  for (std::size_t d = 0; d < golden()["documents"].size(); ++d) {
    const auto ids = golden()["documents"][d].get<std::vector<std::int32_t>>();
    std::vector<std::int32_t> labels = ids;
    std::fill_n(labels.begin(), golden()["questions"][d].get<int>(), -100);
    batch.add_document(ids, labels);
  }
  batch.drop_unlabelled_rows();
  return batch;
}

/// A core with the golden model, and pairs of the golden answers.
struct Pairs {
  explicit Pairs(const RunOptions& options, const HostBatch& batch_of_answers = answers())
      : host(batch_of_answers), machine(golden_architecture("llama"), host, options) {
    machine.source.load(golden_folder("llama"));
    batch = machine.upload_batch(host);
    std::vector<std::int32_t> begins;
    for (const std::int32_t token : host.cu_seqlens)
      begins.push_back(
          static_cast<std::int32_t>(std::ranges::lower_bound(host.rows, token) - host.rows.begin()));
    batch.pairs = {.count = static_cast<std::int64_t>(begins.size()) / 2,
                   .answers = machine.upload(begins),
                   .references = machine.upload(golden()["references"].get<std::vector<double>>()),
                   .figures = machine.upload(std::vector<double>(ops::kPreferenceFigures))};
    machine.arena.reserve("spare", 256);
  }
  std::vector<double> fetched(const double* from, std::size_t count) {
    std::vector<double> values(count);
    machine.device->copy_to_host(*machine.stream, values.data(), from, count * sizeof(double));
    machine.stream->synchronize();
    return values;
  }
  RunResult train() {
    machine.device->zero(*machine.stream, machine.loss, sizeof(double));
    machine.source.start_step();
    machine.core.train(machine.source, *machine.stream, batch, machine.loss);
    RunResult result;
    result.loss_sum = fetched(machine.loss, 1).front();
    result.gradients = machine.source.named_gradients();
    return result;
  }
  double evaluate() {
    machine.device->zero(*machine.stream, machine.loss, sizeof(double));
    machine.core.evaluate(machine.source, *machine.stream, batch, machine.loss);
    return fetched(machine.loss, 1).front();
  }

  HostBatch host;
  Machine machine;
  MicroBatch batch;
};

void expect_case(const RunResult& result, const Json& wanted, const std::string& name) {
  SCOPED_TRACE(name);
  EXPECT_NEAR(result.loss_sum, wanted["loss"].get<double>(), 1e-5 * (1 + std::abs(result.loss_sum)));
  for (const auto& [tensor, values] : wanted["gradients"].items()) {
    const auto want = values.get<std::vector<float>>();
    const std::vector<float>& whole = result.gradients.at(tensor);
    const Json& row = golden()["rows"][tensor];
    const std::size_t begin = row.is_null() ? 0 : row.get<std::size_t>() * want.size();
    const std::vector<float> part(whole.begin() + static_cast<std::ptrdiff_t>(begin),
                                  whole.begin() + static_cast<std::ptrdiff_t>(begin + want.size()));
    EXPECT_LT(relative_l2(part, want), 1e-3) << tensor;
  }
}

TokenLoss token_loss_of(const Json& options) {
  TokenLoss loss{.smoothing = options.value("smoothing", 0.0),
                 .by_probability = options.value("by_probability", false)};
  if (options.contains("entropy_power")) loss.entropy_power = options["entropy_power"].get<double>();
  return loss;
}

ops::PreferenceRule rule_of(const std::string& name, const Json& options) {
  using enum ops::PreferenceKind;
  const std::array<std::pair<const char*, ops::PreferenceKind>, 6> kinds = {{{"sigmoid", sigmoid},
                                                                             {"hinge", hinge},
                                                                             {"ipo", ipo},
                                                                             {"kto", kto_pair},
                                                                             {"orpo", orpo},
                                                                             {"simpo", simpo}}};
  ops::PreferenceRule rule{.beta = options["beta"].get<double>(),
                           .smoothing = options.value("smoothing", 0.0),
                           .margin = options.value("margin", 0.0),
                           .supervised = options.value("supervised", 0.0),
                           .beyond = options.value("beyond", 1.0)};
  for (const auto& [word, kind] : kinds) {
    if (name.starts_with(word)) rule.kind = kind;
  }
  return rule;
}

// Chunks of one row, of some rows, and of all rows.
constexpr std::array<std::size_t, 3> kChunks = {1, 4000, std::size_t{1} << 20};

TEST(Losses, OfTokensAreThoseOfPyTorch) {
  for (const auto& [name, wanted] : golden()["tokens"].items()) {
    for (const std::size_t bytes : kChunks) {
      Pairs run({.logits_bytes = bytes, .token_loss = token_loss_of(wanted["options"])});
      const RunResult result = run.train();
      expect_case(result, wanted, name);
      EXPECT_NEAR(run.evaluate(), result.loss_sum, 1e-9) << name;
    }
  }
}

TEST(Losses, OfPairsAreThoseOfPyTorch) {
  for (const auto& [name, wanted] : golden()["pairs"].items()) {
    for (const std::size_t bytes : kChunks) {
      Pairs run({.logits_bytes = bytes, .preference = rule_of(name, wanted["options"])});
      const RunResult result = run.train();
      expect_case(result, wanted, name);
      EXPECT_NEAR(run.evaluate(), result.loss_sum, 1e-9) << name;
    }
  }
}

ops::JudgementRule judgement_of(const Json& options) {
  return {.beta = options["beta"].get<double>(),
          .desirable = options.value("desirable", 1.0),
          .undesirable = options.value("undesirable", 1.0),
          .supervised = options.value("supervised", 0.0)};
}

/// Sets the judged answers of a batch.
void judge(Pairs& run, double point) {
  run.batch.judged = {
      .count = 2 * run.batch.pairs.count,
      .answers = run.batch.pairs.answers,
      .desirable = run.machine.upload(golden()["judged"]["desirable"].get<std::vector<std::int32_t>>()),
      .references = run.batch.pairs.references,
      .point = run.machine.upload(std::vector<double>{point}),
      .figures = run.batch.pairs.figures};
  run.batch.pairs = {};
}

TEST(Losses, OfJudgedAnswersAreThoseOfPyTorch) {
  for (const auto& [name, wanted] : golden()["judged"]["cases"].items()) {
    for (const std::size_t bytes : kChunks) {
      Pairs run({.logits_bytes = bytes, .judgement = judgement_of(wanted["options"])});
      judge(run, golden()["judged"]["point"].get<double>());
      const RunResult result = run.train();
      expect_case(result, wanted, name);
      EXPECT_NEAR(run.evaluate(), result.loss_sum, 1e-9) << name;
    }
  }
}

// Each question has the answer of the document before it.
TEST(Losses, TheReferencePointOfMismatchedAnswersIsThatOfPyTorch) {
  const Json& documents = golden()["documents"];
  HostBatch host;
  for (std::size_t d = 0; d < documents.size(); ++d) {
    const std::size_t before = (d + documents.size() - 1) % documents.size();
    const auto own = documents[d].get<std::vector<std::int32_t>>();
    const auto other = documents[before].get<std::vector<std::int32_t>>();
    std::vector<std::int32_t> ids(own.begin(), own.begin() + golden()["questions"][d].get<int>());
    const std::size_t question = ids.size();
    ids.insert(ids.end(), other.begin() + golden()["questions"][before].get<int>(), other.end());
    std::vector<std::int32_t> labels = ids;
    std::fill_n(labels.begin(), question, -100);
    host.add_document(ids, labels);
  }
  host.drop_unlabelled_rows();
  Pairs run({.judgement = ops::JudgementRule{}}, host);
  judge(run, 0);
  double* const scores = run.machine.arena.reserve_as<double>("scores", documents.size());
  run.machine.core.score_answers(run.machine.source, *run.machine.stream, run.batch, scores);
  const std::vector<double> of_answers = run.fetched(scores, documents.size());
  double sum = 0;
  for (std::size_t d = 0; d < documents.size(); ++d)
    sum += of_answers[d] - golden()["judged"]["mismatched_references"][d].get<double>();
  const double wanted = golden()["judged"]["point"].get<double>();
  EXPECT_NEAR(sum / static_cast<double>(documents.size()), wanted, 1e-5 * wanted);
}

TEST(Losses, OfPairsHaveTheSameBitsInChunksAndWithRecomputation) {
  const RunResult whole = Pairs({.preference = ops::PreferenceRule{}}).train();
  for (const Recompute recompute : {Recompute::none, Recompute::full}) {
    Pairs run({.recompute = recompute, .preference = ops::PreferenceRule{}});
    const RunResult result = run.train();
    EXPECT_EQ(result.loss_sum, whole.loss_sum);
    for (const auto& [name, gradient] : whole.gradients)
      EXPECT_EQ(gradient, result.gradients.at(name)) << name;
  }
  Pairs run({.logits_bytes = 4000, .preference = ops::PreferenceRule{}});
  EXPECT_EQ(run.train().loss_sum, whole.loss_sum);
}

TEST(Losses, WithItselfAsReferenceTheLossIsLogTwo) {
  for (const precision::Recipe& recipe : {precision::Recipe{}, precision::Recipe{.compute = DType::bf16}}) {
    Pairs run({.recipe = recipe, .preference = ops::PreferenceRule{}});
    run.machine.core.score_references(run.machine.source, *run.machine.stream, run.batch);
    EXPECT_EQ(run.train().loss_sum, 2 * std::log(2.0));
    const std::vector<double> figures = run.fetched(run.batch.pairs.figures, 5);
    EXPECT_EQ(figures[0], 0.0);
    EXPECT_EQ(figures[1], 0.0);
    EXPECT_LT(figures[3], 0.0);
  }
}

TEST(Losses, HitsAreCountedInEvaluations) {
  Pairs run({.counts_hits = true});
  double* const hits = run.machine.arena.reserve_as<double>("hits", 1);
  run.machine.device->zero(*run.machine.stream, hits, sizeof(double));
  double wanted = 0;
  const LogitsHook hook = [&](Stream&, const ops::ConstMatrix& logits, std::int64_t first) {
    const std::vector<float> rows = run.machine.download(logits);
    for (std::int64_t r = 0; r < logits.rows; ++r) {
      const auto row = rows.begin() + r * logits.cols;
      const auto best = std::max_element(row, row + logits.cols) - row;
      wanted += best == run.host.targets[static_cast<std::size_t>(first + r)] ? 1 : 0;
    }
  };
  run.machine.core.evaluate(run.machine.source, *run.machine.stream, run.batch, run.machine.loss, hook, hits);
  EXPECT_EQ(run.fetched(hits, 1).front(), wanted);
}

TEST(Losses, NoiseOnEmbeddingsChangesTrainingAndNotEvaluations) {
  Pairs plain({}), noisy({.embedding_noise = 5});
  std::vector<std::uint64_t> names(static_cast<std::size_t>(noisy.host.tokens()));
  for (std::size_t t = 0; t < names.size(); ++t) names[t] = 0x9E3779B97F4A7C15ull * (t + 1);
  noisy.batch.names = noisy.machine.upload(names);
  EXPECT_EQ(plain.evaluate(), noisy.evaluate());
  const double loss = noisy.train().loss_sum;
  EXPECT_NE(plain.train().loss_sum, loss);
  EXPECT_EQ(noisy.train().loss_sum, loss) << "the noise follows the names";
}

}  // namespace
}  // namespace octet::model::testing::losses_test
