// The output of a run before its first step: warnings, notes, the table of the start, and the
// reporter's first lines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "faults/step_guard.h"
#include "octet/base/timing.h"
#include "octet/device/device.h"
#include "octet/train/start_rows.h"
#include "run_context.h"
#include "saves/saves.h"
#include "sizing/sizing.h"

namespace octet::train {

// Measures the GEMM speed of a device, to estimate the time of a run.

struct GemmShape {
  std::int64_t rows = 0, cols = 0, inner = 0;
};

/// Returns the FLOP/s of a GEMM of this shape, with at most 1,024 columns and 256 rows. Takes a few
/// milliseconds. Ranks that share cores measure their share if all call this function concurrently.
double gemm_rate(Device& device, DType dtype, GemmShape shape);

class StartNotes {
 public:
  /// All must outlive the object. The time of the start counts from here.
  StartNotes(RunContext& run, RunParts& parts, const Sizing& sizing, const Saves& saves)
      : run_(run), parts_(parts), sizing_(sizing), saves_(saves) {}

  /// Logs the device and the ranks.
  void say_device() const;
  /// Opens the file for errors on ranks that do not print.
  void open_error_log() const;
  /// Warns of settings that are rarely intended. The architecture is known.
  void warn_of_doubts() const;
  /// Measures the speed of a CPU, to estimate the time of the run. All ranks of a host call it concurrently.
  void measure();
  /// Opens the reporter and prints the start of the run. `from`: its start, in words of report::Progress.
  /// Collective.
  void begin(const std::string& from);
  /// Opens the reporter again after a return from step `left` to the run's checkpoint. Collective.
  void begin_again(const std::string& from, std::int64_t left, Back how);

 private:
  void open_reporter(const std::string& from);
  StartFacts facts() const;
  void say_notes() const;
  /// Warns if a step has more samples than an epoch.
  void say_batch() const;
  /// Logs the FP8 core, the formats of all GEMMs, and a warning if FP8 costs more than it saves on this
  /// device.
  void say_fp8() const;
  void say_memory() const;
  /// Logs how much optimizer state is stored in host memory.
  void say_state_of_host() const;
  /// Prints the lines for SFT-Play and the banner.
  void say_tables(const std::vector<std::string>& start_lines) const;
  std::string training_log() const { return run_.config.output_dir + "/training.log"; }

  RunContext& run_;
  RunParts& parts_;
  const Sizing& sizing_;
  const Saves& saves_;
  Clock::time_point began_ = Clock::now();
  double gemm_rate_ = 0;  ///< FLOP/s of this rank; 0: not measured
};

}  // namespace octet::train
