#include "octet/planner/notes.h"

#include <algorithm>
#include <filesystem>
#include <functional>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/data/template_encoder.h"
#include "octet/model/shapes.h"
#include "octet/planner/shape_words.h"
#include "octet/runtime/model_folder.h"
#include "octet/setup/data_options.h"
#include "octet/train/doubts.h"

namespace octet::planner {
namespace {

/// Returns the notes of a configuration without notes about environment variables: the planned run has
/// another environment.
config::Strings notes_of(const config::Resolved& resolved) {
  config::Strings notes;
  for (const std::string& note : resolved.notes) {
    if (!note.starts_with("environment ")) notes.push_back(note);
  }
  return notes;
}

config::Strings doubts_of(const config::Resolved& resolved, bool configured,
                          const model::Architecture& architecture) {
  config::Strings doubts = train::doubts(resolved, architecture);
  if (!configured) {
    const config::Strings always = train::doubts(config::load(with_bf16({}), {.for_training = false}), {});
    std::erase_if(doubts,
                  [&](const std::string& doubt) { return std::ranges::find(always, doubt) != always.end(); });
  }
  return doubts;
}

/// Runs `what`. If it throws a new message, adds the message; the exit code is that of the first.
void check(PlanNotes& notes, const std::function<void()>& what) {
  try {
    what();
  } catch (const Error& e) {
    if (std::ranges::find(notes.cannot_run, e.what()) != notes.cannot_run.end()) return;
    if (notes.cannot_run.empty()) notes.code = e.code();
    notes.cannot_run.emplace_back(e.what());
  }
}

void check_folder(PlanNotes& notes, config::Config config, const std::string& folder,
                  const model::Architecture& architecture) {
  check(notes, [&] { runtime::read_model(folder); });
  if (!config.train_from_scratch) check(notes, [&] { runtime::has_weights(folder); });
  if (!path_exists(folder + "/tokenizer.json")) return;
  config.model_name_or_path = folder;
  check(notes, [&] {
    const data::TemplateEncoder encoder(setup::encoder_options(config, config.model_name_or_path));
    runtime::require_fit(encoder.tokenizer(), architecture, folder);
  });
}

}  // namespace

PlanNotes plan_notes(const config::Resolved& resolved, bool configured, const std::string& model,
                     const model::Architecture& architecture, DeviceKind kind) {
  PlanNotes notes{notes_of(resolved), doubts_of(resolved, configured, architecture), {}};
  std::error_code ignored;
  if (std::filesystem::is_directory(model, ignored))
    check_folder(notes, resolved.config, model, architecture);
  if (traits_of(kind).emulates_fp8) return notes;
  const model::Architecture shape = model::find_shape(model);
  check(notes, [&] { train::require_no_fallback(resolved.config, shape); });
  if (resolved.config.fp8_fallback == "error") return notes;
  for (std::string& line : train::fp8_fallbacks(resolved.config, shape))
    notes.doubts.push_back(std::move(line));
  return notes;
}

}  // namespace octet::planner
