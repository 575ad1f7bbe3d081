#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "octet/data/encoded.h"
#include "octet/feed/sample_order.h"
#include "octet/runtime/staging.h"

namespace octet::feed {

/// Adds the documents of an item to a batch, which has its first cu_seqlens.
void add_item(runtime::HostBatch& batch, const data::Encoded& set, const data::Items& items,
              std::int64_t item);

/// Prepares micro-batches on a separate thread, ahead of the step: a whole step of them, unless they have
/// more than `most_tokens`. Each counts as at least 64 tokens.
class Loader {
 public:
  static constexpr std::int64_t kMostTokens = INT64_C(1) << 22;  ///< about 100 MiB
  /// `set` and `items` must outlive the loader. Starts at `first_step`.
  Loader(const data::Encoded& set, const data::Items& items, const SampleOrder& order, const Deal& deal,
         std::int64_t first_step, int ahead = 8, std::int64_t most_tokens = kMostTokens);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next micro-batch in order (step by step, micro-batch by micro-batch); empty when a partial step has
  /// no items for it. `waited_seconds`, if given, is raised by the time the call had to wait.
  runtime::HostBatch next(double* waited_seconds = nullptr);
  /// The Error that ended the preparation of micro-batches; null if there is none. Waits for the
  /// micro-batches of a step, or for as many as the loader holds. next() throws later errors.
  std::exception_ptr failure();
  /// Micro-batches that are laid flat and not taken.
  std::size_t waiting();

 private:
  void run();
  bool is_full() const;  ///< holds as much as it may, under the lock

  const data::Encoded& set_;
  const data::Items& items_;
  SampleOrder order_;
  Deal deal_;
  std::int64_t step_;
  std::size_t ahead_;
  std::int64_t most_tokens_;
  std::int64_t tokens_ = 0;  ///< of `ready_`
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<runtime::HostBatch> ready_;
  std::exception_ptr failure_;
  bool stop_ = false;
  std::thread thread_;
};

/// The batch of these items, in order; negative ones are left out.
runtime::HostBatch make_batch(const data::Encoded& set, const data::Items& items,
                              std::span<const std::int64_t> which);

}  // namespace octet::feed
