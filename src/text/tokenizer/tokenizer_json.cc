#include "tokenizer/tokenizer_json.h"
#include "tokenizer/component.h"

#include <set>
#include <unordered_set>

#include "octet/base/error.h"
#include "octet/base/json.h"

namespace octet::text {
namespace {

constexpr std::size_t kMostTokenizerLevels = 64;

/// Builds the document from the parser's events, without the vocabulary and the merges. A DOM of these would
/// be slow and large.
class Reader : public nlohmann::json_sax<Json> {
 public:
  Reader(TokenizerJson& out, const std::string& where) : out_(out), where_(where) {}

  bool null() override { return value(nullptr); }
  bool boolean(bool v) override { return value(v); }
  bool number_integer(number_integer_t v) override { return value(v); }
  bool number_unsigned(number_unsigned_t v) override {
    if (mode_ != Mode::vocab) return value(v);
    out_.vocab.emplace_back(std::move(piece_), v);
    return true;
  }
  bool number_float(number_float_t v, const string_t&) override { return value(v); }
  bool binary(binary_t&) override { return false; }

  bool string(string_t& v) override {
    if (mode_ == Mode::merges) {
      add_merge(v);
      return true;
    }
    if (mode_ == Mode::merge_pair) {
      if (pair_.size() == 2) broken_merge("more than two pieces");
      pair_.push_back(std::move(v));
      return true;
    }
    return value(std::move(v));
  }

  bool start_object(std::size_t) override {
    if (mode_ == Mode::document && path_is("vocab")) {
      mode_ = Mode::vocab;
      out_.has_vocab = true;
      return true;
    }
    return open(Json::object());
  }
  bool end_object() override {
    if (mode_ == Mode::vocab) {
      mode_ = Mode::document;
      return true;
    }
    return close();
  }
  bool key(string_t& v) override {
    if (mode_ == Mode::vocab) {
      if (!pieces_.insert(v).second) twice("piece", v);
      piece_ = std::move(v);
      return true;
    }
    if (!levels_.back().keys.insert(v).second) twice("key", v);
    levels_.back().key = std::move(v);
    return true;
  }
  bool start_array(std::size_t) override {
    if (mode_ == Mode::merges) {
      mode_ = Mode::merge_pair;
      pair_.clear();
      return true;
    }
    if (mode_ == Mode::document && path_is("merges")) {
      mode_ = Mode::merges;
      out_.has_merges = true;
      return true;
    }
    return open(Json::array());
  }
  bool end_array() override {
    if (mode_ == Mode::merge_pair) {
      if (pair_.size() != 2) broken_merge("fewer than two pieces");
      out_.merges.push_back({std::move(pair_[0]), std::move(pair_[1])});
      mode_ = Mode::merges;
      return true;
    }
    if (mode_ == Mode::merges) {
      mode_ = Mode::document;
      return true;
    }
    return close();
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& e) override {
    throw Error({.what = "not valid JSON",
                 .found = json_problem(e.what()),
                 .where = where_,
                 .fix = kBrokenTokenizer,
                 .code = ExitCode::usage});
  }

 private:
  enum class Mode { document, vocab, merges, merge_pair };
  struct Level {
    Json* json;
    std::string key;
    std::set<std::string> keys;
  };

  bool path_is(const char* key) const {
    return levels_.size() == 2 && levels_[0].key == "model" && levels_[1].json->is_object() &&
           levels_[1].key == key;
  }
  [[noreturn]] void fail(const std::string& what, const std::string& found) const {
    throw Error({.what = what,
                 .found = found.substr(0, 80),
                 .where = where_,
                 .fix = kBrokenTokenizer,
                 .code = ExitCode::usage});
  }
  [[noreturn]] void twice(const std::string& what, const std::string& name) const {
    fail("a " + what + " of the tokenizer occurs twice in one object", name);
  }
  [[noreturn]] void broken_merge(const std::string& found) const {
    fail("merge " + std::to_string(out_.merges.size()) + " of the tokenizer is not two pieces", found);
  }
  void add_merge(const std::string& text) {
    const std::size_t blank = text.find(' ');
    if (blank == std::string::npos || text.find(' ', blank + 1) != std::string::npos) broken_merge(text);
    out_.merges.push_back({text.substr(0, blank), text.substr(blank + 1)});
  }

