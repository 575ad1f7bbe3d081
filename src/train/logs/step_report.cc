#include "logs/step_report.h"

#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/config/derive.h"
#include "octet/device/device.h"
#include "octet/setup/run_options.h"

namespace octet::train {

model::ExpertLoads loads_of_all(comm::Channel& channel, const model::ExpertLoads& own) {
  std::vector<std::int64_t> flat;
  for (const auto& [block, load] : own) {
    flat.insert(flat.end(), load.rows.begin(), load.rows.end());
    flat.push_back(load.dropped);
  }
  const std::size_t size = flat.size() * sizeof(std::int64_t);
  std::vector<std::int64_t> sum(flat.size()), of_rank(flat.size());
  for (const std::string& bytes :
       channel.all_gather_bytes(std::string(reinterpret_cast<const char*>(flat.data()), size))) {
    check(bytes.size() == size, "all ranks have the same experts");
    std::memcpy(of_rank.data(), bytes.data(), size);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += of_rank[i];
  }
  model::ExpertLoads all = own;
  auto from = sum.begin();
  for (auto& [block, load] : all) {
    std::copy_n(from, load.rows.size(), load.rows.begin());
    from += std::ssize(load.rows);
    load.dropped = *from++;
  }
  return all;
}

Json expert_fields(const model::ExpertLoads& loads) {
  Json fields = Json::object();
  for (const auto& [block, load] : loads) {
    const auto rows =
        static_cast<double>(std::accumulate(load.rows.begin(), load.rows.end(), std::int64_t{0}));
    if (rows == 0) continue;
    const auto count = static_cast<double>(load.rows.size());
    double entropy = 0;
    for (const std::int64_t one : load.rows) {
      const double share = static_cast<double>(one) / rows;
      if (share > 0) entropy -= share * std::log(share);
    }
    const auto [smallest, largest] = std::ranges::minmax(load.rows);
    fields["blocks"].push_back(block);
    fields["largest"].push_back(static_cast<double>(largest) * count / rows);
    fields["smallest"].push_back(static_cast<double>(smallest) * count / rows);
    fields["entropy"].push_back(count > 1 ? entropy / std::log(count) : 1.0);
    const auto dropped = static_cast<double>(load.dropped);
    fields["dropped"].push_back(dropped / (rows + dropped));
  }
  return fields;
}

std::string IdleExperts::look(std::int64_t step, const model::ExpertLoads& loads) {
  std::string named;
  for (const auto& [block, load] : loads) {
    std::vector<Expert>& experts = experts_[block];
    // A run that begins or resumes has no statistics of earlier steps.
    if (experts.empty()) experts.resize(load.rows.size(), Expert{.seen = before_ < 0 ? step - 1 : before_});
    for (std::size_t e = 0; e < load.rows.size(); ++e) {
      Expert& expert = experts[e];
      if (load.rows[e] > 0) expert = {.seen = step};
      if (expert.named || step - expert.seen < kSteps) continue;
      expert.named = true;
      named += (named.empty() ? "" : ", ") + std::to_string(e) + " of block " + std::to_string(block);
    }
  }
  before_ = step;
  if (named.empty()) return "";
  return "experts got no token for " + std::to_string(kSteps) + " steps: " + named +
         ". Set output_router_logits: true and a larger router_aux_loss_coef in the model's config.json to "
         "balance them";
}

std::vector<double> sum_of_ranks(comm::Channel& channel, const std::vector<double>& own) {
  std::vector<double> sum(own.size(), 0.0), of_rank(own.size());
  const std::size_t size = own.size() * sizeof(double);
  for (const std::string& bytes :
       channel.all_gather_bytes(std::string(reinterpret_cast<const char*>(own.data()), size))) {
    check(bytes.size() == size, "all ranks have the same figures");
    std::memcpy(of_rank.data(), bytes.data(), size);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += of_rank[i];
  }
  return sum;
}

std::vector<std::pair<std::string, double>> preference_fields(const std::vector<double>& sums,
                                                              const ops::PreferenceRule& rule) {
  using enum ops::PreferenceFigure;
  const auto sum = [&](ops::PreferenceFigure figure) { return sums.at(static_cast<std::size_t>(figure)); };
  if (sums.empty() || sum(pairs) == 0) return {};
  const auto mean = [&](ops::PreferenceFigure figure) { return sum(figure) / sum(pairs); };
  std::vector<std::pair<std::string, double>> fields = {
      {"rewards/chosen", mean(reward_chosen)},
      {"rewards/rejected", mean(reward_rejected)},
      {"rewards/accuracies", mean(accurate)},
      {"rewards/margins", (sum(reward_chosen) - sum(reward_rejected)) / sum(pairs)}};
  if (rule.kind == ops::PreferenceKind::bradley_terry) return fields;
  fields.emplace_back("logps/chosen", mean(chosen));
  fields.emplace_back("logps/rejected", mean(rejected));
  if (rule.kind == ops::PreferenceKind::orpo) {
    fields.emplace_back("sft_loss", mean(chosen_loss));
    fields.emplace_back("odds_ratio_loss", mean(odds_loss));
  }
  return fields;
}

std::vector<std::pair<std::string, double>> teacher_fields(const std::vector<double>& sums, double labels) {
  using enum ops::DistillationFigure;
  const auto mean = [&](ops::DistillationFigure figure) {
    return sums.at(static_cast<std::size_t>(figure)) / labels;
  };
  if (labels == 0) return {};
  return {{"kd_loss", mean(divergence)},
          {"ce_loss", mean(cross_entropy)},
          {"teacher_agreement", mean(agreement)}};
}

std::vector<std::pair<std::string, double>> judgement_fields(const std::vector<double>& sums, double point) {
  using enum ops::JudgementFigure;
  const auto sum = [&](ops::JudgementFigure figure) { return sums.at(static_cast<std::size_t>(figure)); };
  std::vector<std::pair<std::string, double>> fields;
  const double good = sum(desirable_count), bad = sum(undesirable_count);
  if (good > 0) fields.emplace_back("rewards/chosen", sum(reward_desirable) / good);
  if (bad > 0) fields.emplace_back("rewards/rejected", sum(reward_undesirable) / bad);
  if (good > 0 && bad > 0)
    fields.emplace_back("rewards/margins", sum(reward_desirable) / good - sum(reward_undesirable) / bad);
  if (good > 0) fields.emplace_back("logps/chosen", sum(desirable) / good);
  if (bad > 0) fields.emplace_back("logps/rejected", sum(undesirable) / bad);
  if (good + bad > 0) fields.emplace_back("kl", point);
  return fields;
}

namespace {

/// OwnFacts in a message.
struct Message {
  double loss = 0;
  std::int64_t has_loss = 0, reserved_bytes = 0, used_bytes = 0;
};

}  // namespace

std::int64_t memory_in_use(const Device& device) {
  if (device.host_reaches_memory()) {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
  }
  const MemoryInfo info = device.memory();
  return static_cast<std::int64_t>(info.total - info.free);
}

void OwnLoss::add(const RankLoss& step) {
  if (step.label_tokens == 0) return;
  sum_ += step.sum / static_cast<double>(step.label_tokens);
  ++steps_;
}

std::optional<double> OwnLoss::mean() const {
  if (steps_ == 0) return std::nullopt;
  return sum_ / static_cast<double>(steps_);
}

AllFacts exchange_facts(comm::Channel& channel, const OwnFacts& own) {
  const Message mine{.loss = own.loss.value_or(0),
                     .has_loss = own.loss ? 1 : 0,
                     .reserved_bytes = own.reserved_bytes,
                     .used_bytes = own.used_bytes};
  AllFacts all;
  const std::string bytes(reinterpret_cast<const char*>(&mine), sizeof mine);
  for (const std::string& text : channel.all_gather_bytes(bytes)) {
    Message said;
    check(text.size() == sizeof said, "all ranks describe their hosts in the same way");
    std::memcpy(&said, text.data(), sizeof said);
    all.losses.push_back(said.has_loss != 0 ? std::optional(said.loss) : std::nullopt);
    all.reserved_bytes = std::max(all.reserved_bytes, said.reserved_bytes);
    all.used_bytes = std::max(all.used_bytes, said.used_bytes);
  }
  return all;
}

StepWatch::StepWatch(std::function<double()> seconds_busy, Stream& compute)
    : seconds_busy_(std::move(seconds_busy)),
      compute_(compute),
      busy_(seconds_busy_()),
      waited_(seconds_waited(compute)) {}

MessageTime StepWatch::take() {
  const double busy = seconds_busy_(), waited = seconds_waited(compute_);
  MessageTime time{.under_way = busy - std::exchange(busy_, busy)};
  time.exposed = std::min(waited - std::exchange(waited_, waited), time.under_way);
  return time;
}

namespace {

void add(ops::Fp8Seen& to, const ops::Fp8Seen& from) {
  // Magnitudes compare like their bits; NaN is the largest.
  const auto bits = [](float x) { return std::bit_cast<std::uint32_t>(x); };
  if (bits(from.amax) > bits(to.amax)) to.amax = from.amax;
  if (from.scale != 0 && (to.scale == 0 || from.scale < to.scale)) to.scale = from.scale;
  to.values += from.values;
  to.saturated += from.saturated;
  to.lost += from.lost;
}

double share(std::uint64_t count, const ops::Fp8Seen& seen) {
  return seen.values == 0 ? 0.0 : static_cast<double>(count) / static_cast<double>(seen.values);
}

/// Returns the shortest decimal number that parses to this fp32 number; null if it is not finite.
Json number(float x) {
  if (!std::isfinite(x)) return nullptr;
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, x).ptr;
  double value = 0;
  std::from_chars(text, end, value);
  return value;
}

struct Place {
  std::int64_t layer = 0;
  std::string gemm_kind, operand;
};
/// Parses "layers.3.qkv/input" or "layers.3.qkv/input/1".
Place place_of(const std::string& name) {
  const auto parts = split(name, '/');
  const auto names = split(parts.front(), '.');
  check(parts.size() >= 2 && names.size() == 3, "casts have names of layer, product and operand");
  Place place{.gemm_kind = names[2], .operand = parts[1]};
  std::from_chars(names[1].data(), names[1].data() + names[1].size(), place.layer);
  return place;
}

Json shown(const ops::Fp8Seen& seen) {
  return {{"amax", number(seen.amax)},
          {"scale", number(seen.scale)},
          {"saturated", share(seen.saturated, seen)},
          {"lost", share(seen.lost, seen)}};
}

}  // namespace

