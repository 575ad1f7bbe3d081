// Translates axolotl's lists of data sets.
#include <algorithm>
#include <array>
#include <optional>

#include "dialects/axolotl.h"

namespace octet::config::axolotl {
namespace {

/// The list of data sets; its items are maps.
class Sets {
 public:
  Sets(const Location& at, const Target& target, bool trains) : at_(at), target_(target), trains_(trains) {
    paths_.kind = Node::Kind::list;
  }

  void take(const Node& node) {
    for (const Node& item : list_of(node).items) take_item(item);
    target_.settings.add(trains_ ? "dataset" : "eval_dataset", paths_, at_, target_.replace);
    add_split();
    if (!trains_ || texts_ == 0) return;
    const bool only_texts = texts_ == paths_.items.size();
    target_.settings.add("stage", scalar_node(only_texts ? "pt" : "sft"), at_, target_.replace);
  }

 private:
  static constexpr const char* kColumns = "name the columns in dataset_info.json, and the set in dataset";
  static constexpr const char* kSplits =
      "describe the sets in dataset_info.json, each with its \"split\", and name these entries in dataset";
  static constexpr const char* kSlices =
      "name only the split; max_samples takes the first rows of each set, val_set_size holds rows out";
  static constexpr const char* kThoughts = "write thoughts into the content, between <think> and </think>";
  static constexpr const char* kByRole = "whole answers are trained; train_on_inputs adds the rest";
  /// Keys of a set that are read here, or that have no effect here.
  static constexpr std::array kItem{"path",
                                    "type",
                                    "ds_type",
                                    "data_files",
                                    "split",
                                    "name",
                                    "field",
                                    "field_messages",
                                    "field_system",
                                    "field_tools",
                                    "field_chosen",
                                    "field_rejected",
                                    "message_property_mappings",
                                    "message_field_role",
                                    "message_field_content",
                                    "roles",
                                    "roles_to_train",
                                    "train_on_eos",
                                    "train_on_eot",
                                    "chat_template",
                                    "chat_template_jinja",
                                    "conversation",
                                    "preprocess_shards",
                                    "trust_remote_code"};
  /// Keys that are refused unless their value has no effect, and the advice.
  static constexpr std::array<std::pair<const char*, const char*>, 15> kRefused{
      {{"shards", "cut the file beforehand, or set max_samples"},
       {"shards_idx", "cut the file beforehand, or set max_samples"},
       {"revision", "fetch that revision, and write the path of its folder"},
       {"field_human", kColumns},
       {"field_model", kColumns},
       {"field_thinking", kThoughts},
       {"template_thinking_key", kThoughts},
       {"split_thinking", kThoughts},
       {"drop_system_message", "remove system messages from the file"},
       {"message_field_training", kByRole},
       {"message_field_training_detail", kByRole},
       {"input_format", kColumns},
       {"input_transform", "no foreign code is run; transform the file beforehand"},
       {"logprobs_field", "probabilities of a teacher are not trained on"},
       {"temperature", "probabilities of a teacher are not trained on"}}};

  [[noreturn]] void refuse(const Node& node, const std::string& key, const std::string& expected,
                           const std::string& fix) const {
    wrong(node, {at_.where, at_.key + "." + key}, expected, fix);
  }
  static bool asks(const Node& node) {
    return !node.is_null() && !(node.kind == Node::Kind::scalar && read_bool(node.text) == false);
  }
  // Requires that a key is null or one of these words.
  void only(const Node& item, const std::string& key, std::initializer_list<const char*> words,
            const std::string& fix) const {
    const Node* found = item.find(key);
    if (found == nullptr || found->is_null()) return;
    std::string expected;
    for (const char* word : words) {
      if (word_of(*found) == word) return;
      expected += (expected.empty() ? "" : ", ") + std::string(word);
    }
    refuse(*found, key, expected, fix);
  }

