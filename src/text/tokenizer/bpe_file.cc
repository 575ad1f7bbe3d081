#include <algorithm>
#include <set>
#include <unordered_set>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "tokenizer/bpe.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/component.h"
#include "unicode/utf8.h"

namespace octet::text {
namespace {

/// Highest id that is accepted: tables by id are allocated up to it.
constexpr std::int64_t kMaxId = (std::int64_t{1} << 26) - 1;

}  // namespace

Bpe::Bpe(const TokenizerJson& file, bool byte_level, const std::string& where) : byte_level_(byte_level) {
  const Json& model = component_field(file.root, "model", where);
  if (!model.is_object())
    broken_tokenizer("the tokenizer's model is not an object", model.type_name(), where);
  // Files of old versions have no type. A Unigram file of that age has a list as vocab.
  const std::string type = json_string(model, "type", "BPE", where);
  if (type != "BPE") unknown_component(type, "BPE", where + ".model");
  if (json_number(model, "dropout", 0.0, where) != 0.0) {
    broken_tokenizer("the tokenizer drops merges at random, which cannot be reproduced", "dropout", where);
  }
  byte_fallback_ = json_bool(model, "byte_fallback", false, where);
  ignore_merges_ = json_bool(model, "ignore_merges", false, where);
  fuse_unk_ = json_bool(model, "fuse_unk", false, where);
  prefix_ = json_string(model, "continuing_subword_prefix", "", where);
  suffix_ = json_string(model, "end_of_word_suffix", "", where);
  if (byte_level && !(prefix_.empty() && suffix_.empty())) {
    broken_tokenizer("a byte-level tokenizer with subword affixes is not supported", prefix_ + " " + suffix_,
                     where);
  }
  read_vocab(file, where + ".vocab");
  const std::string unknown = json_string(model, "unk_token", "", where);
  if (!unknown.empty()) {
    unk_ = find(unknown);
    if (unk_ < 0) broken_tokenizer("the vocabulary lacks the unknown token", unknown, where);
    if (byte_level) {
      // Every byte needs a piece, so that nothing is unknown. The reference writes unk for a byte without a
      // piece.
      for (const TokenId id : byte_ids_) {
        if (id < 0)
          broken_tokenizer("a byte-level vocabulary with an unknown token lacks single bytes", unknown,
                           where);
      }
    }
  }
  read_merges(file, where + ".merges");
}

void Bpe::read_vocab(const TokenizerJson& file, const std::string& where) {
  if (!file.has_vocab) broken_tokenizer("the tokenizer's vocabulary is missing or not an object", "", where);
  ids_.reserve(file.vocab.size());
  std::unordered_set<TokenId> taken;
  taken.reserve(file.vocab.size());
  for (const auto& [piece, value] : file.vocab) {
    if (value > static_cast<std::uint64_t>(kMaxId)) {
      throw Error({.what = "the id of a token is too large",
                   .expected = "at most " + std::to_string(kMaxId),
                   .found = "'" + piece.substr(0, 40) + "': " + std::to_string(value),
                   .where = where,
                   .fix = kBrokenTokenizer,
                   .code = ExitCode::usage});
    }
    const auto id = static_cast<TokenId>(value);
    if (!taken.insert(id).second) broken_tokenizer("two pieces have the same id", std::to_string(id), where);
    ids_.emplace(piece, id);
    max_id_ = std::max(max_id_, id);
  }
  // Tables by id are allocated up to the largest id, so a file of a few lines must not require gigabytes.
  if (static_cast<std::size_t>(max_id_) + 1 > 16 * ids_.size() + (1 << 20)) {
    broken_tokenizer("the ids of the vocabulary have huge gaps", "highest id " + std::to_string(max_id_),
                     where);
  }
  const auto count = static_cast<std::size_t>(max_id_) + 1;
  pieces_.assign(count, nullptr);
  for (const auto& [piece, id] : ids_) pieces_[static_cast<std::size_t>(id)] = &piece;
  byte_ids_.fill(-1);
  byte_lengths_.assign(count, 0);
  if (byte_level_) {
    words_.reserve(ids_.size());
    for (const auto& [piece, id] : ids_) {
      const auto bytes = bytes_of_piece(piece);
      if (!bytes) continue;  // no text yields this piece
      byte_lengths_[static_cast<std::size_t>(id)] = static_cast<std::uint32_t>(bytes->size());
      if (bytes->size() == 1) byte_ids_[static_cast<unsigned char>((*bytes)[0])] = id;
      words_.emplace(*bytes, id);
    }
    return;
  }
  for (const auto& [piece, id] : ids_) {
    byte_lengths_[static_cast<std::size_t>(id)] = static_cast<std::uint32_t>(piece.size());
  }
  if (!byte_fallback_) return;
  constexpr char kDigits[] = "0123456789ABCDEF";
  for (std::size_t b = 0; b < 256; ++b) {
    byte_ids_[b] = find(std::string("<0x") + kDigits[b >> 4] + kDigits[b & 15] + ">");
    if (byte_ids_[b] >= 0) byte_lengths_[static_cast<std::size_t>(byte_ids_[b])] = 1;
  }
}

void Bpe::read_merges(const TokenizerJson& file, const std::string& where) {
  if (!file.has_merges) broken_tokenizer("the tokenizer's merges are missing or not a list", "", where);
  merges_.reserve(file.merges.size());
  std::uint32_t rank = 0;
  for (const auto& [left, right] : file.merges) {
    const std::string place = where + "[" + std::to_string(rank) + "]";
    const TokenId left_id = find(left), right_id = find(right);
    if (left_id < 0 || right_id < 0) {
      broken_tokenizer("a merge names a piece that is not in the vocabulary", left_id < 0 ? left : right,
                       place);
    }
    if (right.size() < prefix_.size())
      broken_tokenizer("a merge's second piece is shorter than the prefix", right, place);
    const std::string joined = left + right.substr(prefix_.size());
    const TokenId id = find(joined);
    if (id < 0) broken_tokenizer("a merge makes a piece that is not in the vocabulary", joined, place);
    merges_.set(left_id, right_id, {rank, id});
    ++rank;
  }
  find_boundaries(file);
}

void Bpe::find_boundaries(const TokenizerJson& file) {
  constexpr std::string_view kBlank = "\u2581";
  if (byte_level_ || ignore_merges_ || !prefix_.empty() || !suffix_.empty() ||
      find(std::string(kBlank)) < 0) {
    return;
  }
  std::set<std::string> joins;
  for (const auto& [left, right] : file.merges) {
    if (left.empty() || !right.starts_with(kBlank)) continue;
    const char* last = utf8_before(left.data(), left.data() + left.size());
    std::string character(last, left.data() + left.size());
    if (character != kBlank) joins.insert(std::move(character));
  }
  joins_.assign(joins.begin(), joins.end());
  // With many such characters the look-up costs more than it gives.
  cuts_at_blanks_ = joins_.size() <= 8;
}

}  // namespace octet::text
