// TensorBoard event files: TFRecord frames (length, masked CRC-32C, bytes, masked CRC-32C) of Event messages
// of tensorflow/core/util/event.proto, encoded by hand because four fields of it are used.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octet::report {

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

}  // namespace octet::report
