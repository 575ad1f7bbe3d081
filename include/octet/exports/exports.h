// The exports room: folders that other programs read, from checkpoints, and from models with adapters. It
// chooses the tokenizer and the template of the folder. Files of weights belong to weights and
// checkpoint, the final model of a run to train, and the command line to cli.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "octet/base/dtype.h"
#include "octet/config/config.h"
#include "octet/data/template_encoder.h"

namespace octet::exports {

/// An export.
struct ExportWish {
  std::string path;    ///< folder of a checkpoint, of an adapter or, with `adapters`, of a model
  std::string folder;  ///< output folder
  std::string model;   ///< folder of the base; "": as recorded in the checkpoint or the adapter
  std::vector<std::string> adapters;  ///< folders of adapters to add to the model in `path`
  std::optional<DType> dtype;  ///< of the written weights; nullopt: as stored, or as configured in the run
  config::Config sizes;        ///< only export_size is used
  bool sized = false;          ///< export_size was given
  data::TemplateEncoderOptions words;  ///< the chat template that the file names, and its options
  bool overwrite = false;
  bool merge = false;
  bool from_file = false;  ///< read from a configuration: writes a whole model, with or without adapters
};

/// Reads a configuration as `llamafactory-cli export` does. Throws Error (usage) for a missing key and for a
/// quantised base.
ExportWish read_configuration(const std::string& path, const std::vector<std::string>& overrides);

/// Writes the folder and returns the paths of its files. Locks the folder meanwhile. Throws Error (usage) if
/// the wish does not fit the source, and Error (no_valid_checkpoint) for a damaged checkpoint.
std::vector<std::string> export_model(ExportWish wish);

}  // namespace octet::exports
