// Trains a model of two million parameters on one sequence of tokens, through the public headers alone.
#include <cstdio>
#include <numeric>

#include "octet/model/shapes.h"
#include "octet/runtime/session.h"
#include "octet/setup/model_options.h"
#include "octet/train/engine.h"

int main() {
  using namespace octet;
  runtime::Session session(DeviceWish::automatic);  // this process, or under mpirun this rank among the others
  return session.run([&] {
    const config::Config config =
        config::load_text("bf16: true", "example", {}, {.for_training = false}).config;

    // A micro-batch is a row of documents. Each token is predicted, except the first of a document.
    std::vector<std::int32_t> ids(64);
    std::iota(ids.begin(), ids.end(), 100 * session.place().rank);
    runtime::HostBatch batch{.cu_seqlens = {0}};
    runtime::add_document(batch, ids, ids);

    const model::Architecture architecture = model::find_shape("tiny");
    train::Engine engine(session.device(), session.job(), session.data(),
                         setup::instance_options(config, architecture, batch.tokens(), batch.max_length, 1));
    engine.initialise(config.seed);
    for (int step = 1; step <= 20; ++step) {
      engine.begin(1);
      engine.micro_batch(batch);
      const store::StepResult result = engine.finish(5e-3);
      if (session.prints()) std::printf("step %d, loss %.4f\n", step, result.loss_sum / result.label_tokens);
    }
    return 0;
  });
}
