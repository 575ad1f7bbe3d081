#include "octet/feed/routing_file.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "octet/base/error.h"
#include "octet/base/json.h"

namespace octet::feed {
namespace {

constexpr const char* kFormat = "octet routing";
constexpr std::int64_t kVersion = 1;
constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Returns bytes in base64 (RFC 4648).
std::string base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    std::uint32_t word = 0;
    for (std::size_t i = 0; i < 3; ++i)
      word = word << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    for (std::size_t i = 0; i < 4; ++i)
      text += at + i > bytes.size() ? '=' : kDigits[word >> (18 - 6 * i) & 63u];
  }
  return text;
}

/// Returns the bytes of base64; nothing if it is invalid.
std::optional<std::string> bytes_of(std::string_view text) {
  static const std::array<std::int8_t, 256> values = [] {
    std::array<std::int8_t, 256> made{};
    made.fill(-1);
    for (std::size_t i = 0; i < kDigits.size(); ++i)
      made[static_cast<unsigned char>(kDigits[i])] = static_cast<std::int8_t>(i);
    return made;
  }();
  if (text.size() % 4 != 0) return std::nullopt;
  const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (std::size_t at = 0; at < text.size(); at += 4) {
    std::uint32_t word = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      const bool pad = at + i + padding >= text.size();
      const std::int8_t value = pad ? std::int8_t{0} : values[static_cast<unsigned char>(text[at + i])];
      if (value < 0) return std::nullopt;
      word = word << 6 | static_cast<std::uint32_t>(value);
    }
    for (const int shift : {16, 8, 0}) bytes += static_cast<char>(word >> shift & 0xFFu);
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

std::uint64_t next_hash(std::uint64_t hash, std::int32_t id) {
  return runtime::mixed(hash, static_cast<std::uint32_t>(id));
}

std::string words(const runtime::Routers& routers) {
  std::string blocks;
  for (const std::int64_t block : routers.blocks)
    blocks += (blocks.empty() ? "" : ",") + std::to_string(block);
  return std::to_string(routers.experts) + " experts, " + std::to_string(routers.taken) +
         " per token, in the blocks " + blocks;
}

bool is_row(const Json& row) {
  return row.is_object() && row.contains("ids") && row["ids"].is_array() && !row["ids"].empty() &&
         std::ranges::all_of(row["ids"], [](const Json& id) { return id.is_number_integer(); }) &&
         row.contains("experts") && row["experts"].is_string();
}

}  // namespace

std::string routing_head(const runtime::Routers& routers) {
  return Json{{"format", kFormat},
              {"version", kVersion},
              {"blocks", routers.blocks},
              {"experts", routers.experts},
              {"experts_per_token", routers.taken}}
      .dump();
}

std::string routing_line(std::span<const std::int32_t> ids, std::span<const std::uint16_t> experts) {
  std::string bytes;
  bytes.reserve(2 * experts.size());
  for (const std::uint16_t expert : experts)
    bytes += {static_cast<char>(expert & 0xFFu), static_cast<char>(expert >> 8)};
  return Json{{"ids", std::vector<std::int32_t>(ids.begin(), ids.end())}, {"experts", base64(bytes)}}.dump();
}

void RoutingFile::refuse(std::int64_t line, const std::string& found) const {
  throw Error({.what = "the file of experts cannot be used",
               .expected = line == 1 ? "the file of 'trainer generate --save-routing' for this model"
                                     : "the experts of a row: " + words(routers_),
               .found = found,
               .where = file_.path() + ":" + std::to_string(line) + "; configuration key 'moe_routing_file'",
               .fix = "write the file again with trainer generate --save-routing, or remove moe_routing_file",
               .code = ExitCode::usage});
}

RoutingFile::RoutingFile(const std::string& path, const runtime::Routers& routers)
    : file_(path), routers_(routers) {
  const std::string_view text = file_.text();
  if (routers.blocks.empty()) refuse(1, "a model without experts");
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    const Row row{.begin = begin, .size = line.size(), .number = ++number};
    begin = end + 1;
    Json json;
    try {
      json = parse_json(line, path);
    } catch (const Error&) {
      refuse(number, "a line that is not JSON");
    }
    if (number == 1) {
      if (!json.is_object() || json.value("format", Json()) != kFormat ||
          json.value("version", Json()) != kVersion)
        refuse(number, "another format");
      if (json.dump() != routing_head(routers))
        refuse(number, "the routers of another model: " + short_json(json));
      continue;
    }
    if (!is_row(json)) refuse(number, "a line without ids and experts");
    const std::size_t tokens = json["ids"].size(),
                      length = json["experts"].get_ref<const std::string&>().size();
    // The experts of all tokens, or the last token has none.
    const auto text_of = [&](std::size_t count) { return (2 * count * routers.each_token() + 2) / 3 * 4; };
    if (length != text_of(tokens) && length != text_of(tokens - 1))
      refuse(number, "experts of another number of tokens, blocks or experts per token");
    std::uint64_t hash = 0;
    for (const Json& id : json["ids"]) hash = next_hash(hash, id.get<std::int32_t>());
    Row& kept = rows_[hash] = row;
    kept.tokens = tokens;
  }
  if (number == 0) refuse(1, "an empty file");
}

