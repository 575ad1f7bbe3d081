#include "places.h"

#include <algorithm>
#include <array>
#include <utility>

#include "octet/base/error.h"
#include "octet/config/derive.h"
#include "octet/supervise/job_command.h"

namespace octet::supervise {
namespace {

// Starts in a row that hang before the number of ranks is reduced.
constexpr int kHangs = 3;

}  // namespace

config::Config config_of(const Command& command) {
  constexpr std::array kElsewhere{"-wdir", "--wdir", "-wd", "--wd"};
  config::Config config = config::load(command.arguments).config;
  const auto moves = [&](const std::string& word) {
    return std::ranges::find(kElsewhere, word) != kElsewhere.end();
  };
  if (config.output_dir.starts_with('/') || std::ranges::none_of(command.launcher, moves)) return config;
  throw Error(
      {.what =
           "the ranks and launch/supervise have different working folders, so a relative output_dir differs",
       .expected = "a path that begins with /",
       .found = "output_dir: " + config.output_dir,
       .where = "command line",
       .fix = "write an absolute output_dir, or remove mpirun's working folder",
       .code = ExitCode::usage});
}

Places::Places(Command command, const config::BatchKeys& config, int min_ranks)
    : command_(std::move(command)), config_(config), min_ranks_(min_ranks), wanted_(ranks()) {
  if (min_ranks_ == 0) return;
  if (wanted_ < min_ranks_ || min_ranks_ < 0) {
    throw Error(
        {.what = "--min-ranks does not fit the number of ranks",
         .expected = wanted_ == 0 ? "launch/mpirun's argument -np N" : "1 to " + std::to_string(wanted_),
         .found = std::to_string(min_ranks_),
         .where = "command line",
         .fix = "give launch/mpirun -np, and at most this number as --min-ranks",
         .code = ExitCode::usage});
  }
  if (config_.global_batch_size) return;
  // Values that depend on the number of ranks must not change with it.
  const bool automatic = config_.gradient_accumulation_steps == config::kAutomatic;
  if (config_.auto_find_batch_size && !automatic) {
    throw Error({.what = "--min-ranks needs a step size that does not depend on the device's memory",
                 .expected = "global_batch_size",
                 .found = "auto_find_batch_size: true with gradient_accumulation_steps",
                 .where = "command line",
                 .fix = "set global_batch_size instead of gradient_accumulation_steps",
                 .code = ExitCode::usage});
  }
  config::BatchKeys smallest = config_;
  if (config_.auto_find_batch_size) smallest.per_device_train_batch_size = 1;
  const config::Batch batch = config::resolve_batch(smallest, wanted_);
  config_.global_batch_size = batch.global;
  overrides_.push_back("global_batch_size=" + std::to_string(batch.global));
  if (!std::exchange(config_.gradient_accumulation_steps, std::nullopt)) return;
  overrides_.emplace_back("gradient_accumulation_steps=null");
}

int Places::fitting(int most) const {
  for (int ranks = most; ranks >= std::max(1, min_ranks_); --ranks) {
    if (runs_on(config_, ranks)) return ranks;
  }
  return 0;
}

std::string Places::after(int code, bool stepped, const Fault& fault) {
  if (min_ranks_ == 0) return "";
  for (const std::string& host : fault.lost_hosts) {
    Command without = command_;
    const auto slots = leave_out(without, host);
    const int next = slots ? fitting(std::min(wanted_, *slots)) : 0;
    if (next == 0) continue;
    command_ = without;
    set_ranks(command_, next);
    hangs_ = 0;
    return "the run continues without host " + host + ", with " + std::to_string(next) + " ranks";
  }
  const bool hung = code == static_cast<int>(ExitCode::hang) && !stepped;
  hangs_ = hung ? hangs_ + 1 : 0;
  if (hangs_ < kHangs) return "";
  const int next = fitting(ranks() - 1);
  if (next == 0) return "";
  set_ranks(command_, next);
  hangs_ = 0;
  return "the run continues with " + std::to_string(next) + " ranks: " + std::to_string(kHangs) +
         " starts with more ranks did not reach their first step";
}

}  // namespace octet::supervise
