#include "plan_notes.h"

#include <algorithm>
#include <filesystem>
#include <functional>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/data/template_encoder.h"
#include "octet/model/shapes.h"
#include "octet/runtime/model_folder.h"
#include "octet/setup/data_options.h"
#include "octet/train/doubts.h"
#include "shape_words.h"

namespace octet::cli {
namespace {

/// But for what the variables of this process mean for it, since the run is another one.
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

/// Of a model's folder.
config::Strings refusals(config::Config config, const std::string& folder,
                         const model::Architecture& architecture) {
  config::Strings all;
  const auto check = [&all](const std::function<void()>& what) {
    try {
      what();
    } catch (const Error& e) {
      all.emplace_back(e.what());
    }
  };
  check([&] { runtime::read_model(folder); });
  if (!config.train_from_scratch) check([&] { runtime::has_weights(folder); });
  if (!path_exists(folder + "/tokenizer.json")) return all;
  config.model_name_or_path = folder;
  check([&] {
    const data::TemplateEncoder encoder(setup::encoder_options(config));
    runtime::require_fit(encoder.tokenizer(), architecture, folder);
  });
  return all;
}

}  // namespace

PlanNotes plan_notes(const config::Resolved& resolved, bool configured, const std::string& model,
                     const model::Architecture& architecture, DeviceKind kind) {
  PlanNotes notes{notes_of(resolved), doubts_of(resolved, configured, architecture), {}};
  std::error_code ignored;
  if (std::filesystem::is_directory(model, ignored))
    notes.cannot_run = refusals(resolved.config, model, architecture);
  if (kind == DeviceKind::cuda) {
    const bool ends = resolved.config.fp8_fallback == "error";
    for (std::string& line : train::fp8_fallbacks(resolved.config, model::find_shape(model)))
      (ends ? notes.cannot_run : notes.doubts).push_back(std::move(line));
  }
  return notes;
}

}  // namespace octet::cli
