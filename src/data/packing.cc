#include "octet/data/packing.h"

#include <map>
#include <vector>

#include "octet/base/error.h"

namespace octet::data {
namespace {

// Returns the first document after `begin` that comes from a row of another batch.
std::int64_t end_of_batch(const Encoded& set, std::int64_t begin, std::int64_t batch_rows) {
  const std::int64_t batch = set.rows[static_cast<std::size_t>(begin)] / batch_rows;
  std::int64_t end = begin;
  while (end < set.documents() && set.rows[static_cast<std::size_t>(end)] / batch_rows == batch) ++end;
  return end;
}

}  // namespace

Items pack_knapsack(const Encoded& set, const KnapsackOptions& options) {
  check(options.capacity > 0 && options.batch_rows > 0,
        "the knapsack size and the number of rows are above 0");
  Items items;
  items.shared_context = options.shared_context;
  for (std::int64_t begin = 0; begin < set.documents();) {
    const std::int64_t end = end_of_batch(set, begin, options.batch_rows);
    std::map<std::int64_t, std::vector<std::int64_t>>
        waiting;  // length -> documents; the last document is taken first
    for (std::int64_t d = begin; d < end; ++d) {
      if (set.length(d) <= options.capacity) waiting[set.length(d)].push_back(d);
    }
    while (!waiting.empty()) {
      std::int64_t room = options.capacity;
      for (auto fit = waiting.upper_bound(room); fit != waiting.begin(); fit = waiting.upper_bound(room)) {
        --fit;
        room -= fit->first;
        items.documents.push_back(fit->second.back());
        fit->second.pop_back();
        if (fit->second.empty()) waiting.erase(fit);
        if (waiting.empty()) break;
      }
      items.begins.push_back(static_cast<std::int64_t>(items.documents.size()));
    }
    begin = end;
  }
  return items;
}

Encoded cut_blocks(const Encoded& set, const BlockOptions& options) {
  check(options.length > 0 && options.batch_rows > 0, "a block of tokens and a batch of rows are not empty");
  Encoded blocks;
  for (std::int64_t begin = 0; begin < set.documents();) {
    const std::int64_t end = end_of_batch(set, begin, options.batch_rows);
    const std::int64_t last = set.begins[static_cast<std::size_t>(end)];
    std::int64_t document = begin;
    for (std::int64_t from = set.begins[static_cast<std::size_t>(begin)]; from + options.length <= last;
         from += options.length) {
      while (set.begins[static_cast<std::size_t>(document) + 1] <= from) ++document;
      std::vector<std::int32_t> ids(set.ids.begin() + from, set.ids.begin() + from + options.length);
      if (options.first_token >= 0) ids.front() = options.first_token;
      blocks.append(ids, ids, set.rows[static_cast<std::size_t>(document)]);
    }
    begin = end;
  }
  blocks.counts = set.counts;
  blocks.counts.documents = blocks.documents();
  blocks.counts.tokens = static_cast<std::int64_t>(blocks.ids.size());
  blocks.counts.trained = blocks.counts.tokens - blocks.documents();
  return blocks;
}

}  // namespace octet::data
