#include "octet/feed/stream.h"

#include <algorithm>

#include "octet/base/error.h"
#include "octet/base/random.h"
#include "octet/base/strings.h"
#include "octet/base/timing.h"

namespace octet::feed {
namespace {

// Separates the random orders of windows from the orders of items.
constexpr std::uint32_t kWindows = 0x57EA0000u;

}  // namespace

Stream::Stream(const data::RowMix& mix, const data::Encoder& encoder, StreamOptions options)
    : mix_(mix), encoder_(encoder), options_(std::move(options)) {
  check(options_.window_rows > 0 && options_.global_batch > 0 && mix.size() > 0,
        "a stream of data has at least one row");
  windows_ = (mix.size() + options_.window_rows - 1) / options_.window_rows;
}

std::int64_t Stream::row_window(std::int64_t epoch, std::int64_t window) const {
  if (!options_.shuffle) return window;
  return static_cast<std::int64_t>(permute(static_cast<std::uint64_t>(window),
                                           static_cast<std::uint64_t>(windows_), options_.seed,
                                           kWindows ^ static_cast<std::uint32_t>(epoch)));
}

StreamWindow Stream::read(std::int64_t epoch, std::int64_t window) const {
  const std::int64_t first = row_window(epoch, window) * options_.window_rows;
  data::EncodeShare share;
  share.first_row = first;
  share.last_row = std::min(mix_.size(), first + options_.window_rows);
  share.threads = options_.threads;
  share.max_broken = options_.max_broken;
  share.name_truncated = options_.refuse_longer > 0;
  share.left_out = &options_.left_out;
  StreamWindow out;
  out.set = data::encode_rows(mix_, encoder_, share);
  out.items = options_.layout ? options_.layout(out.set) : data::one_each(out.set);
  return out;
}

std::int64_t Stream::item_at(const StreamPosition& at, std::int64_t items) const {
  if (!options_.shuffle) return at.item;
  const auto key = philox(options_.seed, RandomUse::shuffle, static_cast<std::uint64_t>(at.window),
                          static_cast<std::uint32_t>(at.epoch));
  const std::uint64_t seed = static_cast<std::uint64_t>(key[1]) << 32 | key[2];
  return static_cast<std::int64_t>(
      permute(static_cast<std::uint64_t>(at.item), static_cast<std::uint64_t>(items), seed, key[0]));
}

double Stream::epochs_at(const StreamPosition& at, std::int64_t items) const {
  const double part = items > 0 ? static_cast<double>(at.item) / static_cast<double>(items) : 0;
  return static_cast<double>(at.epoch) +
         (static_cast<double>(at.window) + part) / static_cast<double>(windows_);
}

StreamLoader::StreamLoader(const Stream& stream, const Deal& deal, const StreamPosition& first, int ahead)
    : stream_(stream),
      deal_(deal),
      ahead_(static_cast<std::size_t>(ahead)),
      position_(first),
      thread_([this] { run(); }) {}

StreamLoader::~StreamLoader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StreamLoader::begin_reading(std::int64_t epoch, std::int64_t window) {
  reading_ = std::async(std::launch::async, [this, epoch, window] { return stream_.read(epoch, window); });
}

// Returns the start of the next window.
StreamPosition StreamLoader::behind_window() const {
  const bool last = position_.window + 1 == stream_.windows();
  return {.epoch = position_.epoch + (last ? 1 : 0), .window = last ? 0 : position_.window + 1};
}

// Whether the rest of the epoch is smaller than a group and is left out. Only the current window is known.
bool StreamLoader::leaves_rest_out() const {
  return behind_window().epoch != position_.epoch &&
         window_->items.size() - position_.item < stream_.options().whole_groups_of;
}

// Enters the window of a position, reading it if needed, and starts reading the next window.
void StreamLoader::enter(const StreamPosition& position) {
  if (position.window == 0) {
    epoch_counts_ = {};
    epoch_items_ = 0;
    whole_epoch_ = position.item == 0;
  }
  if (!reading_.valid()) begin_reading(position.epoch, position.window);
  window_ = std::make_shared<const StreamWindow>(reading_.get());
  position_ = position;
  epoch_counts_.rows += window_->set.counts.rows;
  epoch_counts_.broken += window_->set.counts.broken;
  for (const std::string& reason : window_->set.counts.reasons) {
    if (epoch_counts_.reasons.size() < 5) epoch_counts_.reasons.push_back(reason);
  }
  if (epoch_counts_.broken > stream_.options().max_broken) {
    throw data::too_many_broken(epoch_counts_, stream_.options().max_broken);
  }
  if (stream_.options().refuse_longer > 0 && window_->set.counts.truncated > 0) {
    throw data::truncated_rows(window_->set.counts, stream_.options().refuse_longer);
  }
  if (stream_.options().counted) {
    stream_.options().counted(stream_.row_window(position.epoch, position.window), window_->set.counts);
  }
  const StreamPosition behind = behind_window();
  begin_reading(behind.epoch, behind.window);
}

// Returns the items of the next step over all ranks. The last step of an epoch may have fewer.
StreamStep StreamLoader::take_step(std::vector<Reference>& items) {
  StreamStep step;
  items.clear();
  const auto full = static_cast<std::size_t>(stream_.options().global_batch);
  for (;;) {
    while (!at_end() && items.size() < full) {
      const std::int64_t item = stream_.item_at(position_, window_->items.size());
      items.push_back({window_, item});
      ++position_.item;
      ++epoch_items_;
    }
    // The epoch ends only after its last window, which may be empty.
    if (!at_end()) {
      if (leaves_rest_out()) {
        enter(behind_window());
        step.ends_epoch = true;
      }
      break;
    }
    const StreamPosition behind = behind_window();
    if (behind.epoch == position_.epoch) {
      enter(behind);
      continue;
    }
    if (whole_epoch_ && epoch_items_ == 0) {
      throw Error({.what = "the data set has no tokens to train",
                   .expected = "at least one row with a trained token",
                   .found = with_commas(epoch_counts_.rows) + " rows without one",
                   .where = epoch_counts_.reasons.empty() ? "" : epoch_counts_.reasons.front(),
                   .fix = "check the columns of the data set, the template and cutoff_len",
                   .code = ExitCode::usage});
    }
    const auto partial = static_cast<std::int64_t>(items.size()) % stream_.options().whole_groups_of;
    if (whole_epoch_ && epoch_items_ == partial) {
      throw no_whole_group(epoch_items_, stream_.options().whole_groups_of);
    }
    items.resize(items.size() - static_cast<std::size_t>(partial));
    enter(behind);
    if (items.empty()) continue;
    step.ends_epoch = true;
    break;
  }
  step.behind = position_;
  step.items = static_cast<std::int64_t>(items.size());
  step.epochs = stream_.epochs_at(position_, window_->items.size());
  for (const Reference& r : items) {
    const data::Items& all = r.window->items;
    const auto i = static_cast<std::size_t>(r.item);
    for (std::int64_t d = all.begins[i]; d < all.begins[i + 1]; ++d) {
      step.tokens += r.window->set.length(all.documents[static_cast<std::size_t>(d)]);
    }
  }
  return step;
}

bool StreamLoader::push(Ready ready) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stop_ || ready_.size() < ahead_; });
  if (stop_) return false;
  ready_.push_back(std::move(ready));
  changed_.notify_all();
  return true;
}

void StreamLoader::run() {
  try {
    const StreamPosition first = position_;
    enter(first);
    std::vector<Reference> items;
    for (;;) {
      const StreamStep step = take_step(items);
      for (std::int64_t a = 0; a < deal_.accumulation; ++a) {
        runtime::HostBatch batch;
        batch.cu_seqlens.push_back(0);
        for (std::int64_t i = 0; i < deal_.micro; ++i) {
          const auto place = static_cast<std::size_t>(deal_.first_place(a) + i);
          if (place >= items.size()) continue;
          add_item(batch, items[place].window->set, items[place].window->items, items[place].item);
        }
        if (!push({std::move(batch), step})) return;
      }
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
  }
}

runtime::HostBatch StreamLoader::next(double* waited_seconds) {
  const auto start = Clock::now();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return failure_ || !ready_.empty(); });
  if (waited_seconds) {
    *waited_seconds += seconds_since(start);
  }
  if (ready_.empty()) std::rethrow_exception(failure_);
  Ready ready = std::move(ready_.front());
  ready_.pop_front();
  changed_.notify_all();
  step_ = ready.step;
  return std::move(ready.batch);
}

}  // namespace octet::feed
