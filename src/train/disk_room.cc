#include "disk_room.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>

#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "octet/config/derive.h"
#include "octet/setup/run_options.h"

namespace octet::train {
namespace {

constexpr std::int64_t kFiles = 64;  // of a run beside its checkpoints, generously

// Saves between first_step and total_steps, the one at the end included.
std::int64_t saves_to_come(const config::Config& config, const DiskFacts& facts) {
  const setup::When when = setup::saves_when(config);
  if (when == setup::When::never) return 1;
  const std::int64_t every = when == setup::When::epoch
                                 ? std::max<std::int64_t>(1, facts.steps_per_epoch)
                                 : config::interval_steps(config.save_steps, facts.total_steps);
  return facts.total_steps / every - facts.first_step / every + (facts.total_steps % every != 0 ? 1 : 0);
}

// One moment of one element, the scales of 8-bit ones included.
double moment_bytes(DType format) {
  return format == DType::u8 ? 1 + 4.0 / 128 : static_cast<double>(size_of(format));
}

std::string text(std::int64_t bytes) {
  return human_bytes(static_cast<double>(bytes));
}

}  // namespace

DiskNeed disk_need(const config::Config& config, const DiskFacts& facts) {
  const store::Storage storage = setup::storage_of(config);
  const auto of_parameter = static_cast<double>(size_of(storage.parameters));
  const auto parameters = static_cast<double>(facts.parameters);
  DiskNeed need;
  need.checkpoint_bytes =
      static_cast<std::int64_t>(parameters * (of_parameter + 2 * moment_bytes(storage.moments)));
  need.model_bytes = facts.parameters * static_cast<std::int64_t>(size_of(setup::export_dtype(config)));
  need.checkpoints = saves_to_come(config, facts);
  if (config.save_total_limit) {
    // A new one is whole before an old one goes.
    need.checkpoints = std::min(need.checkpoints,
                                std::max<std::int64_t>(1, *config.save_total_limit + 1 - facts.checkpoints));
  }
  return need;
}

DiskState disk_state(const std::string& folder) {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) return {};
  const bool root = ::geteuid() == 0;
  DiskState state;
  state.free_bytes = static_cast<std::int64_t>((root ? disk.f_bfree : disk.f_bavail) * disk.f_frsize);
  // File systems without a fixed number of files say 0 of 0.
  if (disk.f_files > 0) state.free_files = static_cast<std::int64_t>(root ? disk.f_ffree : disk.f_favail);
  return state;
}

std::string check_disk(const DiskNeed& need, const DiskState& disk, const std::string& folder) {
  const std::string count = std::to_string(need.checkpoints);
  if (disk.free_bytes >= 0 && disk.free_bytes < need.least()) {
    throw Error({.what = "the disk has no room for this run",
                 .expected = text(need.least()) + " at least, for " +
                             (need.checkpoints < 2 ? count + " checkpoint of " : "two checkpoints of ") +
                             text(need.checkpoint_bytes) + " and the final model of " +
                             text(need.model_bytes),
                 .found = text(disk.free_bytes) + " free",
                 .where = folder,
                 .fix = "free some disk space, or choose another output_dir",
                 .code = ExitCode::storage});
  }
  // A checkpoint is a folder with two files, and one under its temporary name.
  if (disk.free_files >= 0 && disk.free_files < kFiles + 4 * need.checkpoints) {
    throw Error({.what = "the disk has no room for this run's files",
                 .expected = std::to_string(kFiles + 4 * need.checkpoints) + " files (inodes)",
                 .found = std::to_string(disk.free_files) + " free",
                 .where = folder,
                 .fix = "remove files, or choose another output_dir",
                 .code = ExitCode::storage});
  }
  if (disk.free_bytes < 0 || disk.free_bytes >= need.all()) return "";
  return "the disk will be full before the run ends: " + count + " checkpoints of " +
         text(need.checkpoint_bytes) + " and the model of " + text(need.model_bytes) + " make " +
         text(need.all()) + ", and " + text(disk.free_bytes) + " are free in " + folder +
         "; save_total_limit keeps fewer, save_steps saves less often";
}

}  // namespace octet::train
