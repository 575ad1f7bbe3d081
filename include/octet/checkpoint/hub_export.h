// Export of a model folder for Hugging Face: weights as safetensors, config, tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "octet/weights/tensor_header.h"

namespace octet::weights {
class WeightFolder;
}

namespace octet::checkpoint {

struct ExportOptions {
  std::string folder;                        ///< folder to create
  std::string source_folder;                 ///< source of config.json, and of the tokenizer files if present
  DType dtype = DType::bf16;                 ///< dtype of the float tensors: f32, bf16 or f16
  std::int64_t shard_bytes = 5'000'000'000;  ///< export_size
  /// Allows `folder` to contain weights, which are then replaced. Other files in it stay.
  bool overwrite = false;
  /// Called with the folder to write further files into, before the weights get their final names.
  std::function<void(const std::string& folder)> complete;
  /// true: the checkpoint holds only the trained tensors; the others are copied unchanged from the source's
  /// weights.
  bool rest_from_source = false;
  /// Whether the head is tied to the embedding. Without a value, the source's config.json decides. If the two
  /// differ, the export's config.json is corrected.
  std::optional<bool> tied = {};
  /// The class of a reward model, which the export's config.json gets, with one label. "": the source's
  /// class.
  std::string reward_class = {};
  /// Beginnings of names of tensors that belong to the trained model. Other tensors of the source (a vision
  /// tower, a projector) are copied byte for byte, unless they are quantised. Empty: all tensors belong.
  std::vector<std::string> model_tensors = {};
};

/// Reads elements [begin, begin + count) of a tensor as floats.
using TensorReader =
    std::function<void(const std::string& name, std::int64_t begin, std::int64_t count, float* out)>;

/// Whether exports write this tensor in fp32: the bias of a router, which transformers keeps in fp32 too.
bool stays_fp32(const std::string& tensor);

/// Writes model.safetensors (or shards and their index) and config.json with its dtype set. Copies
/// generation_config.json and the tokenizer files. `tensors` are float tensors with Hugging Face names. If
/// config.json, or its text_config, ties the head to the embedding, "lm_head.weight" is left out.
///
/// A new folder appears only when it is complete. In an existing folder the weights are renamed last, the
/// index after the shards. Throws Error if the source lacks config.json, if the folder has weights and
/// overwrite is not set, or if the disk is full. After an error, a new folder and temporary files are
/// removed. Returns the names of the written files. `source`: weights with the tensors that
/// ExportOptions::model_tensors leaves out; null: all tensors come from `read`.
std::vector<std::string> export_model(const ExportOptions& options,
                                      const std::vector<weights::TensorHeader>& tensors,
                                      const TensorReader& read,
                                      const weights::WeightFolder* source = nullptr);

/// Disk space of an export.
struct ExportSize {
  std::int64_t weights = 0;  ///< safetensors and their index, exact
  std::int64_t others = 0;   ///< config.json and the copied files
  std::int64_t largest = 0;  ///< largest of the other files; it is written next to the file that it replaces
};
/// Returns the size of export_checkpoint() for a checkpoint of these parameters. With an empty source_folder,
/// counts only the weights, and the checkpoint must hold all of them.
ExportSize size_of_export(const ExportOptions& options, const std::vector<weights::TensorHeader>& parameters);

/// Exports the parameters of a checkpoint; every byte is verified. For a multimodal model, with a text_config
/// or a vision_config in its config.json, untrained tensors are copied from the source's weights. If the
/// source has no weights, a warning lists the missing parts.
std::vector<std::string> export_checkpoint(const ExportOptions& options, const std::string& checkpoint);

}  // namespace octet::checkpoint
