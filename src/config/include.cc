// Expands `include`: a configuration that is based on other files.
#include <algorithm>
#include <filesystem>

#include "octet/base/files.h"
#include "settings.h"

namespace octet::config {
namespace {

constexpr std::size_t kMostIncluded = 16;

void name_file(Node& node, const std::string& file) {
  if (node.file.empty()) node.file = file;
  for (Node& item : node.items) name_file(item, file);
  for (auto& [key, value] : node.members) name_file(value, file);
}

/// Adds the keys of `base` that `over` does not have. Maps on both sides are merged.
void merge_below(Node& over, const Node& base) {
  for (const auto& [key, value] : base.members) {
    Node* own = nullptr;
    for (auto& [name, node] : over.members) {
      if (name == key) own = &node;
    }
    if (own == nullptr) {
      over.members.emplace_back(key, value);
    } else if (own->kind == Node::Kind::map && value.kind == Node::Kind::map) {
      merge_below(*own, value);
    }
  }
}

std::string found_beside(const std::string& path, const std::string& including) {
  const std::filesystem::path beside = std::filesystem::path(including).parent_path() / path;
  return path_exists(beside.string()) ? beside.string() : path;
}

void expand(Node& tree, const std::string& name, Strings& open) {
  const Node* found = tree.find("include");
  if (found == nullptr) return;
  const Node include = *found;
  std::erase_if(tree.members, [](const auto& member) { return member.first == "include"; });
  std::vector<Node> files = include.kind == Node::Kind::list ? include.items : std::vector{include};
  const std::string where = place(name, include.line);
  // The last of several files wins.
  for (auto file = files.rbegin(); file != files.rend(); ++file) {
    if (file->is_null()) continue;
    if (file->kind != Node::Kind::scalar) {
      complain({.what = "value of 'include' cannot be used",
                .expected = "a file, or a list of files",
                .found = shown(*file),
                .where = where,
                .fix = "write include: other.yaml, or include: [one.yaml, other.yaml]"});
    }
    const std::string path = found_beside(file->text, name);
    if (!path_exists(path)) {
      complain({.what = "the included configuration does not exist",
                .expected = "a file, relative to this one or to the working folder",
                .found = file->text,
                .where = where,
                .fix = "check the path, or remove the line"});
    }
    const std::string real = std::filesystem::weakly_canonical(path).string();
    if (std::find(open.begin(), open.end(), real) != open.end() || open.size() > kMostIncluded) {
      complain({.what = "configurations include each other in a cycle",
                .found = path,
                .where = where,
                .fix = "remove one of these lines 'include'"});
    }
    open.push_back(real);
    Node base = read_tree(path);
    expand(base, path, open);
    open.pop_back();
    name_file(base, path);
    merge_below(tree, base);
  }
}

}  // namespace

void expand_includes(Node& tree, const std::string& name) {
  Strings open;
  if (!name.empty() && path_exists(name)) open.push_back(std::filesystem::weakly_canonical(name).string());
  expand(tree, name, open);
}

}  // namespace octet::config
