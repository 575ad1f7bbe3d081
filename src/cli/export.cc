#include "octet/checkpoint/export.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/config/config.h"
#include "octet/data/template_encoder.h"
#include "octet/runtime/model_folder.h"
#include "octet/setup/adapters.h"
#include "octet/setup/freezing.h"
#include "octet/setup/run_options.h"
#include "octet/train/adapter_folder.h"
#include "octet/train/final_model.h"
#include "octet/train/merged_model.h"
#include "options.h"

namespace octet::cli {

namespace {

/// Removes a folder of its own at the end.
struct Cleared {
  std::string folder;
  ~Cleared() {
    std::error_code code;
    std::filesystem::remove_all(folder, code);
  }
};

struct Merge {
  std::string adapter, model, folder;
  bool overwrite = false;
};

int write_merged(const Merge& merge, const config::Config& config) {
  if (!path_exists(merge.model + "/config.json")) {
    throw Error({.what = "the base model of the adapter is not there",
                 .expected = "config.json, weights and tokenizer files",
                 .where = merge.model,
                 .fix = "name its folder with --model",
                 .code = ExitCode::usage});
  }
  checkpoint::ExportOptions options;
  options.folder = merge.folder;
  options.source_folder = merge.model;
  options.dtype = setup::export_dtype(config);
  options.shard_bytes = setup::export_bytes(config);
  options.overwrite = merge.overwrite;
  for (const std::string& file : train::export_merged(options, merge.adapter))
    std::printf("%s/%s\n", merge.folder.c_str(), file.c_str());
  return 0;
}

}  // namespace

int export_command(const Arguments& arguments) {
  Options options("export", "Turns a checkpoint into a Hugging Face folder: weights, config.json, tokenizer");
  std::string path, folder, model, dtype;
  double size = 0;
  bool overwrite = false, merge = false;
  options.app()
      .add_option("CHECKPOINT", path,
                  "folder checkpoint-N; with --merge also that of an adapter, as PEFT writes it")
      ->required();
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
  options.app().add_flag("--merge", merge, "add adapters to their base model, and write a whole one");
  if (!options.parse(arguments)) return 0;

  if (path_exists(path + "/adapter_config.json")) {
    if (!merge) {
      throw Error({.what = "the folder holds an adapter, which is exported already",
                   .where = path,
                   .fix = "add --merge to write a whole model",
                   .code = ExitCode::usage});
    }
    const std::string base = json_string(read_json(path + "/adapter_config.json"), "base_model_name_or_path",
                                         "", path + "/adapter_config.json");
    config::Config plain;
    if (!dtype.empty()) plain.export_dtype = dtype;
    if (size > 0) plain.export_size = size;
    return write_merged(
        {.adapter = path, .model = model.empty() ? base : model, .folder = folder, .overwrite = overwrite},
        plain);
  }
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
  e.part = setup::trains_parts(run);
  if (!path_exists(e.model + "/config.json")) {
    throw Error({.what = "the model that the run started from is not there",
                 .expected = "config.json and tokenizer files",
                 .where = e.model,
                 .fix = "name its folder with --model",
                 .code = ExitCode::usage});
  }
  runtime::require_model_of(checkpoint, e.model);
  if (setup::trains_adapters(run)) {
    run.model_name_or_path = e.model;
    if (!merge) {
      for (const std::string& file : train::export_adapter(folder, path, run))
        std::printf("%s/%s\n", folder.c_str(), file.c_str());
      return 0;
    }
    const std::string adapter = folder + ".adapter.tmp-" + std::to_string(::getpid());
    train::export_adapter(adapter, path, run);
    const Cleared cleared{adapter};
    return write_merged({.adapter = adapter, .model = e.model, .folder = folder, .overwrite = overwrite},
                        run);
  }
  if (merge) {
    throw Error({.what = "the checkpoint holds no adapters to merge",
                 .where = path,
                 .fix = "leave --merge out: the checkpoint is a whole model",
                 .code = ExitCode::usage});
  }
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
