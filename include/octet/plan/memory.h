// The plan room: the memory and the least time of a run, before it starts. The memory of a rank is measured,
// not modelled: the caller builds the rank on a dry device and passes its reservations (memory.h). The time
// is modelled from counts of operations and bytes (time.h). advice.h recommends settings.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "octet/device/device.h"

namespace octet::plan {

struct MemoryRow {
  std::string name;
  std::size_t bytes = 0;
};

/// Memory of one rank; all ranks hold the same.
struct Memory {
  std::vector<MemoryRow> rows;  ///< of the device, by the whole name, largest first
  std::size_t bytes = 0;        ///< of all rows
  /// Host memory: pinned buffers of transfers, held all the time, and the largest allocations between steps.
  std::vector<MemoryRow> pinned, host;
  /// Bytes that the update of a step reads and writes on the device, from the store. The rows do not tell
  /// this part of a buffer.
  std::size_t update = 0;
  /// Returns the bytes that grow with the micro-batch: activations, head, workspace, batch.
  std::size_t of_tokens() const;
  /// The optimizer's state in the host's memory: masters and moments, which an update reads and writes there.
  std::size_t state_of_host() const;
  std::size_t masters_of_host() const;  ///< of these
  /// All that is held there between the steps and inside them.
  std::size_t pinned_bytes() const;
  /// Rows added up by the first part of their names, largest first.
  std::vector<MemoryRow> by_part() const;
};

/// The reservations of an arena, with `more` rows that others hold (messages on their way).
Memory memory_of(const Arena& arena, const std::vector<MemoryRow>& more = {});

/// Returns DeviceTraits::library_bytes: bytes that a process uses on a device in addition to its
/// reservations.
std::size_t library_bytes(DeviceKind kind);

/// What NCCL 2.28 takes on a GPU: a gigabyte once, and 288 MiB for each communicator. Measured with two H200:
/// 1.28 GiB where it only sums, 1.56 where it carries gathers and reductions.
constexpr std::size_t nccl_bytes(int communicators) {
  const auto mib = std::size_t{1} << 20;
  return communicators == 0 ? 0 : 1024 * mib + static_cast<std::size_t>(communicators) * 288 * mib;
}

/// "141GB", "80 GiB", "512MiB" or a plain number of bytes. Throws Error (usage) for anything else, which was
/// given as the command line's setting `name`.
std::size_t parse_bytes(const std::string& text, const std::string& name);

}  // namespace octet::plan
