#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "octet/data/encoder.h"
#include "octet/feed/loader.h"
#include "octet/feed/sample_order.h"

namespace octet::feed {

/// Position of the next item of a stream. A resumed run finds it without reading earlier rows.
struct StreamPosition {
  std::int64_t epoch = 0;
  std::int64_t window = 0;  ///< number in the epoch, in training order
  std::int64_t item = 0;    ///< number in the window, in training order
  bool operator==(const StreamPosition&) const = default;
};

struct StreamOptions {
  std::int64_t window_rows = 16384;  ///< rows that are tokenised, packed and shuffled together
  std::int64_t global_batch = 1;     ///< items of a full step, over all ranks and micro-batches
  std::uint64_t seed = 0;
  bool shuffle = true;
  /// Above 1, an epoch leaves out its last items that do not fill such a group, as SampleOrder does.
  std::int64_t whole_groups_of = 1;
  int threads = 0;                  ///< threads of tokenisation; 0: one per core
  std::int64_t max_broken = 10;     ///< rows of an epoch that may be unreadable
  std::int64_t refuse_longer = 0;   ///< a row of more tokens ends the run; 0: such rows are cut
  std::set<data::RowKey> left_out;  ///< rows held out for evaluation
  /// Makes the items of a window. May replace the given documents.
  std::function<data::Items(data::Encoded&)> layout;
  /// If set, a loader's thread calls it for each window that it reads, with the window's number in row order.
  std::function<void(std::int64_t, const data::EncodingCounts&)> counted = {};
};

/// Rows that were tokenised together.
struct StreamWindow {
  data::Encoded set;
  data::Items items;
};

/// A data set that is tokenised during training. Memory holds two windows of rows, never the whole set. A
/// window is a range of consecutive rows of the mix. Each epoch has another order of windows, and each window
/// another order of items. Both follow only from seed, epoch and window, so any place is found at once. Each
/// rank tokenises all windows, so the data do not depend on the number of ranks.
class Stream {
 public:
  /// `mix` and `encoder` must outlive the stream.
  Stream(const data::RowMix& mix, const data::Encoder& encoder, StreamOptions options);

  std::int64_t windows() const { return windows_; }
  /// Reads the `window`-th window of an epoch in training order. Throws Error if it has more unreadable rows
  /// than allowed. Thread-safe.
  StreamWindow read(std::int64_t epoch, std::int64_t window) const;
  /// Returns the number in row order of the `window`-th window of an epoch in training order.
  std::int64_t row_window(std::int64_t epoch, std::int64_t window) const;
  /// Returns the number of the item at a position, in a window of `items` items.
  std::int64_t item_at(const StreamPosition& at, std::int64_t items) const;
  /// Returns the epochs before a position: 1.5 in the middle of the second epoch.
  double epochs_at(const StreamPosition& at, std::int64_t items) const;
  const StreamOptions& options() const { return options_; }

 private:
  const data::RowMix& mix_;
  const data::Encoder& encoder_;
  StreamOptions options_;
  std::int64_t windows_ = 0;
};

/// The data of a step of a stream over all ranks, and the position of the stream after it.
struct StreamStep {
  StreamPosition behind;
  std::int64_t items = 0;
  std::int64_t tokens = 0;
  double epochs = 0;
  bool ends_epoch = false;
};

/// Prepares the micro-batches of a stream on a separate thread, a few ahead of the step, and reads the next
/// window at the same time.
class StreamLoader {
 public:
  /// `stream` must outlive the loader.
  StreamLoader(const Stream& stream, const Deal& deal, const StreamPosition& first, int ahead = 8);
  ~StreamLoader();
  StreamLoader(const StreamLoader&) = delete;
  StreamLoader& operator=(const StreamLoader&) = delete;

  /// Returns the next micro-batch of this rank, like Loader::next(). Throws the Error of the thread that
  /// prepares it: unreadable rows, nothing to train.
  runtime::HostBatch next(double* waited_seconds = nullptr);
  /// The step of the current micro-batches of next().
  const StreamStep& step() const { return step_; }

 private:
  using Shared = std::shared_ptr<const StreamWindow>;
  struct Reference {
    Shared window;
    std::int64_t item;
  };
  struct Ready {
    runtime::HostBatch batch;
    StreamStep step;
  };

  void run();
  StreamStep take_step(std::vector<Reference>& items);
  void enter(const StreamPosition& position);
  void begin_reading(std::int64_t epoch, std::int64_t window);
  bool at_end() const { return position_.item >= window_->items.size(); }
  StreamPosition behind_window() const;
  bool leaves_rest_out() const;
  bool push(Ready ready);

  const Stream& stream_;
  Deal deal_;
  std::size_t ahead_;
  // Used by the reading thread only.
  StreamPosition position_;
  Shared window_;
  std::future<StreamWindow> reading_;
  std::int64_t epoch_items_ = 0;  ///< of the current epoch, dealt by this loader
  bool whole_epoch_ = false;      ///< the loader has read this epoch from its start
  data::EncodingCounts epoch_counts_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Ready> ready_;
  std::exception_ptr failure_;
  bool stop_ = false;
  StreamStep step_;
  std::thread thread_;
};

}  // namespace octet::feed
