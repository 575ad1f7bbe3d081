#include "octet/setup/run_options.h"

#include <algorithm>
#include <string>

#include "octet/config/derive.h"

namespace octet::setup {
namespace {

// The configuration has checked the words, here as in the other files of this room.
When when(const std::string& strategy) {
  if (strategy == "steps") return When::steps;
  return strategy == "epoch" ? When::epoch : When::never;
}

DType stored_as(const std::string& dtype) {
  if (dtype == "bf16") return DType::bf16;
  return dtype == "int8" ? DType::u8 : DType::f32;
}

}  // namespace

When saves_when(const config::SaveKeys& config) {
  return when(config.save_strategy);
}

bool leaves_saves_open(const config::SaveKeys& config) {
  return config.save_async == "auto" && saves_when(config) != When::never;
}

bool saves_beside(const config::SaveKeys& config) {
  return config.save_async == "true" && saves_when(config) != When::never;
}

bool saves_before_the_end(const config::Resolved& resolved, std::int64_t total_steps, std::int64_t epoch) {
  if (chooses_save_steps(resolved)) return true;
  switch (saves_when(resolved.config)) {
    case When::steps:
      return config::interval_steps(resolved.config.save_steps, total_steps) < total_steps;
    case When::epoch:
      return epoch < total_steps;
    case When::never:
      break;
  }
  return false;
}

bool chooses_memory_steps(const config::SaveKeys& config) {
  return config.memory_checkpoint_steps == config::kAutomatic;
}

bool chooses_save_steps(const config::Resolved& resolved) {
  return resolved.config.mtbf_hours && !resolved.is_set("save_steps") &&
         saves_when(resolved.config) == When::steps;
}

When evaluates_when(const config::EvaluationKeys& config) {
  return when(config.eval_strategy);
}

CastLog cast_log(const config::PrecisionKeys& config) {
  if (!config.fp8 || config.fp8_statistics == "none") return CastLog::none;
  return config.fp8_statistics == "layers" ? CastLog::layers : CastLog::worst;
}

bool is_pretraining(const config::TemplateKeys& config) {
  return config.stage == "pt";
}

bool is_strict(const config::MachineKeys& config) {
  return config.deterministic == "strict";
}

bool leaves_recompute_open(const config::MemoryKeys& config) {
  return config.recompute() == "auto";
}

store::Storage storage_of(const config::PrecisionKeys& config) {
  return {.parameters = stored_as(config.param_dtype),
          .gradients = stored_as(config.grad_dtype),
          .moments = stored_as(config.optim_dtype)};
}

DType export_dtype(const config::PrecisionKeys& config) {
  const std::string name = config.export_dtype.value_or(config::computes_in_bf16(config) ? "bf16" : "fp32");
  return name == "fp16" ? DType::f16 : name == "bf16" ? DType::bf16 : DType::f32;
}

std::int64_t export_bytes(const config::SaveKeys& config) {
  return static_cast<std::int64_t>(std::clamp(config.export_size * 1e9, 1.0, 1e18));
}

FaultAction fault_action(const config::FaultKeys& config) {
  return config.sdc_action == "rollback" ? FaultAction::rollback : FaultAction::stop;
}

SpikeOptions spike_options(const config::FaultKeys& config) {
  return {.loss_factor = config.loss_spike_factor,
          .norm_factor = config.grad_norm_spike_factor,
          .action = config.spike_action == "rollback" ? SpikeAction::rollback
                    : config.spike_action == "stop"   ? SpikeAction::stop
                                                      : SpikeAction::skip};
}

}  // namespace octet::setup
