#include "octet/text/bpe_trainer.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "tokenizer/component.h"
#include "tokenizer/pre_tokenizer.h"

namespace octet::text {
namespace {

struct Word {
  std::vector<std::int32_t> symbols;
  std::int64_t count = 0;
};

using Pair = std::uint64_t;
Pair pair_of(std::int32_t left, std::int32_t right) {
  return static_cast<Pair>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
}

/// Counts pairs over all words and keeps the counts right while pairs are merged.
class Counts {
 public:
  explicit Counts(std::vector<Word> words) : words_(std::move(words)) {
    for (std::size_t w = 0; w < words_.size(); ++w) {
      const auto& symbols = words_[w].symbols;
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i) change(pair_of(symbols[i], symbols[i + 1]), w, 1);
    }
    for (const auto& [pair, entry] : pairs_) queue_.push({entry.count, pair});
  }

  /// Sets `pair` to the most frequent pair. Ties go to the pair with the lowest ids. Returns false if its
  /// count is below `least`.
  bool best(std::int64_t least, Pair& pair) {
    while (!queue_.empty()) {
      const Queued top = queue_.top();
      queue_.pop();
      const std::int64_t now = pairs_[top.pair].count;
      if (now == top.count) {
        pair = top.pair;
        return now >= least;
      }
      if (now > 0 && now < top.count) queue_.push({now, top.pair});  // its count fell after it was queued
    }
    return false;
  }

  void merge(Pair pair, std::int32_t joined) {
    const auto left = static_cast<std::int32_t>(pair >> 32),
               right = static_cast<std::int32_t>(pair & 0xFFFFFFFFu);
    const std::vector<std::size_t> places(pairs_[pair].words.begin(), pairs_[pair].words.end());
    touched_.clear();
    for (const std::size_t w : places) merge_word(w, left, right, joined);
    pairs_.erase(pair);
    for (const Pair changed : touched_) {
      const auto it = pairs_.find(changed);
      if (it != pairs_.end() && it->second.count > 0) queue_.push({it->second.count, changed});
    }
  }

 private:
  struct Entry {
    std::int64_t count = 0;
    std::unordered_set<std::size_t>
        words;  ///< indices of words that contain the pair, or contained it earlier
  };
  struct Queued {
    std::int64_t count;
    Pair pair;
    bool operator<(const Queued& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  void change(Pair pair, std::size_t word, int sign) {
    Entry& entry = pairs_[pair];
    entry.count += sign * words_[word].count;
    if (sign > 0) entry.words.insert(word);
  }

  // Merges a pair in one word. All pairs of the word are counted again, because words are short.
  void merge_word(std::size_t w, std::int32_t left, std::int32_t right, std::int32_t joined) {
    auto& symbols = words_[w].symbols;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) change(pair_of(symbols[i], symbols[i + 1]), w, -1);
    std::size_t out = 0;
    for (std::size_t i = 0; i < symbols.size(); ++i) {
      if (i + 1 < symbols.size() && symbols[i] == left && symbols[i + 1] == right) {
        symbols[out++] = joined;
        ++i;
      } else {
        symbols[out++] = symbols[i];
      }
    }
    symbols.resize(out);
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const Pair pair = pair_of(symbols[i], symbols[i + 1]);
      change(pair, w, 1);
      if (symbols[i] == joined || symbols[i + 1] == joined) touched_.push_back(pair);
    }
  }

  std::vector<Word> words_;
  std::unordered_map<Pair, Entry> pairs_;
  std::priority_queue<Queued> queue_;
  std::vector<Pair> touched_;
};

void check_options(const BpeTraining& options) {
  const auto refuse = [](const std::string& what, const std::string& found) {
    throw Error({.what = what,
                 .found = found,
                 .where = "the training of a tokenizer",
                 .fix = "give other special tokens",
                 .code = ExitCode::usage});
  };
  std::unordered_set<std::string> seen;
  for (const auto& token : options.special_tokens) {
    if (token.empty() || !is_utf8(token)) refuse("a special token is empty or not UTF-8", "'" + token + "'");
    if (!seen.insert(token).second) refuse("a special token occurs twice", "'" + token + "'");
  }
  for (const std::string* role : {&options.bos_token, &options.eos_token, &options.pad_token}) {
    if (!role->empty() && !seen.contains(*role))
      refuse("a role names a text that is not a special token", "'" + *role + "'");
  }
  const auto least = static_cast<std::int64_t>(256 + options.special_tokens.size());
  if (options.vocab_size < least) {
    throw Error({.what = "a vocabulary is too small",
                 .expected = "at least " + std::to_string(least) + ": the bytes and the special tokens",
                 .found = std::to_string(options.vocab_size),
                 .where = "vocab_size",
                 .fix = "give at least this number",
                 .code = ExitCode::usage});
  }
}

Json pre_tokenizer_json(const std::string& pattern) {
  const auto byte_level = [](bool use_regex) {
    return Json{{"type", "ByteLevel"},
                {"add_prefix_space", false},
                {"trim_offsets", false},
                {"use_regex", use_regex}};
  };
  if (pattern.empty()) return byte_level(true);
  const Json split = {
      {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level(false)})}};
}

