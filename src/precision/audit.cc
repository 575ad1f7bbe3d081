#include "octet/precision/audit.h"

#include <algorithm>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"

namespace octet::precision {
namespace {

constexpr std::array kGemms = {ops::GemmKind::forward, ops::GemmKind::dgrad, ops::GemmKind::wgrad};

const char* name_of(ops::GemmKind gemm_kind) {
  if (gemm_kind == ops::GemmKind::forward) return "forward";
  return gemm_kind == ops::GemmKind::dgrad ? "dgrad" : "wgrad";
}

std::string short_name(DType format) {
  switch (format) {
    case DType::e4m3:
      return "E4M3";
    case DType::e5m2:
      return "E5M2";
    default:
      return std::string(octet::name_of(format));
  }
}

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

/// Returns ascending numbers as ranges: "0-3, 5".
std::string ranges(const std::set<std::int64_t>& numbers) {
  std::string text;
  for (auto at = numbers.begin(); at != numbers.end();) {
    const std::int64_t first = *at;
    std::int64_t last = first;
    while (++at != numbers.end() && *at == last + 1) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(first);
    if (last > first) text += "-" + std::to_string(last);
  }
  return text;
}

/// Whether FP8 was requested and the GEMM ran in another format.
bool falls_back(const AuditRow& row, ops::GemmWay way) {
  return row.fp8 && way != ops::GemmWay::none && !ops::multiplies_fp8(way);
}

/// Returns a description: "decoded into bf16, because the columns of the result are no multiple of 16".
std::string words_of(ops::GemmWay way, ops::GemmReason reason) {
  std::string text = ops::name_of(way);
  if (way == ops::GemmWay::decoded) text = "decoded into bf16";
  if (way == ops::GemmWay::filled) text = "in FP8 from copies";
  if (way == ops::GemmWay::emulated) text = "FP8 values, multiplied exactly by the CPU";
  if (reason != ops::GemmReason::none) text += std::string(", because ") + ops::text_of(reason);
  return text;
}

}  // namespace

struct Audit::Group {
  std::size_t row;
  ops::GemmOutcome outcome;  ///< outcome.calls is the sum over all passes
  std::array<std::int64_t, 3> gemms{}, calls{};
  std::set<std::int64_t> layers;
  std::int64_t all() const { return gemms[0] + gemms[1] + gemms[2]; }
  /// Returns the passes with such GEMMs: "forward, wgrad".
  std::string passes() const {
    std::string text;
    for (const ops::GemmKind p : kGemms) {
      if (gemms[static_cast<std::size_t>(p)] == 0) continue;
      text += std::string(text.empty() ? "" : ", ") + name_of(p);
    }
    return text;
  }
};

std::size_t Audit::plan(AuditRow row) {
  rows_.push_back(std::move(row));
  return rows_.size() - 1;
}

void Audit::count(const AuditPlace& place, ops::GemmKind gemm_kind, const ops::GemmOutcome& outcome) {
  if (outcome.way == ops::GemmWay::none) return;
  check(place.row < rows_.size(), "the row of a counted GEMM was planned");
  Sum& sum = counts_[{.row = place.row,
                      .layer = place.layer,
                      .gemm_kind = gemm_kind,
                      .way = outcome.way,
                      .reason = outcome.reason,
                      .a = outcome.a,
                      .b = outcome.b}];
  ++sum.gemms;
  sum.calls += outcome.calls;
}

void Audit::add(std::span<const AuditCount> counts) {
  for (const AuditCount& c : counts) {
    Sum& sum = counts_[{.row = static_cast<std::size_t>(c.row),
                        .layer = c.layer,
                        .gemm_kind = c.gemm_kind,
                        .way = c.outcome.way,
                        .reason = c.outcome.reason,
                        .a = c.outcome.a,
                        .b = c.outcome.b}];
    sum.gemms += c.gemms;
    sum.calls += c.outcome.calls;
  }
}

std::vector<AuditCount> Audit::counts() const {
  std::vector<AuditCount> all;
  for (const auto& [key, sum] : counts_) {
    all.push_back(
        {.row = static_cast<std::int64_t>(key.row),
         .layer = key.layer,
         .gemm_kind = key.gemm_kind,
         .outcome = {.way = key.way, .reason = key.reason, .a = key.a, .b = key.b, .calls = sum.calls},
         .gemms = sum.gemms});
  }
  return all;
}

std::vector<Audit::Group> Audit::groups() const {
  std::vector<Group> groups;
  for (const auto& [entry, sum] : counts_) {
    const Key& key = entry;  // a lambda cannot capture a structured binding
    ops::GemmOutcome outcome{.way = key.way, .reason = key.reason, .a = key.a, .b = key.b};
    auto group = std::ranges::find_if(
        groups, [&](const Group& g) { return g.row == key.row && g.outcome == outcome; });
    if (group == groups.end()) group = groups.insert(groups.end(), Group{.row = key.row, .outcome = outcome});
    group->gemms[static_cast<std::size_t>(key.gemm_kind)] += sum.gemms;
    group->calls[static_cast<std::size_t>(key.gemm_kind)] += sum.calls;
    group->layers.insert(key.layer);
  }
  return groups;
}

std::int64_t Audit::counted(ops::GemmKind gemm_kind, DType format) const {
  std::int64_t sum = 0;
  for (const auto& [key, one] : counts_) {
    const bool fp8 = ops::multiplies_fp8(key.way);
    const DType ran = key.way == ops::GemmWay::f32 ? DType::f32 : DType::bf16;
    if (key.gemm_kind == gemm_kind && (fp8 ? is_fp8(format) : format == ran)) sum += one.gemms;
  }
  return sum;
}

std::int64_t Audit::fp8_gemms() const {
  std::int64_t sum = 0;
  for (const ops::GemmKind gemm_kind : kGemms) sum += counted(gemm_kind, DType::e4m3);
  return sum;
}

std::int64_t Audit::gemms() const {
  std::int64_t all = 0;
  for (const auto& [key, sum] : counts_) all += sum.gemms;
  return all;
}

std::vector<std::string> Audit::take_fallbacks() {
  std::vector<std::string> lines;
  const auto tell = [&](const Group& group) {
    const ops::GemmOutcome& outcome = group.outcome;
    if (!falls_back(rows_[group.row], outcome.way)) return;
    if (!told_.insert({group.row, outcome.reason}).second) return;
    lines.push_back(rows_[group.row].name + " (" + group.passes() +
                    (group.layers.empty() ? "" : "; layers " + ranges(group.layers)) +
                    "): " + words_of(outcome.way, outcome.reason));
  };
  for (const Group& group : groups()) tell(group);
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    std::map<ops::GemmReason, Group> planned;
    for (std::size_t p = 0; p < kGemms.size(); ++p) {
      const ops::GemmOutcome& outcome = rows_[row].planned[p];
      Group& group = planned.try_emplace(outcome.reason, Group{.row = row, .outcome = outcome}).first->second;
      group.gemms[p] = 1;
    }
    for (const auto& [reason, group] : planned) tell(group);
  }
  return lines;
}