  void take_item(const Node& item) {
    if (item.kind != Node::Kind::map)
      refuse(item, "path", "a list of {path: FILE, type: chat_template}", "write it so");
    Strings known(kItem.begin(), kItem.end());
    for (const auto& [key, fix] : kRefused) {
      known.emplace_back(key);
      const Node* found = item.find(key);
      if (found != nullptr && asks(*found)) refuse(*found, key, "nothing", fix);
    }
    for (const auto& [key, value] : item.members) {
      if (std::ranges::find(known, key) == known.end()) unknown_key(key, at_.where + ": " + at_.key, known);
    }
    take_split(item);
    only(item, "name", {}, "describe the set in dataset_info.json with this name as its \"subset\"");
    only(item, "field", {"text"}, kColumns);
    only(item, "field_system", {"system"}, kColumns);
    only(item, "field_tools", {"tools"}, kColumns);
    only(item, "field_chosen", {"chosen"}, kColumns);
    only(item, "field_rejected", {"rejected"}, kColumns);
    only(item, "message_field_role", {"role", "from"}, kColumns);
    only(item, "message_field_content", {"content", "value"}, kColumns);
    only(item, "train_on_eos", {"turn"}, "the end of each answer is trained");
    only(item, "train_on_eot", {"turn"}, "the end of each answer is trained");
    take_mappings(item, kColumns);
    take_roles(item);
    take_type(item);
    take_path(item);
    const Node* messages = item.find("field_messages");
    if (messages != nullptr && !messages->is_null())
      target_.settings.add("messages_column", *messages, {at_.where, at_.key + ".field_messages"},
                           target_.replace);
    const Node* chat = item.find("chat_template");
    if (chat != nullptr && !chat->is_null())
      take_template(*chat, {at_.where, at_.key + ".chat_template"}, target_);
    const Node* jinja = item.find("chat_template_jinja");
    if (jinja != nullptr && !jinja->is_null())
      target_.settings.add("template", *jinja, {at_.where, at_.key + ".chat_template_jinja"},
                           target_.replace);
  }

  // Our key has one split for all sets, so all sets must name the same split.
  void take_split(const Node& item) {
    const Node* split = item.find("split");
    Node found = scalar_node("train");
    if (split != nullptr && !split->is_null()) found = *split;
    const std::string word = word_of(found);
    if (word.empty() || word.find_first_of("[]+%:") != std::string::npos)
      refuse(found, "split", "the name of a split, such as train", kSlices);
    if (split_ && word_of(*split_) != word) refuse(found, "split", "one split for all sets", kSplits);
    if (!split_) split_ = found;
    names_split_ |= split != nullptr && !split->is_null();
  }
  // If no set names a split, our key keeps its default.
  void add_split() const {
    if (!names_split_ || (trains_ && word_of(*split_) == "train")) return;
    const char* key = trains_ ? "dataset_train_split" : "dataset_test_split";
    target_.settings.add(key, *split_, {at_.where, at_.key + ".split"}, target_.replace);
  }

  void take_mappings(const Node& item, const std::string& fix) const {
    const Node* maps = item.find("message_property_mappings");
    if (maps == nullptr || maps->is_null()) return;
    if (maps->kind != Node::Kind::map) refuse(*maps, "message_property_mappings", "a map", fix);
    only(*maps, "role", {"role", "from"}, fix);
    only(*maps, "content", {"content", "value"}, fix);
  }

  void take_roles(const Node& item) const {
    if (item.find("roles") != nullptr)
      target_.sources.note("'" + at_.key +
                           ".roles' changes nothing here: the usual names of roles are known");
    const Node* trained = item.find("roles_to_train");
    if (trained == nullptr || trained->is_null()) return;
    for (const Node& role : list_of(*trained).items) {
      if (word_of(role) != "assistant" && word_of(role) != "gpt" && word_of(role) != "model")
        refuse(*trained, "roles_to_train", "assistant", "answers are trained; train_on_inputs adds the rest");
    }
  }

  void take_type(const Node& item) {
    const Node* type = item.find("type");
    if (type == nullptr || type->is_null()) return;
    if (type->kind == Node::Kind::map)
      refuse(*type, "type", "a name such as chat_template, alpaca or completion",
             "rows are recognised by their fields, and written by chat_template");
    const std::string word = word_of(*type);
    if (word.starts_with("completion") || word.starts_with("pretrain")) {
      ++texts_;
    } else if (!word.starts_with("chat_template") && !word.starts_with("sharegpt")) {
      target_.sources.note(
          "'" + at_.key + ".type: " + word +
          "' names a prompt of axolotl; here rows become conversations, which chat_template writes");
    }
  }

  // A path may be the name of a format; its files are then in data_files.
  void take_path(const Node& item) {
    const Node* path = item.find("path");
    const Node* files = item.find("data_files");
    if (path == nullptr || path->kind != Node::Kind::scalar)
      refuse(item, "path", "the path or the name of a data set", "write {path: FILE, type: chat_template}");
    const std::string word = path->text;
    const bool format = word == "json" || word == "csv" || word == "parquet" || word == "text";
    if (files == nullptr || files->is_null()) return paths_.items.push_back(*path);
    for (Node file : list_of(*files).items) {
      if (!format) file.text = word + "/" + file.text;
      paths_.items.push_back(file);
    }
  }

  const Location& at_;
  const Target& target_;
  bool trains_;
  Node paths_;
  std::optional<Node> split_;
  bool names_split_ = false;
  std::size_t texts_ = 0;
};

}  // namespace

void take_datasets(const Node& node, const Location& at, const Target& target) {
  Sets(at, target, true).take(node);
}

void take_test_datasets(const Node& node, const Location& at, const Target& target) {
  Sets(at, target, false).take(node);
}

}  // namespace octet::config::axolotl