/// Returns the words of all texts with their counts, sorted by their bytes.
std::vector<Word> count_words(std::span<const std::string> texts, const Json& pre_tokenizer) {
  const PreTokenizer cutter = make_pre_tokenizer(pre_tokenizer, "the training of a tokenizer");
  std::unordered_map<std::string, std::int64_t> counts;
  std::vector<TextView> pieces;
  std::deque<AlignedText> made;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (!is_utf8(texts[i]) || texts[i].size() > INT32_MAX) {
      throw Error({.what = "a tokenizer cannot be trained on a text",
                   .expected = "UTF-8 of less than 2 GiB",
                   .where = "text " + std::to_string(i),
                   .fix = "convert the text to UTF-8, or cut it into several",
                   .code = ExitCode::usage});
    }
    pieces.assign(1, {texts[i]});
    for (const auto& step : cutter.steps) step->apply(pieces, made);
    for (const auto& piece : pieces) {
      if (!piece.text.empty()) ++counts[std::string(piece.text)];
    }
  }
  const std::map<std::string, std::int64_t> sorted(counts.begin(), counts.end());
  std::vector<Word> out;
  out.reserve(sorted.size());
  for (const auto& [text, count] : sorted) {
    Word word{.count = count};
    for (const char c : text) word.symbols.push_back(static_cast<unsigned char>(c));
    out.push_back(std::move(word));
  }
  return out;
}

Json added_token_json(const std::string& content, int id) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

}  // namespace

int train_byte_bpe(std::span<const std::string> texts, const BpeTraining& options,
                   const std::string& folder) {
  check_options(options);
  const Json pre_tokenizer = pre_tokenizer_json(options.pattern);
  Counts counts(count_words(texts, pre_tokenizer));
  std::vector<std::string> bytes;  // by symbol
  for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
  std::unordered_set<std::string> known(bytes.begin(), bytes.end());
  Json merges = Json::array();
  const int most = options.vocab_size - static_cast<int>(options.special_tokens.size());
  Pair pair = 0;
  while (static_cast<int>(bytes.size()) < most && counts.best(std::max(options.min_count, 1), pair)) {
    const auto left = static_cast<std::size_t>(pair >> 32),
               right = static_cast<std::size_t>(pair & 0xFFFFFFFFu);
    std::string joined = bytes[left] + bytes[right];
    // A special token must not also be a piece, because it would then have two ids.
    const auto& specials = options.special_tokens;
    if (std::find(specials.begin(), specials.end(), piece_of_bytes(joined)) != specials.end()) continue;
    merges.push_back(Json::array({piece_of_bytes(bytes[left]), piece_of_bytes(bytes[right])}));
    std::int32_t symbol;
    if (known.insert(joined).second) {
      symbol = static_cast<std::int32_t>(bytes.size());
      bytes.push_back(std::move(joined));
    } else {  // this merge yields an existing piece
      symbol = static_cast<std::int32_t>(std::find(bytes.begin(), bytes.end(), joined) - bytes.begin());
    }
    counts.merge(pair, symbol);
  }

  std::string vocab = "{";
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    vocab += (i > 0 ? ", " : "") + Json(piece_of_bytes(bytes[i])).dump() + ": " + std::to_string(i);
  }
  vocab += "}";
  Json added = Json::array();
  Json decoder_entries = Json::object();
  int next = static_cast<int>(bytes.size());
  for (const auto& token : options.special_tokens) {
    const Json one = added_token_json(token, next);
    added.push_back(one);
    Json entry = one;
    entry.erase("id");
    decoder_entries[std::to_string(next++)] = std::move(entry);
  }
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  const auto field = [](const char* key, const Json& value) {
    return "  \"" + std::string(key) + "\": " + value.dump() + ",\n";
  };
  const std::string text =
      "{\n" + field("version", "1.0") + field("truncation", nullptr) + field("padding", nullptr) +
      field("added_tokens", added) + field("normalizer", nullptr) + field("pre_tokenizer", pre_tokenizer) +
      field("post_processor", byte_level) + field("decoder", byte_level) +
      "  \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
      "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": false, "
      "\"byte_fallback\": false, \"ignore_merges\": false,\n    \"vocab\": " +
      vocab + ",\n    \"merges\": " + merges.dump() + "}\n}\n";
  Json config = {{"added_tokens_decoder", decoder_entries},
                 {"add_prefix_space", false},
                 {"clean_up_tokenization_spaces", false},
                 {"model_max_length", options.max_length},
                 {"tokenizer_class", "PreTrainedTokenizerFast"}};
  if (!options.bos_token.empty()) config["bos_token"] = options.bos_token;
  if (!options.eos_token.empty()) config["eos_token"] = options.eos_token;
  if (!options.pad_token.empty()) config["pad_token"] = options.pad_token;
  Json others = Json::array();
  for (const auto& token : options.special_tokens) {
    if (token != options.bos_token && token != options.eos_token && token != options.pad_token)
      others.push_back(token);
  }
  if (!others.empty()) config["additional_special_tokens"] = others;
  make_folders(folder);
  write_file_atomically(folder + "/tokenizer.json", text);
  write_file_atomically(folder + "/tokenizer_config.json", config.dump(2) + "\n");
  return next;
}

}  // namespace octet::text
