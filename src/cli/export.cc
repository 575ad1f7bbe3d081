// `trainer export`: converts a checkpoint, or a model with adapters, into a Hugging Face folder.
#include <cstdio>

#include "octet/base/error.h"
#include "octet/exports/exports.h"
#include "octet/setup/adapters.h"
#include "octet/setup/run_options.h"
#include "options.h"

namespace octet::cli {
namespace {

using exports::ExportWish;

bool is_config(const std::string& path) {
  return path.ends_with(".yaml") || path.ends_with(".yml") || path.ends_with(".json");
}

/// Returns the options, or nullopt if --help was given. Throws Error (usage) for an invalid call.
std::optional<ExportWish> read_export_wish(const Arguments& arguments) {
  Options options("export",
                  "Turns a checkpoint into a Hugging Face folder (weights, config.json, tokenizer), or adds "
                  "adapters to their base; CONFIG.yaml does both with keys of LLaMA-Factory "
                  "(model_name_or_path, adapter_name_or_path, export_dir)");
  options.example("trainer export runs/first/checkpoint-500 models/first");
  options.example("trainer export runs/adapter models/whole --merge");
  options.take_overrides();
  ExportWish wish;
  std::string adapter, dtype;
  double size = 0;
  bool overwrite = false;
  options
      .add_option("CHECKPOINT", wish.path,
                  "folder checkpoint-N, or folder of a run (its newest checkpoint); with --merge also folder "
                  "of a PEFT adapter; with --adapter folder of a model; or CONFIG.yaml")
      .required();
  options.add_option("FOLDER", wish.folder, "folder to write; with CONFIG.yaml, export_dir is used");
  options.add_option("--model", wish.model,
                     "Hugging Face folder with config.json and tokenizer; default: the run's");
  options.add_option("--adapter", adapter,
                     "folder of an adapter to add to the model; several with commas between");
  options
      .add_option("--dtype,--export_dtype", dtype,
                  "fp32, bf16 or fp16; default: export_dtype of the run, or its training dtype; for "
                  "adapters, the dtype of the base")
      .check(one_of_any_case({"fp32", "bf16", "fp16"}));
  options
      .add_option("--size,--export_size", size,
                  "largest size of a file of weights, in GB; default: the run's export_size")
      .check(above_zero());
  options.add_flag("--overwrite", overwrite, "replace weights that the folder holds");
  options.add_flag("--merge", wish.merge, "add adapters to their base model, and write a whole one");
  if (!options.parse(arguments)) return std::nullopt;
  const auto wrong = [](const std::string& what, const std::string& expected, const std::string& fix) {
    throw Error(
        {.what = what, .expected = expected, .where = "command line", .fix = fix, .code = ExitCode::usage});
  };
  Arguments overrides = options.overrides();
  if (is_config(wish.path)) {
    if (!wish.folder.empty()) overrides.push_back("export_dir=" + wish.folder);
    ExportWish of_file = exports::read_configuration(wish.path, overrides);
    of_file.overwrite = of_file.overwrite || overwrite;
    wish = of_file;
  } else {
    if (!overrides.empty())
      wrong("argument '" + overrides.front() + "' is not known",
            "an option of trainer export; keys of a configuration only with CONFIG.yaml",
            "remove it; 'trainer export --help' lists the options");
    if (wish.folder.empty())
      wrong("no folder to write is given", "trainer export CHECKPOINT FOLDER", "add the folder");
    if (!adapter.empty()) wish.adapters = setup::adapter_folders(adapter);
  }
  if (!dtype.empty()) {
    config::Config asked;
    asked.export_dtype = dtype;
    wish.dtype = setup::export_dtype(asked);
  }
  if (size > 0) wish.sizes.export_size = size, wish.sized = true;
  return wish;
}

}  // namespace

int export_command(const Arguments& arguments) {
  const std::optional<ExportWish> wish = read_export_wish(arguments);
  if (!wish) return 0;
  for (const std::string& path : exports::export_model(*wish)) std::printf("%s\n", path.c_str());
  return 0;
}

}  // namespace octet::cli
