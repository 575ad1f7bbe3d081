// The scalars of a run in TensorBoard.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "octet/base/json_fwd.h"
#include "octet/report/reporter.h"
#include "run_figures.h"

namespace octet::report {

// TensorBoard event files: TFRecord frames (length, masked CRC-32C, bytes, masked CRC-32C) of Event messages
// of tensorflow/core/util/event.proto, encoded by hand because four fields of it are used.

/// CRC-32C (Castagnoli), as RFC 3720 defines it.
std::uint32_t crc32c(std::string_view bytes);

/// One event file in a folder; every write is flushed whole. Not copyable.
class EventFile {
 public:
  /// Creates `folder` and a file in it. TensorBoard drops what earlier files of the folder say about
  /// first_step and later ones, so that a resumed run shows each step once. Throws Error.
  EventFile(const std::string& folder, std::int64_t first_step);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// Writes scalars of one step. Throws Error when the disk is full.
  void write(std::int64_t step, const std::vector<std::pair<std::string, double>>& scalars);
  const std::string& path() const { return path_; }

 private:
  void record(const std::string& event);
  std::string path_;
  std::FILE* file_ = nullptr;
};

/// Writes an event file with the tags of Hugging Face and Octet. After the constructor, an error of the disk
/// gives a warning.
class TensorBoard {
 public:
  /// Opens a file in logging_dir, or in output_dir/runs/DATE_HOST. A resumed run uses the newest folder of
  /// output_dir/runs. Throws Error.
  explicit TensorBoard(const RunFacts& facts);

  /// Writes the scalars of a step that is logged, with the means since the last logged step.
  void step(const StepFacts& step, const RunFigures& run);
  void evaluation(const EvalFacts& evaluation);
  /// Writes the results of the session at the last step. `train`: see RunFigures::train_results().
  void results(const Json& train, const RunFigures& run);
  std::string folder() const;

 private:
  using Scalars = std::vector<std::pair<std::string, double>>;
  void write(std::int64_t step, const Scalars& scalars);

  EventFile file_;
};

}  // namespace octet::report