std::string Audit::table() const {
  std::size_t name_width = 7, shape_width = 6;
  const auto shape = [](const AuditRow& row) {
    return std::to_string(row.rows) + " x " + std::to_string(row.cols);
  };
  for (const AuditRow& row : rows_) {
    name_width = std::max(name_width, row.name.size());
    shape_width = std::max(shape_width, shape(row).size());
  }
  const std::string compute = short_name(recipe_.compute);
  const std::string x = short_name(recipe_.forward_format), g = short_name(recipe_.gradient_format);
  const auto line = [&](const std::string& name, const std::string& layers, const std::string& size,
                        const std::array<std::string, 3>& formats, const std::string& reason) {
    std::string text = padded(name, name_width) + "  " + padded(layers, 6) + "  " + padded(size, shape_width);
    for (const std::string& format : formats) text += "  " + padded(format, 11);
    text += "  " + reason;
    text.resize(text.find_last_not_of(' ') + 1);
    return text + "\n";
  };
  std::string text = line("GEMM", "layers", "weight", {"forward", "dgrad", "wgrad"}, "");
  for (const AuditRow& row : rows_) {
    std::array<std::string, 3> formats{compute, compute, compute};
    std::string reason = row.reason;
    for (std::size_t p = 0; row.fp8 && p < formats.size(); ++p) {
      const ops::GemmOutcome& planned = row.planned[p];
      formats[p] = falls_back(row, planned.way) ? "bf16" : (p == 0 ? x : g) + " x " + x;
      if (planned.reason == ops::GemmReason::none) continue;
      reason += (reason.empty() ? "" : "; ") + std::string(name_of(kGemms[p])) + " " +
                words_of(planned.way, planned.reason);
    }
    text += line(row.name, std::to_string(row.layers), shape(row), formats, reason);
  }
  if (recipe_.fast_gradients) {
    text +=
        "fp8_fast_accumulation: all: on a GPU, FP8 GEMMs of gradients also keep only about 14 bits of sums\n";
  }
  return text;
}

