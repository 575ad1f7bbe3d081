#include "logs/cast_log.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"

namespace octet::train {
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

}  // namespace octet::train
