// What `trainer export` is asked for, by its options or by a file as LLaMA-Factory's export reads it.
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
  std::string path;                    ///< folder of a checkpoint, an adapter, or with adapters a model
  std::string folder;                  ///< to make
  std::string model;                   ///< folder of the base; empty: as the checkpoint or the adapter says
  std::vector<std::string> adapters;   ///< folders of adapters that are added to the model in `path`
  std::optional<DType> dtype;          ///< of the weights; nothing: as they are, or as the run says
  config::Config sizes;                ///< whose export_size counts
  bool sized = false;                  ///< somebody asked for that size
  data::TemplateEncoderOptions words;  ///< the chat template that a file names, and its options
  bool overwrite = false;
  bool merge = false;
  bool from_file = false;  ///< a whole model is written, with or without adapters
};

/// Nothing when --help was asked for. Throws Error (usage) for a wrong call.
std::optional<ExportWish> read_export_wish(const Arguments& arguments);

}  // namespace octet::cli
