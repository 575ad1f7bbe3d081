#include "export_options.h"

#include "octet/base/error.h"
#include "octet/setup/adapters.h"
#include "octet/setup/data_options.h"
#include "octet/setup/run_options.h"

namespace octet::cli {
namespace {

bool is_config(const std::string& path) {
  return path.ends_with(".yaml") || path.ends_with(".yml") || path.ends_with(".json");
}

std::optional<DType> dtype_named(const config::Config& config) {
  return config.export_dtype ? std::optional(setup::export_dtype(config)) : std::nullopt;
}

/// Returns the dtype of LLaMA-Factory's infer_dtype, in which the merged model is written. Returns nullopt
/// for the dtype of the base.
std::optional<DType> inferred_dtype(const config::Resolved& resolved) {
  const auto found = resolved.extra.find("infer_dtype");
  if (found == resolved.extra.end() || found->second == "auto") return std::nullopt;
  if (found->second == "float32") return DType::f32;
  if (found->second == "bfloat16") return DType::bf16;
  if (found->second == "float16") return DType::f16;
  throw Error({.what = "the format of the merged weights is not known",
               .expected = "infer_dtype: auto, float32, bfloat16 or float16",
               .found = found->second,
               .where = resolved.origins.at("infer_dtype").where,
               .fix = "give one of these; auto keeps the base model's format",
               .code = ExitCode::usage});
}

void require_whole_numbers(const config::Resolved& resolved) {
  if (!resolved.is_set("quantization_bit")) return;
  throw Error({.what = "adapters are not merged into a quantised base",
               .expected = "the unquantised base",
               .found = "quantization_bit",
               .where = resolved.origins.at("quantization_bit").where,
               .fix = "remove quantization_bit: rounding the sum of weights and adapters to 4 bits would "
                      "lose what the adapters learned; quantise the merged model where it is served",
               .code = ExitCode::usage});
}

/// Reads a configuration as `llamafactory-cli export` does.
ExportWish wish_of_file(const std::string& path, const Arguments& overrides) {
  // An export merges adapters, whatever finetuning_type says.
  Arguments all{path};
  all.insert(all.end(), overrides.begin(), overrides.end());
  all.emplace_back("finetuning_type=lora");
  const config::Resolved resolved = config::load(all, {.for_training = false});
  const config::Config& config = resolved.config;
  require_whole_numbers(resolved);
  const auto need = [&](bool given, const std::string& key, const std::string& example) {
    if (given) return;
    throw Error({.what = "'" + key + "' is not given",
                 .expected = "'" + key + ": " + example + "'",
                 .where = path,
                 .fix = "add it to the file",
                 .code = ExitCode::usage});
  };
  const auto folder = resolved.extra.find("export_dir");
  need(!config.model_name_or_path.empty(), "model_name_or_path", "path/to/base");
  need(folder != resolved.extra.end() && !folder->second.empty(), "export_dir", "path/to/merged");
  ExportWish wish{.path = config.model_name_or_path, .folder = folder->second, .model = {}};
  if (config.adapter_name_or_path) wish.adapters = setup::adapter_folders(*config.adapter_name_or_path);
  wish.dtype = config.export_dtype ? dtype_named(config) : inferred_dtype(resolved);
  wish.sizes.export_size = config.export_size;
  wish.words = setup::encoder_options(config);
  wish.words.match_template = false;  // without a name, the folder's own chat template is kept
  wish.overwrite = config.overwrite_output_dir;
  wish.merge = wish.from_file = true;
  return wish;
}

}  // namespace

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
    ExportWish of_file = wish_of_file(wish.path, overrides);
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
    wish.dtype = dtype_named(asked);
  }
  if (size > 0) wish.sizes.export_size = size, wish.sized = true;
  return wish;
}

}  // namespace octet::cli
