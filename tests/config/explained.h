// A configuration with the sources of its values, as the pages of tests/config/said show it.
#pragma once

#include <array>
#include <iomanip>
#include <sstream>
#include <string>

#include "octet/config/config.h"
#include "octet/config/key_table.h"

namespace octet::config::test {

/// Returns one line per key: name, value and origin. Keys with their default are included only if `all`.
inline std::string explained(const Resolved& resolved, bool all = true) {
  constexpr std::array kSources{"default", "environment", "DeepSpeed JSON", "YAML", "override"};
  std::ostringstream text;
  text << std::left;
  for (const Field& field : schema()) {
    const auto found = resolved.origins.find(field.name);
    const bool set = found != resolved.origins.end(), used = field.status == Status::used;
    if (!set && (!all || !used)) continue;
    text << std::setw(32) << field.name << " " << std::setw(24)
         << (used ? value_text(field, resolved.config) : resolved.extra.at(field.name)) << " "
         << kSources[set ? static_cast<std::size_t>(found->second.source) : 0];
    if (set && !found->second.where.empty()) text << " (" << found->second.where << ")";
    text << "\n";
  }
  return text.str();
}

}  // namespace octet::config::test
