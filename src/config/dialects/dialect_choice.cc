// Chooses the dialect of a configuration, once, by all keys of the file and of the command line.
#include <algorithm>
#include <functional>
#include <iterator>

#include "dialects/dialects.h"
#include "octet/base/strings.h"

namespace octet::config {
namespace {

/// A key of the configuration that belongs to one or more dialects, or is in one of their sections.
struct Sign {
  std::string key, where;
  std::vector<const Dialect*> owners;
};

/// The evidence for a dialect: its first key that no other dialect has, and the number of such keys.
struct Claim {
  const Dialect* dialect;
  const Sign* first;
  int keys = 0;
};

// Finds a `_component_`, which marks torchtune's files: they name Python objects for the tokenizer and the
// model.
const Node* component_in(const Node& tree) {
  for (const auto& [key, value] : tree.members) {
    if (key == "_component_") return &value;
    if (const Node* found = component_in(value)) return found;
  }
  return nullptr;
}

Strings names_of(const Dialect& dialect) {
  Strings names;
  for (const Entry& entry : dialect.keys) names.emplace_back(entry.path);
  return names;
}

std::string with_commas_between(const std::string& keys) {
  std::string text;
  for (const auto& key : split(keys, ' ')) text += (text.empty() ? "" : ", ") + key;
  return text;
}

// Returns the names that a key of another trainer has in `dialect` (if any) and in Octet.
std::string names_for(const Entry& entry, const Dialect* dialect) {
  const Entry* own = dialect == nullptr ? nullptr : dialect->find_for(entry.key);
  const std::string ours = with_commas_between(entry.key);
  return own == nullptr ? ours : std::string(own->path) + " (" + dialect->name + ") or " + ours;
}

// Returns advice on how to replace the key `word` in a configuration of `dialect`. Null: no dialect.
std::string advice_to_replace(const Entry* entry, const std::string& word, const Dialect* dialect) {
  if (entry == nullptr) return "remove " + word + "; 'trainer train --help' lists the keys of Octet";
  if (!becomes_ours(*entry)) return "remove " + word + " (" + entry->key + ")";
  return "write " + names_for(*entry, dialect) + " in place of " + word;
}

class Choice {
 public:
  Choice(const Node& tree, const std::string& name, const Strings& overrides) : name_(name) {
    for (const Dialect* dialect : kDialects) {
      if (dialect->mark == nullptr || is_marked(*dialect, tree, overrides)) candidates_.push_back(dialect);
    }
    read(tree, "", {});
    for (const std::string& path : overrides) read_argument(path);
  }

  const Dialect* decide(Sources& sources) const {
    const std::vector<Claim> all = claims();
    if (all.size() > 1) refuse_mixture(all);
    if (all.size() == 1) {
      sources.note("the configuration has keys of " + std::string(all[0].dialect->name) + ", such as '" +
                   all[0].first->key + "' (" + all[0].first->where + ")");
      return all[0].dialect;
    }
    if (const Dialect* meant = meant_by_unknown()) return meant;
    return shared(sources);
  }

 private:
  static bool is_marked(const Dialect& dialect, const Node& tree, const Strings& overrides) {
    const bool named =
        tree.find(dialect.mark) != nullptr || std::ranges::find(overrides, dialect.mark) != overrides.end();
    return named && tree.find(dialect.not_beside) == nullptr;
  }

  template <class Has>
  std::vector<const Dialect*> owners(const Has& has) const {
    std::vector<const Dialect*> found;
    std::ranges::copy_if(candidates_, std::back_inserter(found), has);
    return found;
  }
  std::vector<const Dialect*> owners_of_section(const std::string& path) const {
    return owners([&](const Dialect* dialect) { return dialect->is_section(path); });
  }

  // Adds the keys of `node`, in the section `above`, to signs_ or unknown_. `around`: the dialects that have
  // this section.
  void read(const Node& node, const std::string& above, const std::vector<const Dialect*>& around) {
    for (const auto& [key, value] : node.members) {
      const std::string full = above.empty() ? key : above + "." + key;
      const std::string where = place(value.file.empty() ? name_ : value.file, value.line);
      const bool map = value.kind == Node::Kind::map;
      const auto sections = owners_of_section(full);
      if (above.empty() && find_field(key) != nullptr && !(map && !sections.empty())) continue;
      const auto keys = owners([&](const Dialect* dialect) { return dialect->find(full) != nullptr; });
      if (!keys.empty()) {
        signs_.push_back({.key = full, .where = where, .owners = keys});
      } else if (!sections.empty() && map) {
        read(value, full, sections);
      } else if (!sections.empty() && value.is_null()) {
        signs_.push_back({.key = full, .where = where, .owners = sections});
      } else {
        read_unknown(full, where, around);
      }
    }
  }