std::vector<precision::CastRow> casts_of_all(comm::Channel& channel,
                                             const std::vector<precision::CastRow>& own) {
  std::string bytes(own.size() * sizeof(ops::Fp8Seen), '\0');
  for (std::size_t i = 0; i < own.size(); ++i) {
    std::memcpy(bytes.data() + i * sizeof(ops::Fp8Seen), &own[i].seen, sizeof(ops::Fp8Seen));
  }
  std::vector<precision::CastRow> all;
  std::map<std::string, std::size_t> known;
  for (const std::string& of_rank : channel.all_gather_bytes(bytes)) {
    check(of_rank.size() == bytes.size(), "all ranks describe their hosts in the same way");
    for (std::size_t i = 0; i < own.size(); ++i) {
      const auto [at, is_new] = known.try_emplace(own[i].name, all.size());
      if (is_new) all.push_back({.name = own[i].name});
      ops::Fp8Seen seen;
      std::memcpy(&seen, of_rank.data() + i * sizeof seen, sizeof seen);
      add(all[at->second].seen, seen);
    }
  }
  return all;
}

CastFields cast_fields(const std::vector<precision::CastRow>& rows) {
  std::map<std::pair<std::string, std::string>, std::map<std::int64_t, ops::Fp8Seen>> by_operand;
  std::vector<std::pair<std::string, std::string>> order;
  for (const precision::CastRow& row : rows) {
    if (row.seen.values == 0) continue;
    const Place place = place_of(row.name);
    const std::pair key{place.gemm_kind, place.operand};
    if (std::ranges::find(order, key) == order.end()) order.push_back(key);
    by_operand[key][place.layer] = row.seen;
  }
  CastFields fields{.worst = Json::object(), .layers = Json::object()};
  for (const auto& key : order) {
    const auto& layers = by_operand.at(key);
    const auto lost = [](const ops::Fp8Seen& seen) { return share(seen.saturated + seen.lost, seen); };
    auto worst = layers.begin();
    Json& arrays = fields.layers[key.first][key.second];
    for (auto at = layers.begin(); at != layers.end(); ++at) {
      if (lost(at->second) > lost(worst->second)) worst = at;
      const Json values = shown(at->second);
      for (const auto& [field, value] : values.items()) arrays[field].push_back(value);
    }
    Json& one = fields.worst[key.first][key.second] = shown(worst->second);
    one["layer"] = worst->first;
  }
  return fields;
}

