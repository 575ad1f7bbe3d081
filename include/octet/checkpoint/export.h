// A folder that Hugging Face loads: weights as safetensors, config, tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "octet/checkpoint/tensor_header.h"

namespace octet::checkpoint {

struct ExportOptions {
  std::string folder;         ///< to make
  std::string source_folder;  ///< with config.json, and the tokenizer's files where there are any
  DType dtype = DType::bf16;  ///< of the float tensors: f32, bf16 or f16
  std::int64_t shard_bytes = 5'000'000'000;  ///< export_size
  /// Allows `folder` to hold weights, which are replaced; other files in it stay.
  bool overwrite = false;
  /// Writes what else belongs there into the folder that it is given, before the weights get their names.
  std::function<void(const std::string& folder)> complete;
  /// The checkpoint holds what was trained; the other tensors come from the source's weights as they are
  /// there.
  bool rest_from_source = false;
  /// Whether the head is the embedding; nothing: as the source's config.json says. If the two differ, the
  /// export's config.json is corrected.
  std::optional<bool> tied = {};
};

/// Elements [begin, begin + count) of a tensor as floats.
using TensorReader =
    std::function<void(const std::string& name, std::int64_t begin, std::int64_t count, float* out)>;

/// Writes model.safetensors (or shards and their index), config.json with its dtype set, and copies
/// generation_config.json and the tokenizer's files. `tensors` are float tensors under Hugging Face's names.
/// Where config.json, or its text_config, ties the head to the embedding, "lm_head.weight" is left out. A
/// folder that did not exist appears whole; in an existing one the weights appear last, index behind shards.
/// Throws Error when the source lacks config.json, the folder holds weights and overwrite is not set, or the
/// disk is full; then nothing is left behind. Returns the names of the files written.
std::vector<std::string> export_model(const ExportOptions& options, const std::vector<TensorHeader>& tensors,
                                      const TensorReader& read);

/// What an export takes on the disk.
struct ExportSize {
  std::int64_t weights = 0;  ///< safetensors and their index, to the byte
  std::int64_t others = 0;   ///< config.json and the files that are copied
  std::int64_t largest = 0;  ///< of the others: it is written anew beside the one that it replaces
};
/// The same of export_checkpoint() for a checkpoint of these parameters. An empty source_folder: of the
/// weights alone, all of which the checkpoint holds.
ExportSize size_of_export(const ExportOptions& options, const std::vector<TensorHeader>& parameters);

/// The parameters of a checkpoint (every byte verified on the way). Of a multimodal model, whose config.json
/// has a text_config, the tensors that were not trained are copied from the source's weights; without those a
/// warning says what is missing.
std::vector<std::string> export_checkpoint(const ExportOptions& options, const std::string& checkpoint);

}  // namespace octet::checkpoint
