// The loss of tokens with a teacher, against PyTorch (tests/golden/make/make_distillation).
#include <string>

#include "octet/base/json.h"
#include "support.h"
#include "support/golden_models.h"

namespace octet::model::testing::teacher_losses_test {
namespace {

const Json& golden() {
  static const Json file = read_json(OCTET_SOURCE_DIR "/tests/golden/losses/distillation.json");
  return file;
}

HostBatch documents() {
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

TeacherLoss loss_of(const Json& options) {
  using enum ops::TeacherRest;
  const std::string rest = options.value("rest", "bucket");
  return {.rule = {.ratio = options["ratio"].get<double>(),
                   .beta = options.value("beta", 0.0),
                   .temperature = options.value("temperature", 1.0),
                   .rest = rest == "zero"          ? zero
                           : rest == "renormalise" ? renormalise
                                                   : bucket},
          .ranks = golden()["ranks"].get<std::int64_t>()};
}

/// A core with the golden model, and the golden teacher.
struct Student {
  explicit Student(const RunOptions& options)
      : host(documents()), machine(golden_architecture("llama"), host, options) {
    machine.source.load(golden_folder("llama"));
    batch = machine.upload_batch(host);
    batch.taught = {.ids = machine.upload(golden()["ids"].get<std::vector<std::int32_t>>()),
                    .logprobs = machine.upload(golden()["logprobs"].get<std::vector<float>>()),
                    .rest = machine.upload(golden()["rest"].get<std::vector<float>>()),
                    .figures = machine.upload(std::vector<double>(ops::kDistillationFigures))};
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

// Chunks of one row, of some rows, and of all rows.
constexpr std::array<std::size_t, 3> kChunks = {1, 4000, std::size_t{1} << 20};

TEST(TeacherLosses, AreThoseOfPyTorch) {
  for (const auto& [name, wanted] : golden()["cases"].items()) {
    for (const std::size_t bytes : kChunks) {
      SCOPED_TRACE(name);
      Student run({.logits_bytes = bytes, .teacher_loss = loss_of(wanted["options"])});
      const RunResult result = run.train();
      const double loss = wanted["loss"].get<double>();
      EXPECT_NEAR(result.loss_sum, loss, 1e-5 * (1 + std::abs(loss)));
      const std::vector<double> figures = run.fetched(run.batch.taught.figures, ops::kDistillationFigures);
      const double divergence = wanted["divergence"].get<double>();
      const double cross_entropy = wanted["cross_entropy"].get<double>();
      EXPECT_NEAR(figures[0], divergence, 1e-5 * (1 + std::abs(divergence)));
      EXPECT_NEAR(figures[1], cross_entropy, 1e-5 * (1 + cross_entropy));
      for (const auto& [tensor, values] : wanted["gradients"].items()) {
        const auto want = values.get<std::vector<float>>();
        const std::vector<float>& whole = result.gradients.at(tensor);
        const Json& row = golden()["rows"][tensor];
        const std::size_t begin = row.is_null() ? 0 : row.get<std::size_t>() * want.size();
        const std::vector<float> part(whole.begin() + static_cast<std::ptrdiff_t>(begin),
                                      whole.begin() + static_cast<std::ptrdiff_t>(begin + want.size()));
        EXPECT_LT(relative_l2(part, want), 1e-3) << tensor;
      }
      EXPECT_NEAR(run.evaluate(), result.loss_sum, 1e-9);
    }
  }
}

TEST(TeacherLosses, InBf16AreNearThoseInFp32) {
  for (const auto& [name, wanted] : golden()["cases"].items()) {
    Student run({.recipe = {.compute = DType::bf16}, .teacher_loss = loss_of(wanted["options"])});
    const double loss = wanted["loss"].get<double>();
    EXPECT_NEAR(run.train().loss_sum, loss, 0.02 * (1 + std::abs(loss))) << name;
  }
}

}  // namespace
}  // namespace octet::model::testing::teacher_losses_test
