#include "octet/supervise/resumption.h"

#include <exception>

#include "octet/base/error.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/config/derive.h"

namespace octet::supervise {
namespace {

bool holds(const std::string& path) {
  try {
    checkpoint::Checkpoint(path).verify();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

Strings resume_overrides(const config::SaveKeys& config, const report::Progress& saved) {
  if (saved.saved_step < 0) return {};
  const std::string wish = config.resume_from_checkpoint.value_or("");
  const bool newest = wish == "true" || wish == "auto" || (wish.empty() && !config.overwrite_output_dir);
  // A run with overwrite_output_dir resumes from its own checkpoints until its last step is saved. After that
  // it would start anew.
  const bool finds_itself =
      wish.empty() && config.overwrite_output_dir && saved.saved_step < saved.total_steps;
  if (newest || finds_itself || !holds(saved.saved)) return {};
  return {"resume_from_checkpoint=" + saved.saved};
}

bool runs_on(const config::BatchKeys& config, int ranks) {
  try {
    if (config.auto_find_batch_size) {
      config::possible_micro_batches(config, ranks);
    } else {
      config::resolve_batch(config, ranks);
    }
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace octet::supervise
