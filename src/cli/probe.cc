#include "octet/train/step_probe.h"

#include "command.h"
#include "octet/setup/setup.h"
#include "octet/train/trainer.h"
#include "options.h"

namespace octet::cli {

int probe_command(const Arguments& arguments) {
  Options options("probe",
                  "Runs one batch through the training code, at any world size, stage, precision and "
                  "device, and writes the results");
  options.example("trainer probe models/llama3 --batch batch.safetensors --out out.safetensors bf16=true");
  options.take_overrides();
  train::ProbeOptions probe;
  options
      .add_option("MODEL", probe.model,
                  "Hugging Face folder with config.json and weights; or folder of an adapter, which is added "
                  "to its base")
      .required();
  options
      .add_option("--batch", probe.batch,
                  "safetensors with input_ids and labels [rows, length] (not shifted, -100 = not trained), "
                  "and optionally document [rows, length]; with --steps [steps, rows, length]")
      .required();
  options.add_option("--out", probe.out, "safetensors to write").required();
  options.add_option("--steps", probe.steps, "train on that many batches instead")
      .check(whole(std::int64_t{1}, std::int64_t{1} << 40));
  if (!options.parse(arguments)) return 0;
  const config::Resolved config = config::load(options.overrides(), {.for_training = false});
  const setup::SessionWish wish = setup::session_wish(config.config);
  runtime::Session session(wish.device, nullptr, wish.carrying);
  return session.run([&] {
    return with_places(config, [&] {
      train::require_same_start(session, OCTET_VERSION, config.config, arguments);
      train::probe(session, config, probe);
      return 0;
    });
  });
}

}  // namespace octet::cli
