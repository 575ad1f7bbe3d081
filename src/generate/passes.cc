#include "passes.h"

#include <utility>

#include "octet/base/error.h"

namespace octet::generate {

bool walks_together(runtime::Instance& model) {
  return model.job().size() > 1 && model.options().store.stage == 3;
}

void Passes::require(const std::function<void()>& checks) const {
  if (walks_together(parts_.model)) {
    parts_.model.job().together(checks);
  } else {
    checks();
  }
}

void Passes::require_ids(const std::vector<std::int32_t>& ids, std::int64_t most) const {
  const auto length = std::ssize(ids);
  if (length == 0)
    throw Error({.what = "a prompt is empty",
                 .expected = "at least one token",
                 .found = "0 tokens",
                 .fix = "write a question",
                 .code = ExitCode::usage});
  if (length > most) {
    throw Error({.what = "a prompt is too long",
                 .expected = "at most " + std::to_string(most) + " tokens",
                 .found = std::to_string(length),
                 .fix = "shorten it, or raise --max-length",
                 .code = ExitCode::usage});
  }
  const std::int64_t vocabulary = parts_.options.architecture.vocabulary;
  for (const std::int32_t id : ids) {
    if (id >= 0 && id < vocabulary) continue;
    throw Error({.what = "a token id is outside the model's vocabulary",
                 .expected = "ids below " + std::to_string(vocabulary),
                 .found = std::to_string(id),
                 .fix = "use the tokenizer that belongs to the model",
                 .code = ExitCode::usage});
  }
}

bool Passes::goes_on(bool here) const {
  return walks_together(parts_.model) ? parts_.model.job().all_max(here ? 1 : 0) == 1 : here;
}

void Passes::pass_by() const {
  if (walks_together(parts_.model)) parts_.model.store().pass_by(parts_.model.compute());
}

void Passes::take_scales() const {
  precision::ScaleSet* const own = parts_.core.activation_scales();
  if (parts_.own || own == nullptr || parts_.options.recipe.kind != precision::RecipeKind::delayed) return;
  parts_.model.store().synchronize(parts_.model.compute());  // the gradient scales are set on another stream
  own->take(parts_.model.compute(), *parts_.model.core().activation_scales());
}

void Passes::add_copies(const std::vector<PageCopy>& copies) {
  copies_.insert(copies_.end(), copies.begin(), copies.end());
}

PassPlan Passes::planned(PassTokens tokens) {
  PassPlan plan{.copies = std::exchange(copies_, {}),
                .changes = parts_.sequences.take_changes(),
                .tokens = std::move(tokens),
                .wanted = {}};
  plan.wanted = parts_.choice.wanted_of(plan.tokens);
  if (parts_.team != nullptr) plan.told = packed(plan);
  if (parts_.team != nullptr) parts_.team->ahead().broadcast(plan.told, 0);
  return plan;
}

void Passes::begin(const PassPlan& plan) {
  if (parts_.team != nullptr && parts_.team->leads()) parts_.team->stage_ranks().broadcast(plan.told, 0);
  parts_.runner.begin(plan);
  ++parts_.counts.passes;
  parts_.counts.replayed = parts_.runner.replayed();
}

void Passes::run(const PassPlan& plan) {
  begin(plan);
  parts_.runner.finish();
}

}  // namespace octet::generate