bool StepReport::logs_at(std::int64_t step) const {
  return report::is_logged(step, config::interval_steps(run_.config.logging_steps, run_.total_steps),
                           run_.config.logging_first_step, run_.total_steps);
}

bool StepReport::watches_casts() const {
  return setup::cast_log(run_.config) != setup::CastLog::none;
}

void StepReport::begin() {
  run_.session.take_traffic();
  const bool casts = watches_casts();
  parts_.engine->watch_casts(
      {.next = casts && logs_at(run_.step + 1), .after = casts && logs_at(run_.step + 2)});
}

void StepReport::add_answers(report::StepFacts& facts) {
  const bool judged = setup::trains_judged(run_.config);
  const std::span<const double> figures = parts_.engine->own_figures();
  own_figures_.resize(figures.size());
  for (std::size_t i = 0; i < figures.size(); ++i) own_figures_[i] += figures[i];
  if (judged) points_.push_back(parts_.engine->reference_point());
  facts.label_tokens = 0;  // known with the figures of all ranks
  if (!logs_at(run_.step)) return;
  const std::vector<double> sums = sum_of_ranks(run_.job, std::exchange(own_figures_, {}));
  const std::vector<double> points = std::exchange(points_, {});
  const std::size_t labels = judged ? static_cast<std::size_t>(ops::JudgementFigure::labels)
                                    : static_cast<std::size_t>(ops::PreferenceFigure::labels);
  facts.label_tokens = static_cast<std::int64_t>(sums[labels]);
  facts.extra = judged ? judgement_fields(sums, std::accumulate(points.begin(), points.end(), 0.0) /
                                                    static_cast<double>(points.size()))
                       : preference_fields(sums, setup::preference_of(run_.config, run_.config));
}

