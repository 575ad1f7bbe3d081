// Trains small byte-level vocabularies for models that start from nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace octet::text {

struct BpeTraining {
  int vocab_size = 512;  ///< ids in all: 256 bytes, merges, special tokens
  /// Special tokens, which get the highest ids in this order.
  std::vector<std::string> special_tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  std::string bos_token;                    ///< of the special tokens, or "" for none
  std::string eos_token = "<|endoftext|>";  ///< of the special tokens, or ""
  std::string pad_token = "<|endoftext|>";  ///< of the special tokens, or ""
  /// The expression that cuts text into words, within which pairs are merged; "" is GPT-2's.
  std::string pattern;
  int min_count = 2;                  ///< pairs seen less often are not merged
  std::int64_t max_length = 1000000;  ///< of a text in tokens, as tokenizer_config.json says it
};

/// Learns merges from `texts` (UTF-8) and writes tokenizer.json and tokenizer_config.json into `folder`,
/// which is made when it is missing; Hugging Face tokenizers and transformers load both. The same texts in
/// the same order give the same files. Ends early, with fewer ids, when no pair is seen min_count times.
/// Returns the number of ids. Throws Error for a vocab_size that does not hold the bytes and special tokens,
/// for special tokens that are empty or stand twice, for roles not among them, for texts that are not UTF-8.
int train_byte_bpe(std::span<const std::string> texts, const BpeTraining& options, const std::string& folder);

}  // namespace octet::text
