#include "octet/data/token_cache.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"

namespace octet::data {
namespace {

namespace fs = std::filesystem;

// Layout of a file: this line; a hash of the rest (32 digits); the recipe's length (eight bytes,
// little-endian); the recipe as JSON, padded to a multiple of eight bytes; the tokens. The number changes
// with the layout, and when the same recipe yields other tokens.
constexpr std::string_view kMagic = "octet tokens 03\n";
static_assert(kMagic.size() % 8 == 0);  // the tokens are read in place, so they must be aligned
constexpr std::size_t kHash = 32, kLength = 8, kMostRecipe = std::size_t{16} << 20;

std::string text_of(const Recipe& recipe) {
  Json list = Json::array();
  for (const auto& [name, value] : recipe) list.push_back({name, value});
  std::string text = list.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

// The parts of a file.
struct Layout {
  std::string_view hash, body, recipe, tokens;
};

std::optional<Layout> split_file(std::string_view bytes) {
  if (!bytes.starts_with(kMagic) || bytes.size() < kMagic.size() + kHash + kLength) return std::nullopt;
  Layout out;
  out.hash = bytes.substr(kMagic.size(), kHash);
  out.body = bytes.substr(kMagic.size() + kHash);
  std::uint64_t length = 0;
  std::memcpy(&length, out.body.data(), kLength);
  const std::string_view rest = out.body.substr(kLength);
  if (length > kMostRecipe || length > rest.size()) return std::nullopt;
  out.recipe = rest.substr(0, length);
  out.tokens = rest.substr(length);
  return out;
}

Recipe read_recipe(std::string_view text, const std::string& where) {
  Recipe out;
  for (const Json& pair : parse_json(text, where)) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) return {};
    out.emplace_back(pair[0].get<std::string>(), pair[1].get<std::string>());
  }
  return out;
}

std::string quoted(const std::string& text) {
  return "'" + (text.size() > 80 ? text.substr(0, 80) + "…" : text) + "'";
}

std::vector<std::string> differences(const Recipe& was, const Recipe& is) {
  const std::map<std::string, std::string> before(was.begin(), was.end()), now(is.begin(), is.end());
  std::vector<std::string> out;
  for (const auto& [name, value] : is) {
    const auto old = before.find(name);
    if (old == before.end()) {
      out.push_back(name + ": is " + quoted(value));
    } else if (old->second != value) {
      out.push_back(name + ": was " + quoted(old->second) + ", is " + quoted(value));
    }
  }
  for (const auto& [name, value] : was) {
    if (!now.contains(name)) out.push_back(name + ": was " + quoted(value));
  }
  return out;
}

}  // namespace

std::string file_state(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) {
    throw Error({.what = "a file cannot be inspected",
                 .found = std::strerror(errno),
                 .where = path,
                 .fix = "check the path and its permissions",
                 .code = exit_code_of(errno)});
  }
  std::string part = std::to_string(found.st_mtim.tv_nsec);
  part.insert(0, 9 - part.size(), '0');
  return "bytes " + std::to_string(found.st_size) + ", changed " + std::to_string(found.st_mtim.tv_sec) +
         "." + part;
}

std::string TokenCache::key(const Recipe& recipe) {
  return hash128_hex(std::string(kMagic) + text_of(recipe));
}

std::optional<Encoded> TokenCache::load(const Recipe& recipe, bool* damaged) const {
  if (damaged) *damaged = false;
  const std::string name = path(recipe);
  if (!path_exists(name)) return std::nullopt;
  try {
    const auto file = std::make_shared<const MappedFile>(name);
    const auto layout = split_file(file->text());
    if (layout && layout->recipe == text_of(recipe) && hash128_hex(layout->body) == layout->hash) {
      return Encoded::from_file(file, layout->tokens);
    }
  } catch (const Error&) {
    // Treated like a wrong hash: the rows are tokenised again.
  }
  if (damaged) *damaged = true;
  return std::nullopt;
}

void TokenCache::store(const Recipe& recipe, const Encoded& set) const {
  make_folders(folder_);
  const std::string text = text_of(recipe);
  const std::uint64_t length = text.size();
  const std::string head = std::string(reinterpret_cast<const char*>(&length), kLength) + text;
  std::string small;
  std::vector<std::string_view> parts = set.parts(small);
  parts.insert(parts.begin(), head);
  const std::string first = std::string(kMagic) + hash128_hex(parts);
  parts.insert(parts.begin(), first);
  write_file_atomically(path(recipe), parts);
}

std::vector<std::string> TokenCache::nearest_differences(const Recipe& recipe) const {
  constexpr int kMostFiles = 1000;
  std::vector<std::string> nearest;
  std::error_code error;
  int seen = 0;
  for (fs::directory_iterator at(folder_, error), end; !error && at != end && seen < kMostFiles;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with("tokens-") || !name.ends_with(".bin")) continue;
    ++seen;
    try {
      const MappedFile file(at->path().string());
      const auto layout = split_file(file.text());
      if (!layout) continue;
      auto found = differences(read_recipe(layout->recipe, at->path().string()), recipe);
      if (!found.empty() && (nearest.empty() || found.size() < nearest.size())) nearest = std::move(found);
    } catch (const Error&) {
      // Unreadable files are skipped.
    }
  }
  return nearest;
}

}  // namespace octet::data
