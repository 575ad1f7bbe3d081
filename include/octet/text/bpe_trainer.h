// Trains small byte-level vocabularies for models that are trained from scratch.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace octet::text {

struct BpeTraining {
  int vocab_size = 512;  ///< total number of ids: 256 bytes, merges and special tokens
  /// Special tokens, which get the highest ids in this order.
  std::vector<std::string> special_tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  std::string bos_token;                    ///< one of the special tokens, or "" for none
  std::string eos_token = "<|endoftext|>";  ///< one of the special tokens, or ""
  std::string pad_token = "<|endoftext|>";  ///< one of the special tokens, or ""
  /// The regular expression that splits text into words. Pairs are merged only inside words. "": GPT-2's.
  std::string pattern;
  int min_count = 2;                  ///< rarer pairs are not merged
  std::int64_t max_length = 1000000;  ///< model_max_length of tokenizer_config.json, in tokens
};

/// Learns merges from `texts` (UTF-8) and writes tokenizer.json and tokenizer_config.json into `folder`.
/// Creates the folder if it is missing. Hugging Face tokenizers and transformers can load both files. Equal
/// texts in equal order give equal files. Ends early, with fewer ids, if no pair occurs min_count times.
/// Returns the number of ids. Throws Error if vocab_size is too small for the bytes and special tokens, for
/// empty or repeated special tokens, for a role that is not a special token, and for texts that are not
/// UTF-8.
int train_byte_bpe(std::span<const std::string> texts, const BpeTraining& options, const std::string& folder);

}  // namespace octet::text
