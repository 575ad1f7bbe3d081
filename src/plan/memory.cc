#include "octet/plan/memory.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>

#include "octet/base/error.h"
#include "octet/base/strings.h"

namespace octet::plan {
namespace {

std::vector<MemoryRow> sorted(const std::map<std::string, std::size_t>& sums) {
  std::vector<MemoryRow> rows;
  for (const auto& [name, bytes] : sums) rows.push_back({name, bytes});
  std::ranges::stable_sort(rows, [](const MemoryRow& a, const MemoryRow& b) { return a.bytes > b.bytes; });
  return rows;
}

std::string part_of(const std::string& name) {
  return name.substr(0, name.find('/'));
}

}  // namespace

std::size_t Memory::of_tokens() const {
  std::size_t sum = 0;
  for (const MemoryRow& row : rows) {
    const std::string part = part_of(row.name);
    if (part == "activations" || part == "head" || part == "workspace" || part == "batch") sum += row.bytes;
  }
  return sum;
}

std::size_t Memory::masters_of_host() const {
  const auto row = std::ranges::find(pinned, "parameters/master", &MemoryRow::name);
  return row == pinned.end() ? 0 : row->bytes;
}

std::size_t Memory::state_of_host() const {
  std::size_t sum = masters_of_host();
  for (const MemoryRow& row : pinned) {
    if (part_of(row.name) == "optimizer") sum += row.bytes;
  }
  return sum;
}

std::size_t Memory::pinned_bytes() const {
  std::size_t sum = 0;
  for (const MemoryRow& row : pinned) sum += row.bytes;
  return sum;
}

std::vector<MemoryRow> Memory::by_part() const {
  std::map<std::string, std::size_t> sums;
  for (const MemoryRow& row : rows) sums[part_of(row.name)] += row.bytes;
  return sorted(sums);
}

Memory memory_of(const Arena& arena, const std::vector<MemoryRow>& more) {
  std::map<std::string, std::size_t> device, pinned, host;
  for (const Reservation& r : arena.reservations()) {
    (r.kind == MemoryKind::device ? device : r.kind == MemoryKind::pinned ? pinned : host)[r.name] += r.bytes;
  }
  for (const MemoryRow& row : more) {
    if (row.bytes > 0) device[row.name] += row.bytes;
  }
  Memory memory{.rows = sorted(device), .pinned = sorted(pinned), .host = sorted(host)};
  for (const MemoryRow& row : memory.rows) memory.bytes += row.bytes;
  return memory;
}

std::size_t library_bytes(DeviceKind kind) {
  return traits_of(kind).library_bytes;
}

std::size_t parse_bytes(const std::string& text, const std::string& name) {
  const auto wrong = [&] {
    return Error({.what = "value of '" + name + "' cannot be used",
                  .expected = "a number of bytes, or one with a unit, such as 141GB, 80GiB or 512MiB",
                  .found = "'" + text + "'",
                  .where = "command line",
                  .fix = "give a size with a unit from KB to TB or from KiB to TiB",
                  .code = ExitCode::usage});
  };
  static const std::map<std::string, double> units{
      {"", 1},      {"b", 1},        {"kb", 1e3},     {"mb", 1e6},     {"gb", 1e9},
      {"tb", 1e12}, {"kib", 0x1p10}, {"mib", 0x1p20}, {"gib", 0x1p30}, {"tib", 0x1p40}};
  std::size_t end = 0;
  double number = 0;
  try {
    number = std::stod(text, &end);
  } catch (const std::exception&) {
    throw wrong();
  }
  std::string word(trim(std::string_view(text).substr(end)));
  for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto unit = units.find(word);
  if (unit == units.end() || !std::isfinite(number) || number <= 0 || number * unit->second > 0x1p62)
    throw wrong();
  return static_cast<std::size_t>(number * unit->second);
}

const char* name_of(model::Recompute level) {
  switch (level) {
    case model::Recompute::none:
      return "none";
    case model::Recompute::norms:
      return "norms";
    case model::Recompute::qkv:
      return "qkv";
    case model::Recompute::full:
      break;
  }
  return "full";
}

std::string keys_of(const Level& level) {
  return std::string("recompute=") + name_of(level.recompute) +
         (level.transposes_at_use ? " fp8_transposed_weights=at_use" : "");
}

std::vector<Choice> largest_that_fit(const std::vector<std::int64_t>& micros,
                                     const std::vector<Level>& levels, std::size_t limit,
                                     const BytesOf& bytes_of) {
  std::vector<Choice> all;
  for (const Level& level : levels) {
    const auto too_large = std::ranges::partition_point(micros, [&](std::int64_t micro) {
      return bytes_of({micro, level}) <= limit;
    });
    if (too_large != micros.begin()) all.push_back({*std::prev(too_large), level});
  }
  return all;
}

std::optional<Choice> fastest(const std::vector<Choice>& choices, const SecondsOf& seconds_of) {
  std::optional<Choice> best;
  double least = 0;
  for (const Choice& choice : choices) {
    const double seconds = seconds_of(choice);
    if (best && seconds >= least) continue;
    best = choice;
    least = seconds;
  }
  return best;
}

}  // namespace octet::plan
