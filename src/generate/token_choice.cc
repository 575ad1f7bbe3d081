#include "token_choice.h"

#include <limits>
#include <span>
#include <utility>

namespace octet::generate {
namespace {

/// Identifies the random number of a sequence's next token.
Draw draw_of(const Sequence& s) {
  return {.row = s.asked.row, .sample = s.asked.sample, .position = s.tokens.size()};
}

/// Ids that may not be chosen next.
std::span<const std::int32_t> forbidden_of(const Sequence& s) {
  if (std::ssize(s.answer.ids) < s.options.min_new) return s.options.stop_ids;
  return {};
}

}  // namespace

bool TokenChoice::takes_the_best(const Sequence& s) const {
  const AnswerOptions& o = s.options;
  return o.sampling.temperature <= 0 && o.sampling.repetition_penalty == 1.0 &&
         o.logprobs <= (options_.strict ? -1 : 0) && forbidden_of(s).empty();
}

ListingWish TokenChoice::wish_of(const Sequence& s) const {
  if (s.options.logprobs > runner_.most_listed()) return {};
  return listing_wish(s.options.sampling, draw_of(s), !forbidden_of(s).empty(),
                      options_.architecture.vocabulary, runner_.most_listed());
}

Wanted TokenChoice::wanted_of(const PassTokens& pass) const {
  Wanted wanted{.logits = std::vector<bool>(pass.rows.size(), true)};
  for (std::size_t row = 0; row < pass.sequences.size(); ++row) {
    const Sequence& s = *pass.sequences[row];
    if (takes_the_best(s)) {
      wanted.best = true;
      wanted.normalizers = wanted.normalizers || s.options.logprobs == 0;
      wanted.logits[row] = false;
      continue;
    }
    const ListingWish wish = runner_.most_listed() > 0 ? wish_of(s) : ListingWish{};
    if (!wish.helps) continue;
    wanted.listed.resize(pass.rows.size());
    wanted.listed[row] = {.temperature = wish.temperature, .draw = wish.draw};
    wanted.normalizers = wanted.normalizers || s.options.logprobs >= 0;
    wanted.logits[row] = false;
  }
  return wanted;
}

LogProbabilities TokenChoice::log_softmax(std::size_t row) const {
  using Rounding = LogProbabilities::Rounding;
  return LogProbabilities(runner_.logits(row),
                          options_.strict ? Rounding::of_training : Rounding::of_answers);
}

std::optional<TokenChoice::Choice> TokenChoice::choose_listed(const Sequence& s, std::size_t row) const {
  const ListedRow listed = runner_.listed(row);
  const std::int64_t logprobs = s.options.logprobs;
  const std::optional<std::int32_t> token =
      choose(listed, s.options.sampling, draw_of(s), s.tokens, forbidden_of(s));
  if (!token) return std::nullopt;
  Choice choice{.token = *token};
  if (logprobs < 0) return choice;
  const std::optional<double> logprob = log_probability(listed, *token);
  std::optional<std::vector<TokenScore>> best = most_probable_tokens(listed, logprobs);
  if (!logprob || !best) return std::nullopt;
  choice.logprob = *logprob;
  choice.best = std::move(*best);
  return choice;
}

TokenChoice::Choice TokenChoice::choose_whole(const Sequence& s, std::size_t row) const {
  const AnswerOptions& o = s.options;
  const std::span<const float> logits = runner_.logits(row);
  Choice choice;
  std::optional<LogProbabilities> raw;
  if (o.logprobs >= 0) raw.emplace(log_softmax(row));
  if (o.logprobs > 0) choice.best = raw->best(o.logprobs);
  std::vector<float> allowed;
  for (const std::int32_t id : forbidden_of(s)) {
    if (allowed.empty()) allowed.assign(logits.begin(), logits.end());
    if (id >= 0 && id < std::ssize(allowed))
      allowed[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
  }
  choice.token =
      choose(allowed.empty() ? logits : std::span<const float>(allowed), o.sampling, draw_of(s), s.tokens);
  if (raw) choice.logprob = raw->of(choice.token);
  return choice;
}

TokenChoice::Choice TokenChoice::choose_for(const Sequence& s, std::size_t row) {
  if (takes_the_best(s)) {
    const ops::BestToken best = runner_.best(row);
    require_finite(static_cast<double>(best.logit));
    return {.token = best.id, .logprob = static_cast<double>(best.logit) - best.normalizer};
  }
  if (runner_.has_listed(row)) {
    if (std::optional<Choice> choice = choose_listed(s, row)) return std::move(*choice);
    runner_.fetch_row(row);
    ++whole_rows_;
  }
  return choose_whole(s, row);
}

}  // namespace octet::generate
