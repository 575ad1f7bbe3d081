#include "octet/train/start_checks.h"

#include "octet/base/error.h"
#include "octet/checkpoint/folder.h"
#include "octet/config/warnings.h"
#include "octet/runtime/instance.h"
#include "octet/setup/adapters.h"
#include "octet/setup/model_options.h"
#include "octet/train/fit.h"
#include "octet/train/ladder.h"
#include "start.h"

namespace octet::train {
namespace {

std::vector<std::string> fallbacks_of(const config::Config& config, const model::Architecture& architecture) {
  if (!config.fp8) return {};
  const std::int64_t micro = config.auto_find_batch_size ? 1 : config.per_device_train_batch_size;
  const plan::Choice choice{micro, setup::levels_of(config, kGpuKind).front()};
  return plan_fallbacks(worst_options(config, architecture, choice, 1), {}, kGpuKind);
}

}  // namespace

std::string resumption(const config::SaveKeys& c) {
  const auto checkpoints = checkpoint::list_checkpoints(c.output_dir);
  if (checkpoints.empty() || c.overwrite_output_dir || c.resume_from_checkpoint == "false" ||
      names_checkpoint(c))
    return "";
  return "output_dir holds " + checkpoints.back().second +
         ": the run resumes from it, and trains nothing if it is complete; to do: name another output_dir, "
         "or set overwrite_output_dir: true, to start again";
}

config::Strings doubts(const config::Resolved& resolved, const model::Architecture& architecture) {
  const config::Config& c = resolved.config;
  config::Strings all = config::doubts(resolved);
  if (architecture.max_positions > 0 && c.cutoff_len > architecture.max_positions) {
    all.push_back(config::placed(resolved, {"cutoff_len"},
                                 "cutoff_len " + std::to_string(c.cutoff_len) + " is more than the " +
                                     std::to_string(architecture.max_positions) +
                                     " positions that the model was made for: it has not learned later "
                                     "ones; to do: lower cutoff_len"));
  }
  if (setup::trains_adapters(c) && architecture.experts.count > 0) {
    const std::string unread = setup::unread_by_peft(
        setup::adapter_wish(c),
        setup::tuned(c, setup::model_of_stage(c, architecture, c.model_name_or_path)).tuning);
    if (!unread.empty()) all.push_back(config::placed(resolved, {"lora_target"}, unread));
  }
  const auto checkpoints = checkpoint::list_checkpoints(c.output_dir);
  if (!checkpoints.empty() && c.overwrite_output_dir) {
    all.push_back(config::placed(
        resolved, {"overwrite_output_dir"},
        "overwrite_output_dir: the checkpoints of output_dir are deleted, unless " +
            checkpoints.back().second +
            " belongs to this run, and the run is not complete; to do: name another output_dir to "
            "keep them"));
  }
  if (!checkpoints.empty() && c.resume_from_checkpoint == "false" && !c.overwrite_output_dir) {
    all.push_back(config::placed(
        resolved, {"resume_from_checkpoint"},
        "resume_from_checkpoint: false starts from the beginning, but " + checkpoints.back().second +
            " of an earlier run stays in output_dir: a later start resumes from the newest of both; to do: "
            "name another output_dir, or set overwrite_output_dir: true in place of resume_from_checkpoint"));
  }
  return all;
}

void require_no_fallback(const config::Config& config, const model::Architecture& architecture) {
  if (config.fp8_fallback != "error") return;
  const std::vector<std::string> fallbacks = fallbacks_of(config, architecture);
  if (!fallbacks.empty()) throw Error(runtime::fp8_refusal(fallbacks));
}

config::Strings fp8_fallbacks(const config::Config& config, const model::Architecture& architecture) {
  config::Strings all;
  const bool ends = config.fp8_fallback == "error";
  for (const std::string& line : fallbacks_of(config, architecture)) {
    all.push_back("a GEMM should run in FP8, but cannot on a GPU: " + line +
                  (ends ? ", and fp8_fallback: error ends the run before its first step; " : "; ") +
                  runtime::kFp8Shapes + (ends ? ", or set fp8_fallback: warn" : ""));
  }
  return all;
}

}  // namespace octet::train
