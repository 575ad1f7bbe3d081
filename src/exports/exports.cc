#include "octet/exports/exports.h"

#include <unistd.h>

#include <filesystem>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/checkpoint/folder.h"
#include "octet/checkpoint/hub_export.h"
#include "octet/data/template_encoder.h"
#include "octet/files/folder_lock.h"
#include "octet/runtime/model_folder.h"
#include "octet/setup/adapters.h"
#include "octet/setup/model_options.h"
#include "octet/setup/run_options.h"
#include "octet/train/run_exports.h"
#include "octet/train/start_checks.h"

namespace octet::exports {
namespace {

constexpr const char* kPutBack = "restore the file";

/// Its constructor and its destructor remove a temporary folder. A killed process with the same
/// process id may have left the folder.
class Cleared {
 public:
  explicit Cleared(std::string folder) : folder_(std::move(folder)) { clear(); }
  ~Cleared() { clear(); }
  Cleared(const Cleared&) = delete;
  Cleared& operator=(const Cleared&) = delete;

 private:
  void clear() const {
    std::error_code code;
    std::filesystem::remove_all(folder_, code);
  }
  std::string folder_;
};

using Paths = std::vector<std::string>;

Paths within(const std::string& folder, const std::vector<std::string>& files) {
  Paths paths;
  for (const std::string& file : files) paths.push_back(folder + "/" + file);
  return paths;
}

/// Returns the tokenizer of a folder, with the tokens that its template adds; null if the folder has none.
std::unique_ptr<data::TemplateEncoder> encoder_of(const data::TemplateEncoderOptions& options) {
  if (!path_exists(options.folder + "/tokenizer.json")) return nullptr;
  return std::make_unique<data::TemplateEncoder>(options);
}

struct Merge {
  std::vector<std::string> adapters;
  std::string model, folder;
  DType dtype = DType::f32;
  std::int64_t shard_bytes = 0;
  bool overwrite = false;
};

Paths write_merged(const Merge& merge, const data::TemplateEncoder* encoder) {
  checkpoint::ExportOptions options;
  options.folder = merge.folder;
  options.source_folder = merge.model;
  options.dtype = merge.dtype;
  options.shard_bytes = merge.shard_bytes;
  options.overwrite = merge.overwrite;
  if (encoder != nullptr) {
    options.complete = [&](const std::string& folder) {
      train::write_tokenizer(folder, merge.model, *encoder);
    };
  }
  return within(merge.folder, train::export_merged(options, merge.adapters));
}

void require_model(const std::string& folder, const std::string& what) {
  if (path_exists(folder + "/config.json")) return;
  throw Error({.what = what + " does not exist",
               .expected = "config.json and tokenizer files",
               .where = folder,
               .fix = "name its folder with --model",
               .code = ExitCode::usage});
}

/// Merges adapters into a model and writes the result. Both are stored in folders, not in a checkpoint.
Paths export_adapters(const ExportWish& wish, const std::vector<std::string>& above) {
  const bool adapter = path_exists(wish.path + "/adapter_config.json");
  if (adapter && !wish.merge) {
    throw Error({.what = "the folder has an adapter, which can be used without an export",
                 .expected = "a checkpoint, or --merge with an adapter",
                 .found = "adapter_config.json, no --merge",
                 .where = wish.path,
                 .fix = "add --merge to write a whole model",
                 .code = ExitCode::usage});
  }
  setup::NamedModel named{.folder = wish.model, .adapters = above};
  if (!wish.model.empty() && adapter) {
    named.adapters.insert(named.adapters.begin(), wish.path);
  } else {
    named = setup::named_model(wish.path, above);
  }
  require_model(named.folder, "the base model of the adapter");
  // Training may add tokens. The tokenizer of the last adapter that has one contains all of them.
  std::string tokenizer = named.folder;
  for (const std::string& one : named.adapters) {
    if (path_exists(one + "/tokenizer.json")) tokenizer = one;
  }
  data::TemplateEncoderOptions words = wish.words;
  words.folder = tokenizer;
  const bool writes_tokenizer = words.template_name || tokenizer != named.folder;
  const auto encoder = writes_tokenizer ? encoder_of(words) : nullptr;
  return write_merged({.adapters = named.adapters,
                       .model = named.folder,
                       .folder = wish.folder,
                       .dtype = wish.dtype.value_or(train::weights_dtype(named.folder)),
                       .shard_bytes = setup::export_bytes(wish.sizes),
                       .overwrite = wish.overwrite},
                      encoder.get());
}

/// Exports the adapters of a checkpoint as a PEFT folder or, if they are merged, as a whole model.
Paths export_trained_adapters(const ExportWish& wish, const config::Config& run,
                              const train::ModelExport& e) {
  const auto encoder = encoder_of(setup::encoder_options(run, run.model_name_or_path));
  if (encoder) train::require_template_of(checkpoint::Checkpoint(e.checkpoint), run, *encoder, kPutBack);
  train::AdapterExport adapter{.folder = wish.folder,
                               .checkpoint = e.checkpoint,
                               .overwrite = wish.overwrite,
                               .encoder = encoder.get()};
  if (!wish.merge) {
    return within(wish.folder, train::export_adapter(adapter, run));
  }
  adapter.folder = wish.folder + ".adapter.tmp-" + std::to_string(::getpid());
  const Cleared cleared{adapter.folder};
  train::export_adapter(adapter, run);
  std::vector<std::string> adapters = setup::given_adapters(run).added;
  adapters.push_back(adapter.folder);
  return write_merged({.adapters = adapters,
                       .model = e.model,
                       .folder = wish.folder,
                       .dtype = e.dtype,
                       .shard_bytes = e.shard_bytes,
                       .overwrite = wish.overwrite},
                      encoder.get());
}

Paths export_trained(const ExportWish& wish) {
  const checkpoint::Checkpoint checkpoint(wish.path);
  checkpoint::require_own_name(wish.path, checkpoint.step());
  config::Config run =
      config::load_text(checkpoint.config_yaml(), wish.path + " (configuration)", {}, {.for_training = false})
          .config;
  if (wish.sized) run.export_size = wish.sizes.export_size;
  train::ModelExport e{.checkpoint = wish.path,
                       .model = wish.model.empty() ? run.model_name_or_path : wish.model,
                       .folder = wish.folder,
                       .dtype = wish.dtype.value_or(setup::export_dtype(run)),
                       .shard_bytes = setup::export_bytes(run),
                       .overwrite = wish.overwrite,
                       .part = setup::trains_parts(run),
                       .fresh = run.train_from_scratch};
  require_model(e.model, "the model that the run started from");
  runtime::require_model_of(checkpoint, e.model);
  // The configuration of the run gives the template and its options. The model folder may have moved.
  run.model_name_or_path = e.model;
  if (setup::trains_adapters(run)) return export_trained_adapters(wish, run, e);
  if (wish.merge) {
    throw Error({.what = "the checkpoint holds no adapters to merge",
                 .expected = "a checkpoint of a run with finetuning_type: lora",
                 .found = "finetuning_type: " + run.finetuning_type,
                 .where = wish.path,
                 .fix = "leave --merge out: the checkpoint is a whole model",
                 .code = ExitCode::usage});
  }
  const auto encoder = encoder_of(setup::encoder_options(run, run.model_name_or_path));
  if (encoder) train::require_template_of(checkpoint, run, *encoder, kPutBack);
  return within(e.folder, train::export_model(e, encoder.get()));
}

}  // namespace

std::vector<std::string> export_model(ExportWish wish) {
  const auto lock = files::lock_output(wish.folder);
  const bool folders =
      wish.from_file || !wish.adapters.empty() || path_exists(wish.path + "/adapter_config.json");
  if (!folders) wish.path = checkpoint::checkpoint_of_run(wish.path);
  return folders ? export_adapters(wish, wish.adapters) : export_trained(wish);
}

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
