// Compressed lists of host names, as Slurm writes them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace octet::launch {

/// The most hosts of one compressed list.
inline constexpr std::size_t kMostHosts = 1 << 14;

/// Splits at commas outside of brackets: `node[1,2],gpu` becomes `node[1,2]` and `gpu`.
std::vector<std::string> split_host_list(std::string_view list);

/// Returns whether a name has a range in brackets. An IPv6 address in brackets is no range.
bool is_compressed(std::string_view name);

/// Returns the names of `rack[1-2]node[01-04,07]` in order; other names are returned unchanged. Numbers keep
/// their leading zeros. `where` names the place in messages. Throws Error (usage) for a bracket that is not
/// closed, for anything but numbers and ascending ranges in it, and for more than kMostHosts names.
std::vector<std::string> expand_host_name(const std::string& name, const std::string& where);

}  // namespace octet::launch
