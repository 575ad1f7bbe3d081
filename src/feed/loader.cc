#include "octet/feed/loader.h"

#include <algorithm>

#include "octet/base/mapped_files.h"
#include "octet/base/timing.h"

namespace octet::feed {
namespace {

// An empty micro-batch also takes memory.
std::int64_t counted_tokens(const runtime::HostBatch& batch) {
  const std::int64_t more = batch.mismatched ? batch.mismatched->tokens() : 0;
  return std::max<std::int64_t>(64, batch.tokens() + more);
}

}  // namespace

void add_item(runtime::HostBatch& batch, const data::Encoded& set, const data::Items& items,
              std::int64_t item) {
  ++batch.items;
  const auto i = static_cast<std::size_t>(item);
  const std::size_t first_document = batch.cu_seqlens.size();
  for (std::int64_t j = items.begins[i]; j < items.begins[i + 1]; ++j) {
    const auto d = static_cast<std::size_t>(items.documents[static_cast<std::size_t>(j)]);
    const auto begin = static_cast<std::size_t>(set.begins[d]);
    const auto count = static_cast<std::size_t>(set.begins[d + 1]) - begin;
    // If documents share their context, the last token of the previous document predicts the first of this
    // one.
    if (items.shared_context && j > items.begins[i] && set.labels[begin] >= 0) {
      batch.label_rows.push_back(static_cast<std::int32_t>(batch.ids.size()) - 1);
      batch.targets.push_back(set.labels[begin]);
    }
    batch.rows.push_back(set.rows[d]);
    if ((items.pairs || items.judged) && !set.references.empty())
      batch.references.push_back(set.references[d]);
    if (items.judged) {
      ++batch.judged;
      batch.desirable.push_back(set.labels[begin] == data::kUndesirable ? 0 : 1);
    }
    const std::uint64_t name = runtime::mixed(static_cast<std::uint64_t>(set.rows[d]), d);
    if (items.scored) {
      runtime::add_scored_document(batch, set.ids.span().subspan(begin, count), name);
    } else {
      runtime::add_document(batch, set.ids.span().subspan(begin, count),
                            set.labels.span().subspan(begin, count), name);
    }
  }
  if (items.pairs) batch.pairs += (items.begins[i + 1] - items.begins[i]) / 2;
  if (items.shared_context && batch.cu_seqlens.size() > first_document) {
    batch.cu_seqlens.resize(first_document);
    const auto begin = static_cast<std::int64_t>(batch.cu_seqlens.back());
    batch.cu_seqlens.push_back(static_cast<std::int32_t>(batch.ids.size()));
    batch.max_length = std::max(batch.max_length, batch.tokens() - begin);
  }
}

runtime::HostBatch make_batch(const data::Encoded& set, const data::Items& items,
                              std::span<const std::int64_t> which) {
  runtime::HostBatch batch;
  batch.cu_seqlens.push_back(0);
  for (const std::int64_t item : which) {
    if (item >= 0) add_item(batch, set, items, item);
  }
  if (set.mismatched)
    batch.mismatched = std::make_shared<const runtime::HostBatch>(make_batch(*set.mismatched, items, which));
  return batch;
}

Loader::Loader(const data::Encoded& set, const data::Items& items, const SampleOrder& order, const Deal& deal,
               std::int64_t first_step, int ahead, std::int64_t most_tokens)
    : set_(set),
      items_(items),
      order_(order),
      deal_(deal),
      step_(first_step),
      ahead_(static_cast<std::size_t>(ahead)),
      most_tokens_(most_tokens),
      thread_([this] { run(); }) {}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Loader::run() {
  try {
    std::vector<std::int64_t> which(static_cast<std::size_t>(deal_.micro));
    for (;; ++step_) {
      for (std::int64_t a = 0; a < deal_.accumulation; ++a) {
        for (std::int64_t i = 0; i < deal_.micro; ++i) {
          which[static_cast<std::size_t>(i)] = order_.item(step_, deal_.first_place(a) + i);
        }
        // Offsets into an overwritten file may be out of its bounds.
        require_mapped_files(FileSizes::always);
        runtime::HostBatch batch = make_batch(set_, items_, which);
        // Truncating a file by less than a page gives zeros without a signal.
        require_mapped_files(FileSizes::always);
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return stop_ || !is_full(); });
        if (stop_) return;
        tokens_ += counted_tokens(batch);
        ready_.push_back(std::move(batch));
        changed_.notify_all();
      }
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
  }
}

std::exception_ptr Loader::failure() {
  std::unique_lock lock(mutex_);
  const auto step = static_cast<std::size_t>(deal_.accumulation);
  changed_.wait(lock, [&] { return failure_ || ready_.size() >= step || is_full(); });
  return failure_;
}

bool Loader::is_full() const {
  if (ready_.size() < ahead_) return false;
  return ready_.size() >= static_cast<std::size_t>(deal_.accumulation) || tokens_ >= most_tokens_;
}

std::size_t Loader::waiting() {
  const std::lock_guard lock(mutex_);
  return ready_.size();
}

runtime::HostBatch Loader::next(double* waited_seconds) {
  const auto start = Clock::now();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return failure_ || !ready_.empty(); });
  if (waited_seconds) {
    *waited_seconds += seconds_since(start);
  }
  if (ready_.empty()) std::rethrow_exception(failure_);
  runtime::HostBatch batch = std::move(ready_.front());
  ready_.pop_front();
  tokens_ -= counted_tokens(batch);
  changed_.notify_all();
  return batch;
}

}  // namespace octet::feed
