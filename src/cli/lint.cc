#include <cstdio>

#include "command.h"
#include "model_word.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/model_file.h"
#include "octet/config/derive.h"
#include "octet/config/warnings.h"
#include "octet/device/gpus.h"
#include "octet/feed/corpus.h"
#include "octet/model/architecture.h"
#include "octet/model/shapes.h"
#include "octet/runtime/model_folder.h"
#include "octet/setup/run_options.h"
#include "octet/setup/setup.h"
#include "octet/train/start_checks.h"
#include "options.h"

namespace octet::cli {
namespace {

/// Throws the errors of training for the weights, the tokenizer and the template of a model.
void require_files(const config::Config& c, const model::Architecture& architecture) {
  if (!c.train_from_scratch) runtime::require_weights(c.model_name_or_path);
  (void)read_model_file(c.model_name_or_path, "generation_config.json");
  const data::TemplateEncoder encoder(setup::encoder_options(c, c.model_name_or_path));
  runtime::require_fit(encoder.tokenizer(), architecture, c.model_name_or_path);
}

/// Throws the errors of training for the model, the data sets and the batch. Returns the architecture of the
/// model.
model::Architecture require_inputs(const config::Config& c) {
  const ModelWord word = find_model_word(c.model_name_or_path);
  if (word.shape)
    std::printf("note: %s, so that lint reads no weights and no tokenizer\n", word.note.c_str());
  const model::Architecture architecture =
      word.shape ? model::find_shape(word.model) : runtime::read_model(c.model_name_or_path);
  if (!word.shape) require_files(c, architecture);
  feed::check_datasets(c);
  // A step that one rank cannot cut into micro-batches, no number of ranks can.
  const std::int64_t given = std::max<std::int64_t>(1, c.gradient_accumulation_steps.value_or(1));
  if (!c.auto_find_batch_size && c.global_batch_size &&
      *c.global_batch_size % (c.per_device_train_batch_size * given) != 0) {
    config::resolve_batch(c, 1);
  }
  return architecture;
}

/// Doubts of files and folders, in addition to the `known` doubts of the configuration.
config::Strings warnings_of(const config::Resolved& resolved, std::size_t known) {
  const DeviceWish wish = setup::session_wish(resolved.config).device;
  const bool on_gpu = leads_to_gpu(wish);
  const model::Architecture architecture = require_inputs(resolved.config);
  config::Strings all = train::doubts(resolved, architecture);
  all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(known));
  if (std::string line = train::resumption(resolved.config); !line.empty())
    all.push_back(config::placed(resolved, {"output_dir"}, line));
  if (on_gpu) train::require_no_fallback(resolved.config, architecture);
  if (wish != kWithoutGpus) {
    for (std::string& line : train::fp8_fallbacks(resolved.config, architecture))
      all.push_back(std::move(line));
  }
  return all;
}

}  // namespace

int lint_command(const Arguments& arguments) {
  Options options(
      "lint",
      "Looks for mistakes and doubtful settings in a configuration, its model, tokenizer and data sets, "
      "without running it. Mistakes end with the message that training would end with; exits with 1 when "
      "something is doubtful");
  options.example("trainer lint config.yaml");
  options.take_overrides();
  if (!options.parse(arguments)) return 0;
  const config::Resolved resolved = config::load(options.overrides());
  for (const std::string& note : resolved.notes) std::printf("note: %s\n", note.c_str());
  // A mistake in the inputs ends the command, and the doubts of the configuration are read before it.
  const config::Strings doubts = config::doubts(resolved);
  for (const std::string& doubt : doubts) std::printf("warning: %s\n", doubt.c_str());
  std::fflush(stdout);
  const config::Strings warnings =
      with_places(resolved, [&] { return warnings_of(resolved, doubts.size()); });
  for (const std::string& warning : warnings) std::printf("warning: %s\n", warning.c_str());
  if (!warnings.empty() || !doubts.empty()) return 1;
  std::printf("nothing doubtful was found\n");
  return 0;
}

}  // namespace octet::cli
