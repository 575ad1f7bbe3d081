#include "octet/base/error.h"
#include "octet/exports/exports.h"
#include "octet/setup/adapters.h"
#include "octet/setup/data_options.h"
#include "octet/setup/run_options.h"

namespace octet::exports {
namespace {

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

}  // namespace

ExportWish read_configuration(const std::string& path, const std::vector<std::string>& overrides) {
  // An export merges adapters, whatever finetuning_type says.
  std::vector<std::string> all{path};
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
  wish.dtype = config.export_dtype ? setup::export_dtype(config) : inferred_dtype(resolved);
  wish.sizes.export_size = config.export_size;
  wish.words = setup::encoder_options(config, config.model_name_or_path);
  wish.words.match_template = false;  // without a name, the folder's own chat template is kept
  wish.overwrite = config.overwrite_output_dir;
  wish.merge = wish.from_file = true;
  return wish;
}

}  // namespace octet::exports
