#include <cstdio>
#include <filesystem>

#include "octet/base/error.h"
#include "octet/checkpoint/folder.h"
#include "octet/config/derive.h"
#include "octet/config/lint.h"
#include "octet/feed/corpus.h"
#include "octet/model/architecture.h"
#include "octet/runtime/model_folder.h"
#include "octet/setup/data_options.h"
#include "options.h"
#include "with_places.h"

namespace octet::cli {
namespace {

/// Throws what training would throw for the model, its tokenizer and template, the data sets and the batch.
void require_inputs(const config::Config& c) {
  const model::Architecture architecture = runtime::read_model(c.model_name_or_path);
  model::require_trainable(architecture, c.model_name_or_path);
  if (!c.train_from_scratch) runtime::require_weights(c.model_name_or_path);
  const data::TemplateEncoder encoder(setup::encoder_options(c));
  runtime::require_fit(encoder.tokenizer(), architecture, c.model_name_or_path);
  feed::check_datasets(c);
  // A step that one rank cannot cut into micro-batches, no number of ranks can.
  if (!c.auto_find_batch_size && c.global_batch_size && !c.gradient_accumulation_steps &&
      *c.global_batch_size % c.per_device_train_batch_size != 0) {
    config::resolve_batch(c, 1);
  }
}

/// What only the files and the machine tell.
config::Strings doubts_outside(const config::Config& c) {
  config::Strings all;
  const model::Architecture architecture = model::read_architecture(c.model_name_or_path);
  if (architecture.max_positions > 0 && c.cutoff_len > architecture.max_positions) {
    all.push_back("cutoff_len " + std::to_string(c.cutoff_len) + " is beyond the " +
                  std::to_string(architecture.max_positions) + " positions that the model was made for");
  }
  const auto checkpoints = checkpoint::list_checkpoints(c.output_dir);
  if (!checkpoints.empty() && !c.overwrite_output_dir) {
    all.push_back("output_dir holds " + checkpoints.back().second + ": the run will go on from it");
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
  with_places(resolved, [&] { require_inputs(resolved.config); });
  config::Strings doubts = config::doubts(resolved);
  const config::Strings outside = doubts_outside(resolved.config);
  doubts.insert(doubts.end(), outside.begin(), outside.end());
  for (const std::string& doubt : doubts) std::printf("doubt: %s\n", doubt.c_str());
  if (doubts.empty()) std::printf("nothing doubtful was found\n");
  return doubts.empty() ? 0 : 1;
}

}  // namespace octet::cli