const RoutingFile::Row* RoutingFile::find(std::span<const std::int32_t> ids) const {
  const Row* found = nullptr;
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    hash = next_hash(hash, ids[i]);
    if (i + 1 + static_cast<std::size_t>(kMostAfter) < ids.size()) continue;
    const auto row = rows_.find(hash);
    if (row != rows_.end() && row->second.tokens == i + 1) found = &row->second;
  }
  return found;
}

const RoutingFile::Row& RoutingFile::at(std::span<const std::int32_t> ids, std::int64_t row) const {
  if (const Row* const found = find(ids)) return *found;
  throw Error({.what = "row " + std::to_string(row) + " of the data has no experts in the file of experts",
               .expected = "a row of the file with the tokens of the row of the data, and at most " +
                           std::to_string(kMostAfter) + " tokens after them",
               .found = std::to_string(ids.size()) + " tokens, which begin with none of the " +
                        std::to_string(rows_.size()) + " rows of the file in this way",
               .where = file_.path() + "; configuration key 'moe_routing_file'",
               .fix =
                   "train the answers of the same call of trainer generate, with its tokenizer and template, "
                   "and a cutoff_len that cuts none; or remove moe_routing_file",
               .code = ExitCode::usage});
}

void RoutingFile::require(const data::Encoded& set) const {
  for (std::int64_t d = 0; d < set.documents(); ++d) {
    const auto begin = static_cast<std::size_t>(set.begins[static_cast<std::size_t>(d)]);
    const auto count = static_cast<std::size_t>(set.length(d));
    at(set.ids.span().subspan(begin, count), set.rows[static_cast<std::size_t>(d)]);
  }
}

void RoutingFile::take(const Row& row, std::span<const std::int32_t> ids, std::size_t first,
                       runtime::HostBatch& batch) const {
  const Json json = parse_json(file_.text().substr(row.begin, row.size), file_.path());
  if (!is_row(json)) refuse(row.number, "a line without ids and experts");
  for (std::size_t i = 0; i < row.tokens; ++i) {
    if (json["ids"][i].get<std::int32_t>() != ids[i]) refuse(row.number, "two rows with the same hash");
  }
  const std::optional<std::string> bytes = bytes_of(json["experts"].get_ref<const std::string&>());
  const std::size_t each = routers_.each_token(), taken = static_cast<std::size_t>(routers_.taken);
  if (!bytes || bytes->size() % (2 * each) != 0 || bytes->size() / (2 * each) > row.tokens)
    refuse(row.number, "damaged experts");
  const std::size_t all = batch.ids.size();
  for (std::size_t token = 0; token < bytes->size() / (2 * each); ++token) {
    for (std::size_t i = 0; i < each; ++i) {
      const auto* const pair = reinterpret_cast<const unsigned char*>(bytes->data()) + 2 * (token * each + i);
      const std::int32_t expert = pair[0] | pair[1] << 8;
      const auto of_token =
          batch.experts.begin() + static_cast<std::ptrdiff_t>((i / taken * all + first + token) * taken);
      const auto place = of_token + static_cast<std::ptrdiff_t>(i % taken);
      if (expert >= routers_.experts || std::find(of_token, place, expert) != place)
        refuse(row.number, "expert " + std::to_string(expert) + ", unknown or twice for a token");
      *place = expert;
    }
  }
}

void RoutingFile::add_to(runtime::HostBatch& batch) const {
  batch.experts.assign(batch.ids.size() * routers_.each_token(), -1);
  const std::span<const std::int32_t> ids = batch.ids;
  std::size_t document = 0;
  for (std::size_t begin = 0; begin < ids.size(); ++document) {
    // Positions begin again in each document, also if documents see each other.
    std::size_t end = begin + 1;
    while (end < ids.size() && batch.positions[end] != 0) ++end;
    const auto own = ids.subspan(begin, end - begin);
    take(at(own, batch.rows.at(document)), own, begin, batch);
    begin = end;
  }
}

}  // namespace octet::feed
