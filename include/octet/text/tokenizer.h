// The text room: conversion between text and token ids.
//
// It reads the tokenizers of Hugging Face folders (tokenizer.h), trains small tokenizers (bpe_trainer.h) and
// writes conversations with chat templates (chat_template.h). Files are read once and objects are then
// immutable, so all threads can share an object almost without locks. Differences between model families are
// data in files and tables, never a branch on a name. All ids equal the ids of the reference implementations.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octet::text {

using TokenId = std::int32_t;

/// Bytes [begin, end) of a text.
struct Span {
  std::uint32_t begin = 0, end = 0;
  bool operator==(const Span&) const = default;
};

/// An entry of `added_tokens`: a string that is matched in a text before all other steps.
struct AddedToken {
  std::string content;
  bool single_word = false;  ///< matches only if no word character is adjacent
  bool lstrip = false;       ///< the match includes white space before it
  bool rstrip = false;       ///< the match includes white space after it
  bool normalized = false;   ///< is matched in the normalised text
  bool special = false;      ///< decoding with skip_special omits it
  bool operator==(const AddedToken&) const = default;
};

struct Encoding {
  std::vector<TokenId> ids;
  /// [ids] the span of each id in the text, in whole characters. The span of a token that is not in the text
  /// is empty. Filled only with EncodeOptions::offsets.
  std::vector<Span> offsets;
};

struct EncodeOptions {
  bool add_special = false;    ///< adds the tokens of the post-processor (bos, eos)
  bool split_special = false;  ///< special tokens in the text are encoded as text
  /// Ascending spans of the text in which special tokens are encoded as text: contents of users in a
  /// template.
  std::span<const Span> literal = {};
  bool offsets = false;  ///< fill Encoding::offsets
};

/// A tokenizer of a Hugging Face folder: byte-pair encoding and the other components of tokenizer.json. Ids,
/// offsets and decoded text are the same as in the reference implementation (Hugging Face `tokenizers`).
/// Const functions are thread-safe.
class Tokenizer {
 public:
  /// Reads tokenizer.json and, if they exist, tokenizer_config.json and special_tokens_map.json. Throws Error
  /// for a missing or broken file, and for an unsupported component, which it names.
  static Tokenizer from_folder(const std::string& path);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  Tokenizer(const Tokenizer& other);
  Tokenizer& operator=(const Tokenizer& other);
  ~Tokenizer();

  /// Throws Error if `text` is not UTF-8, or has 2 GiB or more.
  Encoding encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// Appends the ids of `text` to `ids`.
  void encode_to(std::string_view text, std::vector<TokenId>& ids, const EncodeOptions& options = {}) const;

  /// Returns the text of ids. Omits unknown ids, and special tokens if `skip_special` is set. Replaces
  /// invalid UTF-8 by U+FFFD.
  std::string decode(std::span<const TokenId> ids, bool skip_special = false) const;

  /// Returns the highest id plus one.
  std::int64_t vocab_size() const;
  /// Returns -1 if there is no such token. `token` has the spelling of the file (`Ġthe`).
  TokenId token_to_id(const std::string& token) const;
  /// Returns "" for an unknown id.
  std::string id_to_token(TokenId id) const;
  bool is_special(TokenId id) const;

  /// Ids and strings of the roles in the folder's files. They are -1 and "" if the files have no such role,
  /// or if the vocabulary lacks the string.
  TokenId bos_id() const;
  TokenId eos_id() const;
  TokenId pad_id() const;
  TokenId unk_id() const;
  const std::string& bos_token() const;
  const std::string& eos_token() const;
  const std::string& pad_token() const;
  /// add_bos_token of tokenizer_config.json; nullopt if absent.
  std::optional<bool> add_bos_token() const;

  /// Makes `content` a special token without other flags. A new token gets the highest id plus one. The flags
  /// of an existing token are replaced. Returns its id. Throws Error for empty or non-UTF-8 content.
  TokenId add_special_token(const std::string& content);
  /// Like add_special_token(), and makes the token the eos token. Does nothing if it is already the eos
  /// token.
  void set_eos_token(const std::string& content);
  /// Makes `content` the pad token, and adds it if it is missing. An existing token keeps its flags.
  void set_pad_token(const std::string& content);

  /// Returns the full paths of the tokenizer's files.
  const std::vector<std::string>& files() const;
  /// Returns true if a token, flag or role differs from the folder's files.
  bool changed() const;
  /// Writes the tokenizer's files into an existing folder. Unchanged files are copied byte for byte. Changed
  /// files have the tokens and roles of this object. Throws Error if writing fails.
  void save(const std::string& folder) const;

 private:
  friend class StreamDecoder;
  struct Parts;
  explicit Tokenizer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

/// Decodes ids one by one and returns text as soon as its characters are complete. The concatenated pieces
/// equal decode() of all ids. Keeps a reference to the tokenizer.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}
  /// Returns the text that `id` completes, possibly "".
  std::string push(TokenId id);
  /// Returns the remaining text. An incomplete character becomes U+FFFD.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::string held_;              ///< byte-level decoders: bytes of an incomplete character
  std::vector<TokenId> pending_;  ///< other decoders: ids after the last complete text
  std::size_t emitted_ = 0;       ///< bytes of the text of pending_ that were returned
};

// How much of a text a vocabulary lacks.

/// Returns the share of the bytes of `text`, blanks left out, that vanish or become the unknown token: 0
/// to 1.
double unknown_share(const Tokenizer& tokenizer, std::string_view text);

}  // namespace octet::text
