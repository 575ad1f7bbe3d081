#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <unordered_set>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "tokenizer/component.h"
#include "unicode/utf8.h"

namespace octet::text {
namespace {

/// Words with up to this number of pieces are merged by repeated search for the best pair.
constexpr std::size_t kShort = 40;

constexpr std::string_view kBlank = "\u2581";

std::uint64_t word_hash(std::string_view word) {
  std::uint64_t h = word.size() * 0x9E3779B97F4A7C15ull;
  while (word.size() >= 8) {
    std::uint64_t x;
    std::memcpy(&x, word.data(), 8);
    h = (h ^ x) * 0xFF51AFD7ED558CCDull;
    h ^= h >> 32;
    word.remove_prefix(8);
  }
  std::uint64_t x = 0;
  std::memcpy(&x, word.data(), word.size());
  h = (h ^ x) * 0xFF51AFD7ED558CCDull;
  return h ^ h >> 29;
}

}  // namespace

void MergeTable::reserve(std::size_t count) {
  const std::size_t size = std::bit_ceil(std::max<std::size_t>(count * 2, 2));
  slots_.assign(size, {});
  shift_ = 64 - std::countr_zero(size);
}

void MergeTable::set(TokenId left, TokenId right, Merge merge) {
  const std::uint64_t key = key_of(left, right);
  std::size_t i = place(key);
  while (slots_[i].key != key && slots_[i].merge.rank != kNoRank) i = (i + 1) & (slots_.size() - 1);
  slots_[i] = {key, merge};
}

MergeTable::Merge MergeTable::find(TokenId left, TokenId right) const {
  const std::uint64_t key = key_of(left, right);
  for (std::size_t i = place(key);; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].key == key || slots_[i].merge.rank == kNoRank) return slots_[i].merge;
  }
}

TokenId Bpe::find(const std::string& piece) const {
  const auto it = ids_.find(piece);
  return it == ids_.end() ? -1 : it->second;
}

const std::string* Bpe::piece(TokenId id) const {
  return id < 0 || id > max_id_ ? nullptr : pieces_[static_cast<std::size_t>(id)];
}

void Bpe::split_bytes(std::string_view word, std::vector<Symbol>& out) const {
  for (const char c : word) {
    const TokenId id = byte_ids_[static_cast<unsigned char>(c)];
    if (id >= 0) out.push_back({id, 1});  // drops bytes that are not in the vocabulary
  }
}

void Bpe::split_characters(std::string_view word, std::vector<Symbol>& out) const {
  Symbol unknown{-1, 0};
  const auto flush = [&] {
    if (unknown.id >= 0) out.push_back(unknown);
    unknown = {-1, 0};
  };
  std::string key;
  for (std::size_t i = 0; i < word.size();) {
    const std::size_t length = utf8_length(static_cast<unsigned char>(word[i]));
    key.clear();
    if (i > 0) key += prefix_;
    key += word.substr(i, length);
    if (i + length == word.size()) key += suffix_;
    i += length;
    const auto known = ids_.find(key);
    if (known != ids_.end()) {
      flush();
      out.push_back({known->second, static_cast<std::uint32_t>(length)});
      continue;
    }
    const bool all_bytes = byte_fallback_ && std::all_of(key.begin(), key.end(), [&](char c) {
                             return byte_ids_[static_cast<unsigned char>(c)] >= 0;
                           });
    if (all_bytes) {
      // A pending unknown character stays after the bytes, like in the reference.
      for (const char c : key) out.push_back({byte_ids_[static_cast<unsigned char>(c)], 1});
    } else if (unk_ >= 0) {
      if (!fuse_unk_) flush();
      unknown.id = unk_;
      unknown.length += static_cast<std::uint32_t>(length);
    }
  }
  flush();
}

void Bpe::encode(std::string_view word, BpeScratch& scratch) const {
  scratch.symbols.clear();
  std::size_t begin = 0;
  if (cuts_at_blanks_) {
    for (std::size_t at = word.find(kBlank, 1); at != std::string_view::npos;
         at = word.find(kBlank, at + 1)) {
      const auto before = static_cast<std::size_t>(utf8_before(word.data(), word.data() + at) - word.data());
      const std::string_view last = word.substr(before, at - before);
      if (last == kBlank || std::find(joins_.begin(), joins_.end(), last) != joins_.end()) continue;
      encode_word(word.substr(begin, at - begin), scratch);
      begin = at;
    }
  }
  encode_word(word.substr(begin), scratch);
}