void StepReport::add_taught(report::StepFacts& facts) {
  // The number of label rows follows the figures.
  own_figures_.resize(ops::kDistillationFigures + 1);
  for (std::size_t i = 0; i < ops::kDistillationFigures; ++i)
    own_figures_[i] += parts_.engine->own_figures()[i];
  own_figures_.back() += static_cast<double>(parts_.engine->own_loss().label_tokens);
  if (!logs_at(run_.step)) return;
  const std::vector<double> sums = sum_of_ranks(run_.job, std::exchange(own_figures_, {}));
  facts.extra = teacher_fields(sums, sums.back());
}

void StepReport::report(const StepOutcome& outcome) {
  comm::Job& job = run_.job;
  Engine& engine = *parts_.engine;
  auto traffic = run_.session.take_traffic();
  std::ranges::move(engine.instance().take_traffic(), std::back_inserter(traffic));
  own_loss_.add(engine.own_loss());
  report::StepFacts facts;
  facts.label_tokens = outcome.result.label_tokens;
  if (setup::trains_preferences(run_.config)) add_answers(facts);
  if (setup::has_teacher(run_.config)) add_taught(facts);
  if (logs_at(run_.step)) {
    const AllFacts all =
        exchange_facts(job, {.loss = std::exchange(own_loss_, {}).mean(),
                             .reserved_bytes = static_cast<std::int64_t>(engine.arena().bytes()),
                             .used_bytes = memory_in_use(run_.session.device())});
    facts.rank_losses = all.losses;
    facts.memory_bytes = all.reserved_bytes;
    facts.memory_peak_bytes = all.used_bytes;
    if (watches_casts()) {
      CastFields fields = cast_fields(casts_of_all(job, engine.cast_rows()));
      facts.fp8 = std::move(fields.worst);
      if (setup::cast_log(run_.config) == setup::CastLog::layers) facts.fp8_layers = std::move(fields.layers);
    }
  }
  if (logs_at(run_.step) && parts_.architecture.experts.count > 0) {
    const model::ExpertLoads loads = loads_of_all(job, engine.core().take_expert_loads());
    facts.experts = expert_fields(loads);
    const std::string idle = idle_experts_.look(run_.step, loads);
    if (!idle.empty() && run_.prints()) log::warn("step " + std::to_string(run_.step) + ": " + idle);
  }
  if (!parts_.reporter) return;
  const store::StepResult& result = outcome.result;
  facts.step = run_.step;
  const feed::Feed::Step step = parts_.feed->step();
  facts.epoch = step.epoch;
  facts.loss = mean_loss(result);
  facts.grad_norm = result.grad_norm;
  facts.learning_rate = result.learning_rate;
  facts.seconds = outcome.seconds;
  facts.tokens = step.tokens;
  facts.samples = step.samples;
  facts.skipped = was_skipped(result);
  facts.counts = guard_.counts();
  facts.data_seconds = outcome.data_seconds;
  facts.comm_seconds = outcome.messages.under_way;
  facts.comm_exposed_seconds = outcome.messages.exposed;
  if (job.size() > 1) {
    for (const auto& kind : traffic) {
      if (kind.calls > 0) facts.comm_kinds.push_back({kind.kind, kind.seconds, kind.bytes_sent});
    }
  }
  parts_.reporter->step(facts);
}

}  // namespace octet::train