  void read_argument(const std::string& path) {
    if (find_field(path) != nullptr || path == "include") return;
    const auto keys = owners([&](const Dialect* dialect) { return dialect->find_or_above(path) != nullptr; });
    if (!keys.empty()) return signs_.push_back({.key = path, .where = "command line", .owners = keys});
    std::vector<const Dialect*> around;
    for (std::size_t dot = path.rfind('.'); around.empty() && dot != std::string::npos && dot > 0;
         dot = path.rfind('.', dot - 1))
      around = owners_of_section(path.substr(0, dot));
    // "lr_scheduler_kwargs.min_lr" is an entry of our map.
    if (around.empty() && find_field(path.substr(0, path.find('.'))) != nullptr) return;
    read_unknown(path, "command line", around);
  }

  // A mistyped key in a section of a single trainer belongs to that trainer.
  void read_unknown(const std::string& path, const std::string& where,
                    const std::vector<const Dialect*>& around) {
    if (around.size() == 1) {
      signs_.push_back({.key = path, .where = where, .owners = around});
    } else {
      unknown_.push_back(path);
    }
  }

  std::vector<Claim> claims() const {
    std::vector<Claim> all;
    for (const Sign& sign : signs_) {
      if (sign.owners.size() != 1) continue;
      auto claim = std::ranges::find(all, sign.owners[0], &Claim::dialect);
      if (claim == all.end()) claim = all.insert(all.end(), {.dialect = sign.owners[0], .first = &sign});
      ++claim->keys;
    }
    return all;
  }

  // Throws Error for keys of several dialects. Its advice replaces the keys of the dialect with the fewest
  // keys. If two dialects have equally few, it replaces the keys of the later dialect.
  [[noreturn]] static void refuse_mixture(std::vector<Claim> all) {
    std::ranges::stable_sort(all, std::greater{}, &Claim::keys);
    const Claim &most = all.front(), &fewest = all.back();
    const auto text_of = [](const Claim& claim) {
      return claim.first->key + " (" + claim.first->where + ") is " + claim.dialect->name + "'s";
    };
    const std::string& key = fewest.first->key;
    const Entry* entry = fewest.dialect->find_or_above(key);
    if (entry == nullptr) entry = fewest.dialect->find(nearest_name(key, names_of(*fewest.dialect)));
    complain({.what = std::string("keys of ") + most.dialect->name + " and of " + fewest.dialect->name +
                      " are in one configuration",
              .expected = "keys of one trainer, and keys of Octet",
              .found = text_of(most) + ", " + text_of(fewest),
              .where = fewest.first->where,
              .fix = advice_to_replace(entry, key, most.dialect)});
  }

  // Returns the dialect with a key that is similar to an unknown key; null if there is none. The first such
  // key decides.
  const Dialect* meant_by_unknown() const {
    Strings names = field_names();
    for (const Dialect* dialect : candidates_) {
      for (std::string& path : names_of(*dialect)) names.push_back(std::move(path));
    }
    for (const std::string& path : unknown_) {
      const std::string near = nearest_name(path, names);
      if (near.empty() || find_field(near) != nullptr) continue;
      const auto owner = std::ranges::find_if(
          candidates_, [&](const Dialect* dialect) { return dialect->find(near) != nullptr; });
      if (owner != candidates_.end()) return *owner;
    }
    return nullptr;
  }

  // Returns a dialect that has all keys; null if there is none. A key of several dialects has the same
  // meaning in each of them, so any of these dialects can be chosen.
  const Dialect* shared(Sources& sources) const {
    for (const Dialect* dialect : candidates_) {
      const bool fits = !signs_.empty() && std::ranges::all_of(signs_, [&](const Sign& sign) {
        return std::ranges::find(sign.owners, dialect) != sign.owners.end();
      });
      if (!fits) continue;
      for (const Sign& sign : signs_) {
        if (dialect->find_or_above(sign.key) == nullptr) continue;
        std::string trainers;
        for (const Dialect* owner : sign.owners)
          trainers += (trainers.empty() ? "" : " and of ") + std::string(owner->name);
        sources.note("'" + sign.key + "' is a key of " + trainers + ", and means the same in both");
      }
      return dialect;
    }
    return nullptr;
  }

