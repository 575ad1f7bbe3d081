#include "octet/planner/stages.h"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "octet/base/strings.h"

namespace octet::planner {
namespace {

/// Step estimates are not more accurate than this, so a higher stage must gain more.
constexpr double kAsGood = 1.02;

std::string duration(double seconds) {
  const bool long_one = seconds >= 10;
  char text[48];
  std::snprintf(text, sizeof text, "%.1f %s", long_one ? seconds : 1e3 * seconds, long_one ? "s" : "ms");
  return text;
}

std::string gibibytes(std::size_t bytes) {
  return human_bytes(static_cast<double>(bytes));
}

/// Returns a lower bound of the seconds of a step with a choice; 0 on a CPU.
double seconds_of(const Planner& planner, const PlanTarget& target, const plan::Choice& choice,
                  const plan::Memory& memory) {
  if (!target.traits().has_known_rates) return 0;
  return plan::time_of(planner.work(choice, memory), target.rates).seconds;
}

/// Returns the row of a stage at its fastest level that fits.
StageRow stage_row(const Planner& planner, const PlanTarget& target, int stage, std::int64_t micro) {
  StageRow row{.stage = stage};
  std::size_t least = SIZE_MAX;
  for (const LevelRow& level : compare_levels(planner, target, micro)) {
    if (level.bytes > target.memory && level.bytes >= least) continue;
    least = level.bytes;
    row.level = level.level, row.bytes = level.bytes, row.seconds = level.seconds;
    row.fits = level.bytes <= target.memory;
    if (row.fits) break;
  }
  return row;
}

/// Returns the exposed message time of a step. The links work at the same time, so the slowest counts.
double exposed_of(const store::StepMessages& messages, const plan::Time& time, std::int64_t micro_batches,
                  const PlanTarget& target) {
  double most = 0;
  for (const plan::Link* link : assumed_links(target)) {
    most = std::max(most, plan::exposed_seconds(sending_over(messages, *link), time, micro_batches, *link,
                                                target.place.local_size));
  }
  return most;
}

/// Returns "401.2 ms per step, 12.0 ms of them exposed messages"; on a CPU the bytes that are sent.
std::string cost_of(const StageRow& row, const PlanTarget& target) {
  if (!target.traits().has_known_rates)
    return gibibytes(static_cast<std::size_t>(row.sent)) + " sent per step";
  return duration(row.step()) + " per step, " + duration(row.exposed) + " of them exposed messages";
}

/// Returns the value by which stages are compared: seconds of a step on GPUs, bytes sent on CPUs.
double compared_cost(const StageRow& row, DeviceKind kind) {
  return traits_of(kind).has_known_rates ? row.step() : static_cast<double>(row.sent);
}

}  // namespace

plan::Sending sending_over(const store::StepMessages& messages, const plan::Link& link) {
  const auto bytes = [&](const comm::Sent& sent) {
    return static_cast<double>(link.between_hosts ? sent.between_nodes : sent.bytes - sent.between_nodes);
  };
  const store::StepMessages::Beside& beside = messages.beside;
  return {.sums = bytes(beside.sums),
          .backward = bytes(beside.backward),
          .forward = bytes(beside.forward),
          .alone = bytes(beside.alone),
          .sum_passes = beside.sum_passes,
          .forward_passes = beside.forward_passes};
}

std::vector<const plan::Link*> assumed_links(const PlanTarget& target) {
  std::vector<const plan::Link*> all;
  if (!target.traits().has_known_rates) return all;
  for (const plan::Link& link : plan::links()) {
    const std::string name = link.name;
    if (name == "NVLink" || (name == "400 Gbit/s" && target.place.nodes > 1)) all.push_back(&link);
  }
  return all;
}

std::vector<LevelRow> compare_levels(const Planner& planner, const PlanTarget& target, std::int64_t micro) {
  std::vector<LevelRow> rows;
  for (const plan::Level& level : planner.all_levels()) {
    const plan::Choice choice{micro, level};
    const plan::Memory memory = planner.memory(choice);
    rows.push_back({level, memory.bytes + planner.outside(), seconds_of(planner, target, choice, memory)});
  }
  // On a CPU all seconds are 0 and the order stays: from the cheapest level to the level that keeps least.
  std::ranges::stable_sort(rows, {}, &LevelRow::seconds);
  return rows;
}

std::vector<StageRow> compare_stages(const config::Config& config, const model::Architecture& architecture,
                                     const PlanTarget& target, const plan::Choice& choice,
                                     const std::array<store::StepMessages, 4>& messages) {
  std::vector<StageRow> rows;
  if (target.place.size == 1) return rows;
  for (int stage = 0; stage < 4; ++stage) {
    config::Config with = config;
    with.zero_stage = stage;
    const Planner planner(with, architecture, target);
    const store::StepMessages& sent = messages[static_cast<std::size_t>(stage)];
    StageRow& row = rows.emplace_back(stage_row(planner, target, stage, choice.micro));
    row.sent = sent.bytes();
    const plan::Work work = planner.work({choice.micro, row.level}, {});
    row.exposed = exposed_of(sent, plan::time_of(work, target.rates), work.micro_batches, target);
  }
  return rows;
}

std::optional<int> chosen_stage(const std::vector<StageRow>& stages, DeviceKind kind) {
  const auto cost = [kind](const StageRow& row) { return compared_cost(row, kind); };
  double least = std::numeric_limits<double>::infinity();
  for (const StageRow& row : stages) {
    if (row.fits) least = std::min(least, cost(row));
  }
  const auto found = std::ranges::find_if(
      stages, [&](const StageRow& row) { return row.fits && cost(row) <= kAsGood * least; });
  return found == stages.end() ? std::nullopt : std::optional(found->stage);
}

std::string why_stage(const std::vector<StageRow>& stages, const PlanTarget& target) {
  if (stages.empty()) return "";
  const std::optional<int> chosen = chosen_stage(stages, target.kind);
  std::string text;
  if (chosen) {
    const StageRow& row = stages[static_cast<std::size_t>(*chosen)];
    text = "zero_stage " + std::to_string(row.stage) + " with " + plan::keys_of(row.level) + ", " +
           cost_of(row, target) + "; ";
  } else {
    text = "no zero_stage fits with this micro-batch: ";
  }
  std::string others;
  for (const StageRow& row : stages) {
    if (row.stage == chosen) continue;
    others += (others.empty() ? "" : ", ") + std::to_string(row.stage) + " ";
    if (!row.fits) {
      others += (chosen ? "does not fit (" : "needs ") + gibibytes(row.bytes) + (chosen ? ")" : "");
    } else if (target.traits().has_known_rates) {
      others += "takes " + duration(row.step());
    } else {
      others += "sends " + gibibytes(static_cast<std::size_t>(row.sent));
    }
  }
  const bool cheaper =
      chosen && std::ranges::any_of(stages, [&](const StageRow& row) {
        return row.fits && compared_cost(row, target.kind) <
                               compared_cost(stages[static_cast<std::size_t>(*chosen)], target.kind);
      });
  return text + others + (cheaper ? " (less than 2 % counts as equal, and the lowest stage is taken)" : "");
}

std::string why_level(const std::vector<LevelRow>& levels, const plan::Level& planned,
                      const PlanTarget& target) {
  const auto at = std::ranges::find(levels, planned, &LevelRow::level);
  if (at == levels.end()) return "";
  const auto fits = [&](const LevelRow& row) { return row.bytes <= target.memory; };
  const std::string name = plan::keys_of(planned);
  if (std::ranges::none_of(levels, fits)) {
    const LevelRow& least = *std::ranges::min_element(levels, {}, &LevelRow::bytes);
    return "no level of recomputation fits: " + plan::keys_of(least.level) + " needs least, " +
           gibibytes(least.bytes);
  }
  const auto best = std::ranges::find_if(levels, fits);
  std::string faster;
  for (auto row = levels.begin(); row != std::min(best, at); ++row)
    faster += (faster.empty() ? "" : ", ") + plan::keys_of(row->level) + " needs " + gibibytes(row->bytes);
  if (best == at)
    return name + " fits" +
           (faster.empty() ? ", and no level is faster" : ", and nothing faster does: " + faster);
  const std::string other = plan::keys_of(best->level);
  if (!fits(*at)) return name + " does not fit; " + other + " does";
  if (!target.traits().has_known_rates || best->seconds == at->seconds)
    return name + " is set, and " + other + " fits, too";
  return name + " is set; " + other + " fits, too, and takes " + duration(at->seconds - best->seconds) +
         " less per step";
}

}  // namespace octet::planner
