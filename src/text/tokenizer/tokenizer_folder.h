// The tokenizer files of a folder: tokenizer.json, and tokens and roles that other files name. transformers 5
// adds these tokens when it opens a folder.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "octet/base/json.h"
#include "octet/text/tokenizer.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/post_processor.h"
#include "tokenizer/pre_tokenizer.h"

namespace octet::text {

/// The components of tokenizer.json. Immutable.
struct Pipeline {
  std::unique_ptr<const Normalizer> normalizer;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  PostProcessor post_processor;
  PieceDecoder decoder;
};

/// Reads the tokenizer files of a folder. Immutable.
class TokenizerFolder {
 public:
  /// Throws Error for a missing or broken file, and for an unsupported component. Warns about differences
  /// between the files.
  explicit TokenizerFolder(const std::string& path);

  const std::shared_ptr<const Pipeline>& pipeline() const { return pipeline_; }
  /// The added tokens of all files, with their ids.
  const AddedTokens& added() const { return added_; }
  /// Returns the token of a role such as "eos_token"; "" if the files have none.
  std::string role(const char* key) const;
  /// add_bos_token of tokenizer_config.json; nullopt if absent.
  std::optional<bool> add_bos_token() const;
  /// Returns the full paths of the existing files.
  std::vector<std::string> files() const;

 private:
  /// The tokens that a file lists, in the order in which transformers adds them.
  struct Listed {
    std::string file;
    std::map<std::int64_t, AddedToken> tokens;
  };
  bool has_decoder() const;
  /// Returns the roles of the folder's special tokens (bos_token and so on), with the precedence of
  /// transformers 5. They come from tokenizer_config.json. If it has no added_tokens_decoder, `map`,
  /// special_tokens_map.json, takes precedence. `map` also gives the roles that tokenizer_config.json lacks.
  /// Warns if the two differ.
  Json effective_roles(const Json& map) const;
  /// Adds the tokens that tokenizer.json lacks and another file has: added_tokens_decoder of
  /// tokenizer_config.json, otherwise added_tokens.json, then the special tokens of the roles. A token gets
  /// the next free id, as in transformers. A token of tokenizer.json keeps its id and takes the flags of
  /// added_tokens_decoder. Warns about every difference. A special token with an id beyond the model's
  /// vocab_size is skipped with a warning.
  void add_listed_tokens();
  Listed listed_tokens() const;
  /// Returns the special tokens that have a role or are in a list of extra special tokens.
  std::vector<AddedToken> special_tokens() const;
  /// Warns if chat_template.jinja and tokenizer_config.json hold different chat templates.
  void compare_chat_templates() const;

  std::string path_;
  std::shared_ptr<const Pipeline> pipeline_;
  AddedTokens added_;
  Json config_;  ///< tokenizer_config.json
  Json roles_;   ///< tokens by role
};

/// Tokens and roles that a tokenizer has changed. Empty roles are not written.
struct TokenChanges {
  const AddedTokens& added;
  std::string eos, pad;
};

/// Writes `files` into the existing `folder`. Files are copied byte for byte if `changes` is null. Otherwise
/// tokenizer.json, tokenizer_config.json and special_tokens_map.json get the tokens and roles. Throws Error
/// if writing fails.
void save_tokenizer_files(const std::vector<std::string>& files, const TokenChanges* changes,
                          const std::string& folder);

}  // namespace octet::text
