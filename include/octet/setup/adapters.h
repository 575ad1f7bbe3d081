#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "octet/base/json.h"
#include "octet/config/config.h"
#include "octet/model/architecture.h"

namespace octet::setup {

/// The adapters that somebody asks for, in PEFT's terms.
struct AdapterWish {
  std::int64_t rank = 8;
  double alpha = 8;
  bool rslora =
      false;  ///< the factor is alpha / sqrt(rank) (Kalajdzievski 2023, arXiv:2312.03732), not alpha / rank
  bool dora = false;                 ///< with magnitudes (model::AdapterShape::dora)
  double dropout = 0;                ///< of what A reads
  double output_rate = 1.0;          ///< LoRA+: model::Tuning::output_rate
  bool all = false;                  ///< every linear module of the blocks gets one
  std::vector<std::string> targets;  ///< or those whose name is, or ends in a dot and, one of these
  std::string expression;            ///< or those whose whole name matches
  /// Ranks and alphas of modules whose name, or what of it is behind a dot, matches an expression; the first
  /// counts.
  std::vector<std::pair<std::string, std::int64_t>> ranks;
  std::vector<std::pair<std::string, double>> alphas;
  /// Modules that are trained whole: embed_tokens, lm_head. A tied table is one.
  std::vector<std::string> whole;
  std::string where;  ///< for messages: a file, or configuration keys
};

/// Of an adapter_config.json. Throws Error, naming the key, for other methods than LoRA and for what is not
/// built.
AdapterWish read_adapter_config(const Json& config, const std::string& where);

/// Whether a configuration asks for adapters.
bool trains_adapters(const config::Config& config);

/// What a configuration asks for with finetuning_type: lora: what its keys say, or, where it names an adapter
/// to go on with, what that one's adapter_config.json says. Throws Error as read_adapter_config() does.
AdapterWish adapter_wish(const config::Config& config);

/// The wish by modules of the model. Throws Error for a rank that is none, above a dimension of a module, or
/// for an alpha that is none; for a target that no module has, with the nearest name; and for one that is no
/// linear module.
model::Tuning tuning_of(const AdapterWish& wish, const model::Architecture& architecture);

/// The architecture with the adapters, if any, that a configuration asks for, or with what it freezes
/// (setup/freezing.h). Throws Error as above.
model::Architecture tuned(const config::Config& config, model::Architecture architecture);

/// adapter_config.json for adapters that were trained: the keys that every version of PEFT knows, and others
/// where they say something. `base`: base_model_name_or_path.
Json adapter_config(const AdapterWish& wish, const std::string& base);

}  // namespace octet::setup
