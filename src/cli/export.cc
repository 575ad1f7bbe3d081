#include "octet/checkpoint/export.h"

#include <cstdio>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/config/config.h"
#include "octet/data/template_encoder.h"
#include "octet/runtime/model_folder.h"
#include "octet/setup/run_options.h"
#include "octet/train/final_model.h"
#include "options.h"

namespace octet::cli {

int export_command(const Arguments& arguments) {
  Options options("export", "Turns a checkpoint into a Hugging Face folder: weights, config.json, tokenizer");
  std::string path, folder, model, dtype;
  double size = 0;
  bool overwrite = false;
  options.app().add_option("CHECKPOINT", path, "folder checkpoint-N")->required();
  options.app().add_option("FOLDER", folder, "folder to make")->required();
  options.app().add_option("--model", model,
                           "Hugging Face folder with config.json and tokenizer; default: the run's");
  options.app()
      .add_option("--dtype,--export_dtype", dtype,
                  "fp32, bf16 or fp16; default: the run's export_dtype, or what it trained in")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  options.app()
      .add_option("--size,--export_size", size, "GB of a file at most; default: the run's export_size")
      ->check(CLI::PositiveNumber);
  options.app().add_flag("--overwrite", overwrite, "replace weights that the folder holds");
  if (!options.parse(arguments)) return 0;

  const checkpoint::Checkpoint checkpoint(path);
  config::Config run =
      config::load_text(checkpoint.config_yaml(), path + " (configuration)", {}, {.for_training = false})
          .config;
  train::ModelExport e;
  e.checkpoint = path;
  e.folder = folder;
  e.model = model.empty() ? run.model_name_or_path : model;
  e.overwrite = overwrite;
  if (!dtype.empty()) run.export_dtype = dtype;
  if (size > 0) run.export_size = size;
  e.dtype = setup::export_dtype(run);
  e.shard_bytes = setup::export_bytes(run);
  if (!path_exists(e.model + "/config.json")) {
    throw Error({.what = "the model that the run started from is not there",
                 .expected = "config.json and tokenizer files",
                 .where = e.model,
                 .fix = "name its folder with --model",
                 .code = ExitCode::usage});
  }
  runtime::require_model_of(checkpoint, e.model);
  std::unique_ptr<data::TemplateEncoder> encoder;
  if (path_exists(e.model + "/tokenizer.json")) {
    encoder = std::make_unique<data::TemplateEncoder>(
        data::TemplateEncoderOptions{.folder = e.model, .template_name = run.template_name});
  }
  for (const std::string& file : train::export_model(e, encoder.get()))
    std::printf("%s/%s\n", folder.c_str(), file.c_str());
  return 0;
}

}  // namespace octet::cli
