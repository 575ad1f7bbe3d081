// The parts of a Tokenizer.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "octet/text/tokenizer.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/piece_decoder.h"
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

/// Buffers of one call of encode(), reused by the next call.
struct EncodeScratch {
  BpeScratch bpe;
  std::vector<Found> raw, found;
  std::vector<TextView> pieces;
  std::deque<AlignedText> made;
  std::vector<std::string_view> tokens;  ///< for trimming: the text of each id
};

/// Lends scratch to all threads that encode concurrently. A thread gets its previous scratch back, unless
/// another thread took it. Its cache of words is then warm on its core.
class ScratchPool {
 public:
  ScratchPool() : slots_(kSlots) {}
  ~ScratchPool();
  std::unique_ptr<EncodeScratch> take();
  void give(std::unique_ptr<EncodeScratch> scratch);

 private:
  static constexpr std::size_t kSlots = 256;
  // One cache line per slot prevents false sharing.
  struct alignas(64) Slot {
    std::atomic<EncodeScratch*> idle{nullptr};
  };
  std::vector<Slot> slots_;
};

/// A token with a role.
struct Role {
  std::string token;
  TokenId id = -1;
};

struct Tokenizer::Parts {
  std::shared_ptr<const Pipeline> pipeline;
  AddedTokens added;
  std::vector<std::string> decoded;  ///< byte-level decoders: the bytes of each id
  TokenId max_id = -1;
  Role bos, eos, pad, unk;
  std::optional<bool> add_bos;
  std::string folder;
  std::vector<std::string> files;
  bool changed = false;
  mutable ScratchPool pool;

  Parts() = default;
  Parts(const Parts& other);

  TokenId find(const std::string& token) const;
  /// Returns the piece in the spelling of the file, or null.
  const std::string* piece(TokenId id) const;
  bool is_special(TokenId id) const;
  /// Builds the matchers and the tables by id. Call it after tokens were set.
  void index();
  void add_special(const std::string& content);
  void encode(std::string_view text, const EncodeOptions& options, std::vector<TokenId>& ids,
              std::vector<Span>* offsets) const;
  void emit(const Found& found, EncodeScratch& scratch, std::vector<TokenId>& ids,
            std::vector<Span>* offsets) const;
};

/// Returns the existing tokenizer files of `folder`.
std::vector<std::string> tokenizer_files(const std::string& folder);

}  // namespace octet::text
