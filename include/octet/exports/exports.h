// The exports room writes folders for other programs, from checkpoints and from models with adapters. It
// chooses the tokenizer and the template of the folder. Weights and checkpoint write files of weights, train
// writes the final model of a run, and cli reads the command line.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "octet/base/dtype.h"
#include "octet/config/config.h"
#include "octet/data/template_encoder.h"

namespace octet::exports {

/// The source, the output and the options of an export.
struct ExportWish {
  std::string path;    ///< folder of a checkpoint, of an adapter or, with `adapters`, of a model
  std::string folder;  ///< output folder
  std::string model;   ///< folder of the base; "": as recorded in the checkpoint or the adapter
  std::vector<std::string> adapters;  ///< folders of adapters to add to the model in `path`
  std::optional<DType>
      dtype;             ///< dtype of the written weights; nullopt: as stored, or as the run configures it
  config::Config sizes;  ///< only export_size is used
  bool sized = false;    ///< export_size was given
  data::TemplateEncoderOptions words;  ///< chat template of a configuration file, and its options
  bool overwrite = false;
  bool merge = false;
  bool from_file = false;  ///< read from a configuration: writes a whole model, with or without adapters
};

/// Reads a configuration as `llamafactory-cli export` does. Throws Error (usage) for a missing key and for a
/// quantised base.
ExportWish read_configuration(const std::string& path, const std::vector<std::string>& overrides);

/// Writes the folder and returns the paths of its files. Locks the folder meanwhile. Throws Error (usage) if
/// the options do not fit the source, and Error (no_valid_checkpoint) for a damaged checkpoint.
std::vector<std::string> export_model(ExportWish wish);

}  // namespace octet::exports
