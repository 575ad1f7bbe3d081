// The text room: between characters and token ids.
//
// It knows the tokenizers of Hugging Face folders (tokenizer.h), trains small ones (bpe_trainer.h) and writes
// conversations as their models saw them (chat_template.h). Files are read once and then never change, so
// that encoding needs no locks that matter and every thread may use one object; what differs between model
// families is data in files and tables, never a branch on a name. The rule for all results is equality with
// the reference implementations, id for id.
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

/// A string that is found in texts before anything else happens, as `added_tokens` lists them.
struct AddedToken {
  std::string content;
  bool single_word = false;  ///< only where no word character touches it
  bool lstrip = false;       ///< takes white space before it along
  bool rstrip = false;       ///< and behind it
  bool normalized = false;   ///< looked for in the normalised text
  bool special = false;      ///< left out by decoding without specials
  bool operator==(const AddedToken&) const = default;
};

struct Encoding {
  std::vector<TokenId> ids;
  /// One for each id: whole characters of the text; empty for tokens that the text does not hold. Only filled
  /// when asked for.
  std::vector<Span> offsets;
};

struct EncodeOptions {
  bool add_special = false;    ///< what the post-processor puts around the text (bos, eos)
  bool split_special = false;  ///< special tokens that stand in the text are text, not tokens
  /// Stretches of the text, ascending, in which the same holds: what users wrote inside a template's words.
  std::span<const Span> literal = {};
  bool offsets = false;  ///< fill Encoding::offsets
};

/// A tokenizer of a Hugging Face folder: byte-pair encoding with all that stands around it in tokenizer.json.
/// Ids, offsets and decoded text equal those of the reference implementation (Hugging Face `tokenizers`).
/// All const functions may be called from several threads at the same time.
class Tokenizer {
 public:
  /// Reads tokenizer.json and, where they are, tokenizer_config.json and special_tokens_map.json. Throws
  /// Error for a missing or broken file, naming a component that is not supported.
  static Tokenizer from_folder(const std::string& path);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  Tokenizer(const Tokenizer& other);
  Tokenizer& operator=(const Tokenizer& other);
  ~Tokenizer();

  /// Throws Error when `text` is not UTF-8 or 2 GiB or longer.
  Encoding encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// Appends the ids of `text` to `ids`.
  void encode_to(std::string_view text, std::vector<TokenId>& ids, const EncodeOptions& options = {}) const;

  /// Ids that do not exist are left out; so are special tokens with `skip_special`. Bytes that are not UTF-8
  /// become U+FFFD.
  std::string decode(std::span<const TokenId> ids, bool skip_special = false) const;

  /// The highest id plus one.
  std::int64_t vocab_size() const;
  /// -1 when there is no such token. Tokens are named as the file writes them (`Ġthe`).
  TokenId token_to_id(const std::string& token) const;
  /// "" for an id that does not exist.
  std::string id_to_token(TokenId id) const;
  bool has_id(TokenId id) const;
  bool is_special(TokenId id) const;

  /// Ids and strings of the roles which the folder's files give; -1 and "" when there is none or when the
  /// vocabulary lacks the string.
  TokenId bos_id() const;
  TokenId eos_id() const;
  TokenId pad_id() const;
  TokenId unk_id() const;
  const std::string& bos_token() const;
  const std::string& eos_token() const;
  const std::string& pad_token() const;
  /// tokenizer_config.json's add_bos_token; nothing when it is absent.
  std::optional<bool> add_bos_token() const;

  /// Makes `content` a special token without other flags: a new one behind the highest id, or the one there
  /// is, whose flags are replaced. Returns its id. Throws Error for empty or non-UTF-8 content.
  TokenId add_special_token(const std::string& content);
  /// As add_special_token, and gives it the role. Nothing changes when the role names it already.
  void set_eos_token(const std::string& content);
  /// Gives the role to a token, which is added when there is none; an existing token keeps its flags.
  void set_pad_token(const std::string& content);

  /// The files of the folder that belong to the tokenizer (full paths).
  const std::vector<std::string>& files() const;
  /// True when a token, flag or role differs from the folder's files.
  bool changed() const;
  /// Writes the tokenizer's files into an existing folder; unchanged ones byte for byte, else with the
  /// tokens and roles of this object. Throws Error when writing fails.
  void save(const std::string& folder) const;

 private:
  friend class StreamDecoder;
  struct Parts;
  explicit Tokenizer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

/// Decodes ids one after the other and hands out text as soon as it is whole: the pieces put together are
/// what decode gives for all ids. Keeps a reference to the tokenizer.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}
  /// Text that `id` completes, perhaps "".
  std::string push(TokenId id);
  /// What is left at the end: characters cut short come out as U+FFFD.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::string held_;              ///< byte-level: bytes that may still become a character
  std::vector<TokenId> pending_;  ///< others: ids since the last place where text was whole
  std::size_t emitted_ = 0;       ///< bytes of pending_'s text already handed out
};

}  // namespace octet::text
