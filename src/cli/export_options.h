// Options of `trainer export`, from its command line or from a file with LLaMA-Factory's export keys.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "octet/base/dtype.h"
#include "octet/config/config.h"
#include "octet/data/template_encoder.h"
#include "options.h"

namespace octet::cli {

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

/// Returns the options, or nullopt if --help was given. Throws Error (usage) for an invalid call.
std::optional<ExportWish> read_export_wish(const Arguments& arguments);

}  // namespace octet::cli
