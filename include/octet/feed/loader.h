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
#include "octet/feed/schedule.h"

namespace octet::feed {

/// A micro-batch in host memory: documents one behind the other, no padding.
struct HostBatch {
  std::vector<std::int32_t> ids;         ///< [tokens]
  std::vector<std::int32_t> positions;   ///< [tokens], from 0 in every document
  std::vector<std::int32_t> cu_seqlens;  ///< [documents + 1]
  std::vector<std::int32_t> label_rows;  ///< rows whose next token is trained, ascending
  std::vector<std::int32_t> targets;     ///< [label_rows]: that next token
  std::vector<std::int64_t> rows;        ///< of the data set: of each document that add_item() added
  std::int64_t items = 0;                ///< samples
  std::int64_t max_length = 0;           ///< of a document
  std::int64_t tokens() const { return static_cast<std::int64_t>(ids.size()); }
  std::int64_t documents() const { return static_cast<std::int64_t>(cu_seqlens.size()) - 1; }
};

/// Adds a document to a batch. The last token of a document predicts nothing, and a token is a target only
/// where its own label says so: labels are shifted inside the document.
void add_document(HostBatch& batch, std::span<const std::int32_t> ids, std::span<const std::int32_t> labels);

/// Adds the documents of an item to a batch, which has its first cu_seqlens.
void add_item(HostBatch& batch, const data::Encoded& set, const data::Items& items, std::int64_t item);

/// Lays micro-batches flat on a thread of its own, a few ahead of the step.
class Loader {
 public:
  /// `set` and `items` must outlive the loader. Starts at `first_step`.
  Loader(const data::Encoded& set, const data::Items& items, const SampleOrder& order, const Deal& deal,
         std::int64_t first_step, int ahead = 8);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next micro-batch in order (step by step, micro-batch by micro-batch); empty when a partial step has
  /// no items for it. `waited_seconds`, if given, is raised by the time the call had to wait.
  HostBatch next(double* waited_seconds = nullptr);

 private:
  void run();

  const data::Encoded& set_;
  const data::Items& items_;
  SampleOrder order_;
  Deal deal_;
  std::int64_t step_;
  std::size_t ahead_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<HostBatch> ready_;
  std::exception_ptr failure_;
  bool stop_ = false;
  std::thread thread_;
};

/// The batch of these items, in order; negative ones are left out.
HostBatch make_batch(const data::Encoded& set, const data::Items& items, std::span<const std::int64_t> which);

}  // namespace octet::feed