  Json* put(Json v) {
    if (levels_.empty()) {
      out_.root = std::move(v);
      return &out_.root;
    }
    Json& parent = *levels_.back().json;
    if (parent.is_array()) {
      parent.push_back(std::move(v));
      return &parent.back();
    }
    return &(parent[levels_.back().key] = std::move(v));
  }
  bool value(Json v) {
    if (mode_ == Mode::vocab)
      fail("the id of piece '" + piece_.substr(0, 40) + "' is not a whole number from 0", v.dump());
    if (mode_ != Mode::document) broken_merge(v.is_string() ? v.get<std::string>() : v.type_name());
    put(std::move(v));
    return true;
  }
  bool open(Json container) {
    if (mode_ == Mode::vocab)
      fail("the id of piece '" + piece_.substr(0, 40) + "' is not a whole number from 0", "");
    if (mode_ != Mode::document) broken_merge("a nested value");
    if (levels_.size() >= kMostTokenizerLevels) {
      fail("the tokenizer's JSON is nested too deeply",
           "more than " + std::to_string(kMostTokenizerLevels) + " levels");
    }
    Json* at = put(std::move(container));
    levels_.push_back({at, "", {}});
    return true;
  }
  bool close() {
    levels_.pop_back();
    return true;
  }

  TokenizerJson& out_;
  const std::string& where_;
  Mode mode_ = Mode::document;
  std::vector<Level> levels_;  // pointers stay valid: an element is complete before its parent grows again
  std::string piece_;
  std::unordered_set<std::string> pieces_;
  std::vector<std::string> pair_;
};

/// Returns the position after the string that starts at `i`.
std::size_t string_end(std::string_view text, std::size_t i) {
  for (++i; i < text.size() && text[i] != '"'; ++i) {
    if (text[i] == '\\') ++i;
  }
  return i + 1;
}

}  // namespace

TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& where) {
  TokenizerJson out;
  Reader reader(out, where);
  Json::sax_parse(text.begin(), text.end(), &reader);
  if (!out.root.is_object()) {
    throw Error({.what = "the tokenizer file is not a JSON object",
                 .expected = "an object in braces",
                 .found = std::string("JSON of type ") + out.root.type_name(),
                 .where = where,
                 .fix = kBrokenTokenizer,
                 .code = ExitCode::usage});
  }
  return out;
}

std::string with_json_value(std::string_view text, std::string_view key, std::string_view value) {
  const std::string quoted = '"' + std::string(key) + '"';
  int depth = 0;
  bool is_key = true;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"') {
      const std::size_t end = string_end(text, i);
      if (depth == 1 && is_key && text.substr(i, end - i) == quoted) {
        const std::size_t colon = text.find(':', end);
        // The value runs to the next comma or brace of this level.
        std::size_t stop = colon + 1;
        for (int inner = 0; stop < text.size(); ++stop) {
          if (text[stop] == '"') {
            stop = string_end(text, stop) - 1;
          } else if (text[stop] == '{' || text[stop] == '[') {
            ++inner;
          } else if (inner == 0 && (text[stop] == ',' || text[stop] == '}')) {
            break;
          } else if (text[stop] == '}' || text[stop] == ']') {
            --inner;
          }
        }
        return std::string(text.substr(0, colon + 1)) + ' ' + std::string(value) +
               std::string(text.substr(stop));
      }
      i = end;
      continue;
    }
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (depth == 1 && c == ':') is_key = false;
    if (depth == 1 && (c == ',' || c == '{')) is_key = true;
    ++i;
  }
  const std::size_t brace = text.find('{') + 1;
  return std::string(text.substr(0, brace)) + quoted + ": " + std::string(value) + ", " +
         std::string(text.substr(brace));
}

}  // namespace octet::text