  const std::string& name_;
  std::vector<const Dialect*> candidates_;
  std::vector<Sign> signs_;
  Strings unknown_;
};

// Returns the dialect's full key for a word without its section. If the dialect allows such words, also
// returns the key nearest to a mistyped word. Returns "" if there is none or a key of Octet is nearer.
std::string near_bare_key(const Dialect& dialect, const std::string& word) {
  if (std::string full = dialect.in_section(word); !full.empty()) return full;
  if (!dialect.bare_keys || !guessed_key(word).empty()) return "";
  Strings names = field_names();
  for (const Entry& entry : dialect.keys) {
    const std::string_view last = entry.path.substr(entry.path.rfind('.') + 1);
    if (last.size() < entry.path.size()) names.emplace_back(last);
  }
  return dialect.in_section(nearest_name(word, names));
}

// Returns the key of the dialect with the last word of `path` in another section: model.max_seq_len for
// train.max_seq_len. Returns "" if there is none.
std::string in_other_section(const Dialect& dialect, const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : dialect.in_section(path.substr(dot + 1));
}

[[noreturn]] void refuse_key(const std::string& path, const std::string& where, const std::string& fix) {
  complain({.what = "unknown key '" + path + "'", .where = where, .fix = fix});
}

}  // namespace

void choose_dialect(const Node& tree, const std::string& name, const Strings& overrides, Sources& sources) {
  if (const Node* component = component_in(tree)) {
    complain(
        {.what = "this is a configuration of torchtune, and its keys are not translated",
         .expected = "keys of trainer train --help, or a file of LLaMA-Factory, axolotl, SFT-Play or verl",
         .found = "_component_: " + shown(*component),
         .where = place(name, component->line),
         .fix = "write model_name_or_path (checkpointer.checkpoint_dir), dataset, cutoff_len "
                "(tokenizer.max_seq_len), per_device_train_batch_size (batch_size), num_train_epochs "
                "(epochs), learning_rate (optimizer.lr) and output_dir"});
  }
  sources.dialect = Choice(tree, name, overrides).decide(sources);
}

void unknown_in(const Dialect* dialect, const std::string& path, const std::string& where) {
  // A short word such as lr is a key of several trainers. If all other keys are keys of Octet, the user
  // guessed the word.
  if (where == "command line" && dialect == nullptr && !guessed_key(path).empty())
    unknown_key(path, where, field_names());
  // Keys of the configuration's own dialect are suggested before keys of other dialects.
  for (const auto find : {near_bare_key, in_other_section}) {
    const std::string full = dialect == nullptr ? "" : find(*dialect, path);
    if (!full.empty()) refuse_key(path, where, "did you mean '" + full + "'?");
  }
  for (const Dialect* other : kDialects) {
    const Entry* entry = other == dialect ? nullptr : other->find_or_above(path);
    if (entry == nullptr) continue;
    std::string found = std::string("a key of ") + other->name, fix = advice_to_replace(entry, "it", dialect);
    if (other->mark != nullptr && path != other->mark) {
      found += std::string("; its configurations have the key ") + other->mark;
    } else if (other->mark != nullptr) {
      found += std::string("; its configurations have no ") + other->not_beside + " together with it";
      fix = "keep one of the two";
    }
    complain({.what = "unknown key '" + path + "'", .found = found, .where = where, .fix = fix});
  }
  Strings names = field_names();
  if (dialect != nullptr) {
    for (std::string& name : names_of(*dialect)) names.push_back(std::move(name));
  }
  // For a common word in a section, such as train.lr, the advice is the same as for the word alone.
  const std::string word = path.substr(path.rfind('.') + 1);
  const bool usual = !guessed_key(word).empty() && nearest_name(path, names).empty();
  if (!usual || dialect == nullptr) unknown_key(path, where, names);
  std::string fix = guessed_key(word);
  if (where != "command line") fix = with_colons(std::move(fix));
  refuse_key(path, where, fix);
}

}  // namespace octet::config