std::string Audit::summary() const {
  const auto of = [&](ops::GemmKind p) {
    return with_commas(counted(p, DType::e4m3)) + " of " +
           with_commas(counted(p, DType::e4m3) + counted(p, DType::bf16) + counted(p, DType::f32));
  };
  std::string text = "GEMMs in FP8: " + with_commas(fp8_gemms()) + " of " + with_commas(gemms()) +
                     " (forward " + of(ops::GemmKind::forward) + ", dgrad " + of(ops::GemmKind::dgrad) +
                     ", wgrad " + of(ops::GemmKind::wgrad) + ")";
  std::int64_t emulated = 0;
  std::string rest;
  for (const Group& group : groups()) {
    if (group.outcome.way == ops::GemmWay::emulated) emulated += group.all();
    const bool other =
        group.outcome.way == ops::GemmWay::filled || falls_back(rows_[group.row], group.outcome.way);
    if (!other) continue;
    rest += "\n  " + rows_[group.row].name + " (" + group.passes() + "; layers " + ranges(group.layers) +
            "): " + with_commas(group.all()) + " " + words_of(group.outcome.way, group.outcome.reason);
  }
  if (emulated > 0) text += ", emulated: a CPU multiplies the values of FP8 exactly";
  return text + rest;
}

Json Audit::to_json() const {
  Json all = Json::array();
  for (const Group& group : groups()) {
    for (std::size_t p = 0; p < kGemms.size(); ++p) {
      if (group.gemms[p] == 0) continue;
      Json one{{"product", rows_[group.row].name},
               {"pass", name_of(kGemms[p])},
               {"layers", ranges(group.layers)},
               {"way", ops::name_of(group.outcome.way)}};
      if (group.outcome.reason != ops::GemmReason::none) one["reason"] = ops::text_of(group.outcome.reason);
      one["a"] = octet::name_of(group.outcome.a);
      one["b"] = octet::name_of(group.outcome.b);
      one["products"] = group.gemms[p];
      one["calls"] = group.calls[p];
      all.push_back(std::move(one));
    }
  }
  return all;
}

void Audit::require_fp8() const {
  if (!recipe_.fp8() || gemms() == 0 || fp8_gemms() > 0) return;
  throw Error({.what = "fp8: true is set, but no GEMM ran in FP8",
               .expected = "FP8 GEMMs in the linear layers",
               .found = summary() + "\n" + table(),
               .fix = "set fp8: false, or see the reasons in the table",
               .code = ExitCode::usage});
}

}  // namespace octet::precision
