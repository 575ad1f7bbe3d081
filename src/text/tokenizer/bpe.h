// The model of a tokenizer file: byte-pair encoding of one word.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "octet/text/tokenizer.h"
#include "tokenizer/tokenizer_json.h"

namespace octet::text {

/// Maps a pair of ids to its merge. Uses open addressing and is built once.
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank;
    TokenId id;
  };
  static constexpr std::uint32_t kNoRank = 0xFFFFFFFFu;

  void reserve(std::size_t count);
  void set(TokenId left, TokenId right, Merge merge);
  /// Returns a merge with rank kNoRank if the pair does not merge.
  Merge find(TokenId left, TokenId right) const;

 private:
  struct Slot {
    std::uint64_t key = ~std::uint64_t{0};
    Merge merge{kNoRank, -1};
  };
  static std::uint64_t key_of(TokenId left, TokenId right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
  }
  std::size_t place(std::uint64_t key) const { return (key * 0x9E3779B97F4A7C15ull) >> shift_; }
  std::vector<Slot> slots_;
  int shift_ = 63;
};

/// A piece of a word, with its length in bytes.
struct Symbol {
  TokenId id;
  std::uint32_t length;
};

/// Buffers and the cache of one thread.
struct BpeScratch {
  std::vector<Symbol> symbols;  ///< the result
  std::vector<Symbol> word;     ///< the current word
  std::vector<std::uint32_t> ranks;
  std::vector<std::int32_t> previous, next;
  struct Queued {
    std::uint32_t rank, position;
    TokenId left, right;
  };
  std::vector<Queued> queue;
  struct Cached {
    static constexpr std::size_t kBytes = 30, kIds = 8;
    std::uint8_t size = 0, count = 0;
    char bytes[kBytes];
    TokenId ids[kIds];
  };
  static constexpr std::size_t kEntries = 1 << 14;
  std::vector<Cached> cache;
};

class Bpe {
 public:
  Bpe() = default;
  /// Reads `model`. With `byte_level`, words are bytes and pieces are written in the byte alphabet. Throws
  /// Error for ids that are out of range or repeated, for merges of unknown pieces, and for unknown settings.
  Bpe(const TokenizerJson& file, bool byte_level, const std::string& where);

  /// Clears scratch.symbols and writes the pieces of the non-empty `word` to it.
  void encode(std::string_view word, BpeScratch& scratch) const;

  bool byte_level() const { return byte_level_; }
  TokenId find(const std::string& piece) const;
  /// Returns null if the id is not in the vocabulary.
  const std::string* piece(TokenId id) const;
  TokenId max_id() const { return max_id_; }
  std::size_t size() const { return ids_.size(); }

 private:
  void read_vocab(const TokenizerJson& file, const std::string& where);
  void read_merges(const TokenizerJson& file, const std::string& where);
  void find_boundaries(const TokenizerJson& file);
  void encode_word(std::string_view word, BpeScratch& scratch) const;
  void split_bytes(std::string_view word, std::vector<Symbol>& out) const;
  void split_characters(std::string_view word, std::vector<Symbol>& out) const;
  void merge_short(BpeScratch& scratch) const;
  void merge_long(BpeScratch& scratch) const;

  bool byte_level_ = false, byte_fallback_ = false, ignore_merges_ = false, fuse_unk_ = false;
  std::string prefix_, suffix_;  ///< continuing_subword_prefix, end_of_word_suffix
  TokenId unk_ = -1, max_id_ = -1;
  std::unordered_map<std::string, TokenId> ids_;
  std::vector<const std::string*> pieces_;          ///< by id: keys of ids_; null without a piece
  std::unordered_map<std::string, TokenId> words_;  ///< byte-level: pieces as bytes
  std::vector<std::uint32_t> byte_lengths_;         ///< by id: bytes of the piece in a word; 0 if unknown
  std::array<TokenId, 256> byte_ids_{};             ///< byte-level: single bytes; fallback: <0xNN>
  MergeTable merges_;
  /// Words are cut before each blank (U+2581) after another character. No merge crosses such a place, so the
  /// result does not change, and the cache can hold the short words.
  bool cuts_at_blanks_ = false;
  std::vector<std::string> joins_;  ///< characters that some merge joins with a following blank
};

}  // namespace octet::text