void Bpe::encode_word(std::string_view word, BpeScratch& scratch) const {
  using Cached = BpeScratch::Cached;
  Cached* entry = nullptr;
  if (word.size() <= Cached::kBytes) {
    if (scratch.cache.empty()) scratch.cache.resize(BpeScratch::kEntries);
    entry = &scratch.cache[word_hash(word) & (BpeScratch::kEntries - 1)];
    if (entry->size == word.size() && std::memcmp(entry->bytes, word.data(), word.size()) == 0) {
      for (std::size_t i = 0; i < entry->count; ++i) {
        scratch.symbols.push_back({entry->ids[i], byte_lengths_[static_cast<std::size_t>(entry->ids[i])]});
      }
      return;
    }
  }
  auto& symbols = scratch.word;
  symbols.clear();
  bool whole = false;
  if (ignore_merges_) {
    const auto& known = byte_level_ ? words_ : ids_;
    const auto it = known.find(std::string(word));
    if (it != known.end()) {
      symbols.push_back({it->second, static_cast<std::uint32_t>(word.size())});
      whole = true;
    }
  }
  if (!whole) {
    if (byte_level_) {
      split_bytes(word, symbols);
    } else {
      split_characters(word, symbols);
    }
    if (symbols.size() <= kShort) {
      merge_short(scratch);
    } else {
      merge_long(scratch);
    }
  }
  scratch.symbols.insert(scratch.symbols.end(), symbols.begin(), symbols.end());
  // The cache holds only words that the ids determine. Unknown characters have any length.
  const auto by_id = [&](const Symbol& symbol) {
    return byte_lengths_[static_cast<std::size_t>(symbol.id)] == symbol.length;
  };
  if (entry && symbols.size() <= Cached::kIds && std::all_of(symbols.begin(), symbols.end(), by_id)) {
    entry->size = static_cast<std::uint8_t>(word.size());
    entry->count = static_cast<std::uint8_t>(symbols.size());
    std::memcpy(entry->bytes, word.data(), word.size());
    for (std::size_t i = 0; i < symbols.size(); ++i) entry->ids[i] = symbols[i].id;
  }
}

void Bpe::merge_short(BpeScratch& scratch) const {
  auto& symbols = scratch.word;
  auto& ranks = scratch.ranks;
  std::size_t n = symbols.size();
  if (n < 2) return;
  ranks.resize(n);
  const auto rank_at = [&](std::size_t i) { return merges_.find(symbols[i].id, symbols[i + 1].id).rank; };
  for (std::size_t i = 0; i + 1 < n; ++i) ranks[i] = rank_at(i);
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == MergeTable::kNoRank) break;
    symbols[best] = {merges_.find(symbols[best].id, symbols[best + 1].id).id,
                     symbols[best].length + symbols[best + 1].length};
    for (std::size_t i = best + 1; i + 1 < n; ++i) {
      symbols[i] = symbols[i + 1];
      ranks[i] = ranks[i + 1];
    }
    --n;
    if (best > 0) ranks[best - 1] = rank_at(best - 1);
    if (best + 1 < n) ranks[best] = rank_at(best);
  }
  symbols.resize(n);
}

// A heap of pairs by rank and place over a linked list. Entries with changed pairs are dropped.
void Bpe::merge_long(BpeScratch& scratch) const {
  auto& symbols = scratch.word;
  auto& queue = scratch.queue;
  auto& previous = scratch.previous;
  auto& next = scratch.next;
  const auto n = static_cast<std::int32_t>(symbols.size());
  previous.resize(symbols.size());
  next.resize(symbols.size());
  for (std::int32_t i = 0; i < n; ++i) {
    previous[static_cast<std::size_t>(i)] = i - 1;
    next[static_cast<std::size_t>(i)] = i + 1 < n ? i + 1 : -1;
  }
  using Queued = BpeScratch::Queued;
  const auto later = [](const Queued& a, const Queued& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  queue.clear();
  const auto offer = [&](std::int32_t at, bool heap) {
    if (at < 0 || next[static_cast<std::size_t>(at)] < 0) return;
    const TokenId left = symbols[static_cast<std::size_t>(at)].id;
    const TokenId right = symbols[static_cast<std::size_t>(next[static_cast<std::size_t>(at)])].id;
    const auto merge = merges_.find(left, right);
    if (merge.rank == MergeTable::kNoRank) return;
    queue.push_back({merge.rank, static_cast<std::uint32_t>(at), left, right});
    if (heap) std::push_heap(queue.begin(), queue.end(), later);
  };
  for (std::int32_t i = 0; i + 1 < n; ++i) offer(i, false);
  std::make_heap(queue.begin(), queue.end(), later);
  while (!queue.empty()) {
    const Queued top = queue.front();
    std::pop_heap(queue.begin(), queue.end(), later);
    queue.pop_back();
    Symbol& left = symbols[top.position];
    const std::int32_t right_at = next[top.position];
    if (left.id != top.left || right_at < 0) continue;
    Symbol& right = symbols[static_cast<std::size_t>(right_at)];
    if (right.id != top.right) continue;
    left = {merges_.find(top.left, top.right).id, left.length + right.length};
    right.id = -1;
    next[top.position] = next[static_cast<std::size_t>(right_at)];
    if (next[top.position] >= 0) {
      previous[static_cast<std::size_t>(next[top.position])] = static_cast<std::int32_t>(top.position);
    }
    offer(previous[top.position], true);
    offer(static_cast<std::int32_t>(top.position), true);
  }
  std::size_t out = 0;
  for (std::int32_t i = 0; i >= 0; i = next[static_cast<std::size_t>(i)]) {
    symbols[out++] = symbols[static_cast<std::size_t>(i)];
  }
  symbols.resize(out);
}

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
