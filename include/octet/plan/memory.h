// The plan room: the memory and the least time of a run, before it starts. The memory of a rank is measured,
// not modelled: the caller builds the rank on a dry device and passes its reservations (memory.h). The time
// is modelled from counts of operations and bytes (time.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "octet/device/device.h"
#include "octet/model/transformer.h"

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

/// The activations that the backward pass recomputes instead of keeping.
struct Level {
  model::Recompute recompute = model::Recompute::none;
  bool transposes_at_use = false;  ///< FP8 weights, on GPUs
  bool operator==(const Level&) const = default;
};

/// What memory can be traded for.
struct Choice {
  std::int64_t micro = 1;  ///< samples of a micro-batch on a rank
  Level level;
  bool operator==(const Choice&) const = default;
};

/// From the cheapest to the least memory.
inline constexpr model::Recompute kRecompute[] = {model::Recompute::none, model::Recompute::norms,
                                                  model::Recompute::qkv, model::Recompute::full};
/// "none", "norms", "qkv", "full".
const char* name_of(model::Recompute level);
/// As keys of a configuration: "recompute=norms fp8_transposed_weights=at_use".
std::string keys_of(const Level& level);

/// Bytes that a rank holds with a choice; does not fall when the micro-batch grows.
using BytesOf = std::function<std::size_t(const Choice&)>;
/// Seconds a sample, at best.
using SecondsOf = std::function<double(const Choice&)>;

/// For each level the largest of `micros` (ascending) that fits `limit` bytes; levels at which none fits are
/// left out.
std::vector<Choice> largest_that_fit(const std::vector<std::int64_t>& micros,
                                     const std::vector<Level>& levels, std::size_t limit,
                                     const BytesOf& bytes_of);

/// The one with the least seconds a sample; of equals the first. Nothing when there is none to choose from.
std::optional<Choice> fastest(const std::vector<Choice>& choices, const SecondsOf& seconds_of);

}  // namespace octet::plan
