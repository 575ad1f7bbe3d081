// Micro-batches on their way from the host to the device, and losses on their way back.
#pragma once

#include <cstdint>
#include <vector>

#include "octet/device/device.h"
#include "octet/model/transformer.h"
#include "octet/runtime/host_batch.h"

namespace octet::runtime {

/// The most that a batch holds.
struct StagingOptions {
  std::int64_t tokens = 0;
  std::int64_t labels = 0;     ///< 0: as many as tokens
  std::int64_t documents = 1;  ///< of a batch as it comes, and one more where it is filled up
  std::int64_t length = 0;     ///< of a document
  std::int64_t vocabulary = 0;
  /// Batches are filled up to a multiple of so many tokens by a document without labels.
  std::int64_t token_unit = 1;
  int host_sets = 1;    ///< batches that are on their way at once
  bool losses = false;  ///< a sum of losses for each of them, else one
  bool names = false;   ///< tokens have names on the device, too
};

/// Buffers between host and device. One set on the device suffices, because copies and kernels share a
/// stream; on the host every batch that is on its way has its own, because the device may read it until the
/// stream is waited for.
class Staging {
 public:
  /// Reserves both sides in `arena` by name ("batch/ids", …), the host's pinned.
  Staging(Arena& arena, const StagingOptions& options);
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Enqueues the copy of a batch, by way of a host set that the device does not read any more. What it gives
  /// holds until the next call. Throws Error for ids outside the vocabulary (usage) and batches that are
  /// larger than planned.
  model::MicroBatch upload(Stream& stream, const HostBatch& batch, std::size_t host_set = 0);
  /// What the names of tokens are mixed with from here on: a number of seed and step.
  void set_noise(std::uint64_t noise) { noise_ = noise; }

  /// Device: [losses()], where a core adds the losses of batches.
  double* loss_sum() const { return loss_sum_; }
  std::size_t losses() const { return losses_; }
  /// Enqueues zeros there, and the copy of the first `count` to the host.
  void clear_losses(Stream& stream, std::size_t count);
  void fetch_losses(Stream& stream, std::size_t count);
  /// [losses()], once the stream was waited for.
  const double* host_losses() const { return host_losses_; }

 private:
  void check_batch(const HostBatch& batch) const;
  model::MicroBatch send(Stream& stream, const HostBatch& batch, std::size_t host_set);
  void send_names(Stream& stream, const HostBatch& batch, std::uint64_t* host);

  Device& device_;
  StagingOptions options_;
  std::size_t sets_;
  // Pinned if that matters: a block for each set. There may be a million sets, of which few are used.
  std::int32_t* host_words_ = nullptr;
  std::uint64_t* host_names_ = nullptr;
  std::size_t words_of_set_ = 0, names_of_set_ = 0;
  std::vector<std::vector<std::int32_t>> cu_seqlens_of_;  ///< of the sets that were used
  std::int32_t *ids_ = nullptr, *positions_ = nullptr, *label_rows_ = nullptr, *targets_ = nullptr,
               *cu_seqlens_ = nullptr;
  std::uint64_t* names_ = nullptr;  ///< null where they are not wanted
  std::uint64_t noise_ = 0;
  std::size_t losses_ = 1;
  double* loss_sum_ = nullptr;
  double* host_losses_ = nullptr;
};

}  // namespace octet::runtime
