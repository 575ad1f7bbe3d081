#include "path_pattern.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "octet/base/error.h"
#include "octet/base/files.h"

namespace octet::data {
namespace {

namespace fs = std::filesystem;

constexpr int kMostFolders = 32;  // depth of nested folders

// Whether `c` is in a set of characters: [abc], [0-9], [!a]. `end` is the position after the bracket.
bool in_brackets(std::string_view pattern, std::size_t begin, std::size_t end, char c) {
  std::string_view set = pattern.substr(begin + 1, end - begin - 2);
  const bool others = set.starts_with('!') || set.starts_with('^');
  if (others) set.remove_prefix(1);
  bool found = false;
  for (std::size_t i = 0; i < set.size(); ++i) {
    if (i + 2 < set.size() && set[i + 1] == '-') {
      found |= set[i] <= c && c <= set[i + 2];
      i += 2;
    } else {
      found |= set[i] == c;
    }
  }
  return found != others && c != '/';
}

// Returns the position after the bracket that begins at `begin`; `begin` itself if the bracket has no end.
std::size_t end_of_brackets(std::string_view pattern, std::size_t begin) {
  std::size_t at = begin + 1;
  if (at < pattern.size() && (pattern[at] == '!' || pattern[at] == '^')) ++at;
  const std::size_t end = at < pattern.size() ? pattern.find(']', at + 1) : std::string_view::npos;
  return end == std::string_view::npos ? begin : end + 1;
}

void add_files(const fs::path& folder, const std::string& below, int depth, std::set<std::string>& visited,
               std::vector<std::string>& files) {
  std::error_code code, none;
  // A link to a folder above would list its files again.
  const std::string real = fs::canonical(folder, none).string();
  if (depth > kMostFolders || !visited.insert(real).second) return;
  for (fs::directory_iterator at(folder, code), end; !code && at != end; at.increment(code)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with('.')) continue;
    if (at->is_directory(none)) {
      if (!name.starts_with("__")) add_files(at->path(), below + name + "/", depth + 1, visited, files);
    } else if (at->is_regular_file(none)) {
      files.push_back(below + name);
    }
  }
  if (code)
    throw Error({.what = "a folder of data cannot be read",
                 .found = code.message(),
                 .where = folder.string(),
                 .fix = "check the permissions of the folder",
                 .code = exit_code_of(code.value())});
}

}  // namespace

bool matches_path(std::string_view pattern, std::string_view path) {
  // matched[i]: the pattern read so far matches the first i characters of the path.
  std::vector<char> matched(path.size() + 1, 0), next(path.size() + 1, 0);
  matched[0] = 1;
  for (std::size_t p = 0; p < pattern.size();) {
    std::ranges::fill(next, 0);
    const bool folder_begins = p == 0 || pattern[p - 1] == '/';
    if (folder_begins && pattern.substr(p).starts_with("**/")) {
      for (std::size_t i = 0, open = 0; i <= path.size(); ++i) {
        if (matched[i]) open = 1, next[i] = 1;
        if (open && i > 0 && path[i - 1] == '/') next[i] = 1;
      }
      p += 3;
    } else if (pattern[p] == '*') {
      const bool across = pattern.substr(p).starts_with("**");
      for (std::size_t i = 0, open = 0; i <= path.size(); ++i) {
        if (i > 0 && path[i - 1] == '/' && !across) open = 0;
        if (matched[i]) open = 1;
        next[i] = open ? 1 : 0;
      }
      p += across ? 2 : 1;
    } else {
      const std::size_t end = pattern[p] == '[' ? end_of_brackets(pattern, p) : p;
      for (std::size_t i = 0; i < path.size(); ++i) {
        const bool one = end > p             ? in_brackets(pattern, p, end, path[i])
                         : pattern[p] == '?' ? path[i] != '/'
                                             : path[i] == pattern[p];
        if (matched[i] && one) next[i + 1] = 1;
      }
      p = end > p ? end : p + 1;
    }
    matched.swap(next);
  }
  return matched.back() != 0;
}

std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> files;
  std::set<std::string> visited;
  add_files(folder, "", 0, visited, files);
  std::ranges::sort(files);
  return files;
}

}  // namespace octet::data
