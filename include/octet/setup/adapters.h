#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "octet/base/json.h"
#include "octet/model/architecture.h"

namespace octet::setup {

/// The adapters that somebody asks for, in PEFT's terms.
struct AdapterWish {
  std::int64_t rank = 8;
  double alpha = 8;
  bool rslora =
      false;  ///< the factor is alpha / sqrt(rank) (Kalajdzievski 2023, arXiv:2312.03732), not alpha / rank
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

/// The wish by modules of the model. Throws Error for a rank that is none, above a dimension of a module, or
/// for an alpha that is none; for a target that no module has, with the nearest name; and for one that is no
/// linear module.
model::Tuning tuning_of(const AdapterWish& wish, const model::Architecture& architecture);

}  // namespace octet::setup
