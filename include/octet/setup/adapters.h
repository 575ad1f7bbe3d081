#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "octet/base/json_fwd.h"
#include "octet/config/keys.h"
#include "octet/model/architecture.h"
#include "octet/runtime/adapter_file.h"

namespace octet::setup {

/// The requested adapters, in PEFT's terms.
struct AdapterWish {
  std::int64_t rank = 8;
  double alpha = 8;
  bool rslora =
      false;  ///< the factor is alpha / sqrt(rank) (Kalajdzievski 2023, arXiv:2312.03732), not alpha / rank
  bool dora = false;         ///< with magnitudes (model::AdapterShape::dora)
  double dropout = 0;        ///< of the input of A
  double output_rate = 1.0;  ///< LoRA+: model::Tuning::output_rate
  bool all = false;          ///< every linear module of the blocks gets an adapter
  std::vector<std::string>
      targets;             ///< or modules with one of these names, or with a name that ends in ".NAME"
  std::string expression;  ///< or a regular expression: modules with a full name that matches it
  /// Parameters of all experts of a block, named like `targets`: "experts.down_proj", or
  /// "experts.gate_up_proj" for gate and up as one module. Each expert gets an adapter. Modules of experts
  /// are then no targets.
  std::vector<std::string> parameters = {};
  /// Ranks and alphas of modules, by expressions that match the name or the part of the name after a dot. The
  /// first match counts.
  std::vector<std::pair<std::string, std::int64_t>> ranks;
  std::vector<std::pair<std::string, double>> alphas;
  /// Modules that are trained whole: embed_tokens, lm_head. A tied table counts as one module.
  std::vector<std::string> whole;
  /// Whether embedding and head stay one table if the model ties them (PEFT's ensure_weight_tying).
  bool ties = true;
  std::string where;  ///< for messages: a file, or configuration keys
};

/// Reads an adapter_config.json. Throws Error with the key for methods other than LoRA, and for unsupported
/// or unknown keys.
AdapterWish read_adapter_config(const Json& config, const std::string& where);

/// Reads the adapter config of a folder that PEFT wrote. Throws Error (usage) if the folder holds no adapter,
/// and like read_adapter_config().
AdapterWish read_adapter_folder(const std::string& folder);

/// Whether a configuration requests adapters.
bool trains_adapters(const config::TuningKeys& config);

/// Splits a list of adapter folders at its commas. Throws Error (usage) for an empty name.
std::vector<std::string> adapter_folders(const std::string& names);

/// The adapters of adapter_name_or_path, in a run that trains adapters.
struct GivenAdapters {
  std::vector<std::string> added;  ///< folders of adapters that are added to the base's weights
  std::optional<std::string>
      continued;  ///< folder of the adapter that is trained further; nothing: a new adapter is trained
};

/// Returns the adapters of a configuration. The last adapter is trained further, and the others are added to
/// the base. With create_new_adapter, all are added. Empty if no adapters are trained.
GivenAdapters given_adapters(const config::TuningKeys& config);

/// Returns whether the adapter in a folder has the head of a reward model. Throws Error (usage) for an
/// adapter that cannot be read.
bool is_reward_adapter(const std::string& folder);

/// Reads the adapters of these folders, to add them to the weights of a base. `base`: its architecture
/// without adapters. Throws Error (usage) for an adapter of another model.
std::vector<runtime::AddedAdapter> added_adapters(const std::vector<std::string>& folders,
                                                  const model::Architecture& base);

/// A model, as the user names it.
struct NamedModel {
  std::string folder;                 ///< of the whole model
  std::vector<std::string> adapters;  ///< folders of adapters on top, in order
};

/// Resolves `path`: a model, or an adapter with its base from base_model_name_or_path. `adapters` are added
/// on top. Throws Error (usage) if the base of an adapter does not exist.
NamedModel named_model(const std::string& path, const std::vector<std::string>& adapters = {});

/// Returns the adapters of a configuration with finetuning_type `lora`. They come from its keys, or from the
/// adapter_config.json of an adapter that is trained further. Throws Error like read_adapter_config().
AdapterWish adapter_wish(const config::TuningKeys& config);

/// Assigns the requested adapters to modules of the model. Throws Error for an invalid rank or alpha, for a
/// rank above a dimension of a module, for an unknown target (with the nearest name), and for a target that
/// is not a linear module.
model::Tuning tuning_of(const AdapterWish& wish, const model::Architecture& architecture);

/// Returns a warning if PEFT with transformers 5, which stacks the weights of experts, does not read the
/// written adapters. Otherwise, returns an empty text.
std::string unread_by_peft(const AdapterWish& wish, const model::Tuning& tuning);

/// Returns the architecture with the adapters of a configuration, if any, or with its frozen modules
/// (setup/model_options.h). Throws Error like tuning_of().
model::Architecture tuned(const config::TuningKeys& config, model::Architecture architecture);

/// Returns the adapter_config.json of trained adapters. It has the keys that every version of PEFT reads, and
/// other keys if they are not empty. Module names are sorted as in PEFT, and listed one by one if all modules
/// have an adapter. `base`: base_model_name_or_path.
Json adapter_config(const AdapterWish& wish, const model::Architecture& architecture,
                    const std::string& base);

}  // namespace octet::setup
