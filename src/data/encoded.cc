#include "octet/data/encoded.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/random.h"
#include "octet/text/chat_template.h"

namespace octet::data {
namespace {

// Returns the eight bytes of a number.
std::string eight(std::uint64_t value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

template <typename T>
std::string_view bytes_of(const LongArray<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

[[noreturn]] void refuse() {
  throw Error("tokenised data is damaged");
}

// Takes a number of eight bytes off the front of `bytes`.
std::uint64_t take_number(std::string_view& bytes) {
  std::uint64_t value = 0;
  if (bytes.size() < sizeof value) refuse();
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

// Takes a list with its length off the front of `bytes`.
template <typename T>
std::span<const T> take(std::string_view& bytes) {
  const std::uint64_t count = take_number(bytes);
  if (count > bytes.size() / sizeof(T) || reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(T) != 0) {
    refuse();
  }
  const std::span<const T> values(reinterpret_cast<const T*>(bytes.data()), count);
  bytes.remove_prefix(count * sizeof(T));
  return values;
}

}  // namespace

std::int64_t Encoded::longest() const {
  std::int64_t most = 0;
  for (std::int64_t d = 0; d < documents(); ++d) most = std::max(most, length(d));
  return most;
}

void EncodingCounts::add(const EncodingCounts& o) {
  rows += o.rows, documents += o.documents, tokens += o.tokens, trained += o.trained;
  invalid += o.invalid, dropped += o.dropped, unlabelled += o.unlabelled, truncated += o.truncated;
  cut_answers += o.cut_answers, broken += o.broken;
  empty_answers += o.empty_answers;
  for (const auto& [note, count] : o.notes) notes[note] += count;
  for (const auto& reason : o.reasons) {
    if (reasons.size() < 5) reasons.push_back(reason);
  }
}

std::string EncodingCounts::to_bytes() const {
  std::string bytes;
  for (const std::int64_t count :
       {rows, documents, tokens, trained, invalid, dropped, unlabelled, truncated, cut_answers, broken,
        empty_answers, static_cast<std::int64_t>(notes.size())}) {
    bytes += eight(static_cast<std::uint64_t>(count));
  }
  for (const auto& [note, count] : notes)
    bytes += eight(static_cast<std::uint64_t>(count)) + eight(note.size()) + note;
  for (const auto& reason : reasons) bytes += eight(reason.size()) + reason;
  return bytes;
}

EncodingCounts EncodingCounts::from_bytes(std::string_view bytes) {
  EncodingCounts c;
  for (std::int64_t* count : {&c.rows, &c.documents, &c.tokens, &c.trained, &c.invalid, &c.dropped,
                              &c.unlabelled, &c.truncated, &c.cut_answers, &c.broken, &c.empty_answers}) {
    *count = static_cast<std::int64_t>(take_number(bytes));
  }
  const auto take_text = [&bytes] {
    const std::uint64_t length = take_number(bytes);
    if (length > bytes.size()) refuse();
    std::string text(bytes.substr(0, length));
    bytes.remove_prefix(length);
    return text;
  };
  for (std::uint64_t left = take_number(bytes); left > 0; --left) {
    const auto count = static_cast<std::int64_t>(take_number(bytes));
    c.notes[take_text()] = count;
  }
  while (!bytes.empty()) c.reasons.push_back(take_text());
  return c;
}

void Encoded::append(std::span<const std::int32_t> document_ids,
                     std::span<const std::int32_t> document_labels, std::int64_t row) {
  check(document_ids.size() == document_labels.size(), "as many labels as tokens");
  ids.append(document_ids);
  labels.append(document_labels);
  begins.push_back(static_cast<std::int64_t>(ids.size()));
  rows.push_back(row);
}

void Encoded::append(const Encoded& other) {
  const auto shift = static_cast<std::int64_t>(ids.size());
  ids.append(other.ids.span());
  labels.append(other.labels.span());
  for (std::size_t d = 1; d < other.begins.size(); ++d) begins.push_back(other.begins[d] + shift);
  rows.append(other.rows.span());
  counts.add(other.counts);
}

std::vector<std::string_view> Encoded::parts(std::string& small) const {
  const std::string tail = counts.to_bytes();
  small.clear();
  for (const std::size_t count : {ids.size(), labels.size(), begins.size(), rows.size()})
    small += eight(count);
  small += tail;
  const std::string_view view = small;
  return {view.substr(0, 8), bytes_of(ids),      view.substr(8, 8), bytes_of(labels), view.substr(16, 8),
          bytes_of(begins),  view.substr(24, 8), bytes_of(rows),    view.substr(32)};
}

Encoded Encoded::from_file(const std::shared_ptr<const MappedFile>& file, std::string_view bytes) {
  Encoded e;
  e.ids = LongArray<std::int32_t>::view(file, take<std::int32_t>(bytes));
  e.labels = LongArray<std::int32_t>::view(file, take<std::int32_t>(bytes));
  e.begins = LongArray<std::int64_t>::view(file, take<std::int64_t>(bytes));
  e.rows = LongArray<std::int64_t>::view(file, take<std::int64_t>(bytes));
  e.counts = EncodingCounts::from_bytes(bytes);
  const bool whole = e.ids.size() == e.labels.size() && e.rows.size() + 1 == e.begins.size() &&
                     e.begins.front() == 0 && std::ranges::is_sorted(e.begins) &&
                     e.begins.back() == static_cast<std::int64_t>(e.ids.size());
  if (!whole) refuse();
  return e;
}

std::string Encoded::fingerprint() const {
  std::string small;
  std::vector<std::string_view> all = parts(small);
  all.resize(6);  // without rows and counts
  return hash128_hex(all);
}

std::set<std::int64_t> held_out_numbers(std::int64_t rows, std::int64_t count, std::uint64_t seed) {
  std::set<std::int64_t> chosen;
  for (std::int64_t i = 0; i < count; ++i) {
    chosen.insert(static_cast<std::int64_t>(
        permute(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(rows), seed, 0xE7A1u)));
  }
  return chosen;
}

std::pair<Encoded, Encoded> hold_out(const Encoded& all, const HoldOut& options) {
  const std::set<std::int64_t> chosen = held_out_numbers(options.rows, options.count, options.seed);
  std::pair<Encoded, Encoded> parts;
  std::map<std::int64_t, std::int64_t> place_of;  // held-out row -> the first place that it came from
  for (std::int64_t d = 0; d < all.documents(); ++d) {
    const auto begin = static_cast<std::size_t>(all.begins[static_cast<std::size_t>(d)]),
               end = static_cast<std::size_t>(all.begins[static_cast<std::size_t>(d) + 1]);
    const std::int64_t place = all.rows[static_cast<std::size_t>(d)];
    const std::int64_t row =
        options.distinct.empty() ? place : options.distinct[static_cast<std::size_t>(place)];
    const bool held = chosen.contains(row);
    if (held && place_of.try_emplace(row, place).first->second != place) continue;
    (held ? parts.second : parts.first)
        .append(all.ids.span().subspan(begin, end - begin), all.labels.span().subspan(begin, end - begin),
                place);
  }
  parts.first.counts = all.counts;
  return parts;
}

std::int64_t Items::tokens(const Encoded& set, std::int64_t item) const {
  const auto i = static_cast<std::size_t>(item);
  std::int64_t count = 0;
  for (std::int64_t j = begins[i]; j < begins[i + 1]; ++j) {
    count += set.length(documents[static_cast<std::size_t>(j)]);
  }
  return count;
}

std::int64_t Items::longest(const Encoded& set) const {
  std::int64_t most = 0;
  for (std::int64_t i = 0; i < size(); ++i) most = std::max(most, tokens(set, i));
  return most;
}

std::int64_t Items::most_documents() const {
  std::int64_t most = 1;
  for (std::size_t i = 0; i + 1 < begins.size(); ++i) most = std::max(most, begins[i + 1] - begins[i]);
  return most;
}

Items one_each(const Encoded& set) {
  Items items;
  for (std::int64_t d = 0; d < set.documents(); ++d) {
    items.documents.push_back(d);
    items.begins.push_back(d + 1);
  }
  return items;
}

Items one_each_pair(const Encoded& set) {
  check(set.documents() % 2 == 0, "a pair has two documents");
  Items items;
  items.pairs = true;
  for (std::int64_t d = 0; d < set.documents(); ++d) {
    items.documents.push_back(d);
    if (d % 2 == 1) items.begins.push_back(d + 1);
  }
  return items;
}

namespace {

/// Neighbouring documents that stay together.
struct Units {
  const Encoded& set;
  std::int64_t each = 1;  ///< documents of a unit
  std::int64_t documents() const { return set.documents() / each; }
  std::int64_t length(std::int64_t unit) const {
    const auto begin = static_cast<std::size_t>(unit * each);
    return set.begins[begin + static_cast<std::size_t>(each)] - set.begins[begin];
  }
  std::int64_t longest() const {
    std::int64_t most = 0;
    for (std::int64_t u = 0; u < documents(); ++u) most = std::max(most, length(u));
    return most;
  }
};

// Returns items with units in place of documents.
Items pack_units(const Units& set, std::int64_t capacity) {
  // Sort documents by decreasing length; equal lengths keep their order (counting sort).
  const std::int64_t documents = set.documents();
  check(set.longest() <= capacity, "no document is longer than a packed sequence");
  std::vector<std::int64_t> place(static_cast<std::size_t>(capacity) +
                                  2);  // the position of the next document of a length
  for (std::int64_t d = 0; d < documents; ++d)
    ++place[static_cast<std::size_t>(capacity - set.length(d)) + 1];
  std::partial_sum(place.begin(), place.end(), place.begin());
  LongArray<std::int64_t> order;
  order.resize(static_cast<std::size_t>(documents));
  for (std::int64_t d = 0; d < documents; ++d) {
    std::int64_t& next = place[static_cast<std::size_t>(capacity - set.length(d))];
    order.writable()[static_cast<std::size_t>(next++)] = d;
  }
  // Packs with equal free room form a queue, linked by `behind`; -1 ends it.
  struct Queue {
    std::int64_t first = -1, last = -1;
  };
  std::map<std::int64_t, Queue> waiting;
  LongArray<std::int64_t> behind, filled;  // by pack: next pack in its queue; number of its documents
  LongArray<std::int64_t> pack_of;         // by position in `order`
  const auto wait = [&](std::int64_t room, std::int64_t pack) {
    if (room == 0) return;
    Queue& queue = waiting[room];
    (queue.first < 0 ? queue.first : behind.writable()[static_cast<std::size_t>(queue.last)]) = pack;
    queue.last = pack;
    behind.writable()[static_cast<std::size_t>(pack)] = -1;
  };
  for (const std::int64_t d : order) {
    const std::int64_t length = set.length(d);
    const auto best = waiting.lower_bound(length);
    std::int64_t pack = static_cast<std::int64_t>(filled.size()), room = capacity;
    if (best == waiting.end()) {
      behind.push_back(-1);
      filled.push_back(0);
    } else {
      room = best->first;
      pack = best->second.first;
      best->second.first = behind[static_cast<std::size_t>(pack)];
      if (best->second.first < 0) waiting.erase(best);
    }
    ++filled.writable()[static_cast<std::size_t>(pack)];
    pack_of.push_back(pack);
    wait(room - length, pack);
  }
  // List the documents pack by pack. Within a pack they keep the order of insertion.
  Items items;
  items.documents.resize(static_cast<std::size_t>(documents));
  std::int64_t end = 0;
  for (std::int64_t& count : filled.writable()) {
    end += count;
    count = end - count;  // from here on: position of the pack's next document
    items.begins.push_back(end);
  }
  for (std::size_t i = 0; i < order.size(); ++i) {
    std::int64_t& next = filled.writable()[static_cast<std::size_t>(pack_of[i])];
    items.documents.writable()[static_cast<std::size_t>(next++)] = order[i];
  }
  return items;
}

}  // namespace

Items pack_best_fit(const Encoded& set, std::int64_t capacity) {
  return pack_units({.set = set}, capacity);
}

Items pack_pairs(const Encoded& set, std::int64_t capacity) {
  check(set.documents() % 2 == 0, "a pair has two documents");
  const Items units = pack_units({.set = set, .each = 2}, capacity);
  Items items;
  items.pairs = true;
  for (const std::int64_t end : units.begins.span().subspan(1)) items.begins.push_back(2 * end);
  for (const std::int64_t unit : units.documents) {
    items.documents.push_back(2 * unit);
    items.documents.push_back(2 * unit + 1);
  }
  return items;
}

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

Encoded mismatched(const Encoded& set, const MismatchOptions& options) {
  check(options.cutoff_len > 0 && options.batch > 0, "documents and batches of documents are not empty");
  const auto ids_of = [&set](std::int64_t d) {
    return set.ids.span().subspan(static_cast<std::size_t>(set.begins[static_cast<std::size_t>(d)]),
                                  static_cast<std::size_t>(set.length(d)));
  };
  // Returns the number of tokens of the question.
  const auto question_of = [&set](std::int64_t d) {
    const auto labels =
        set.labels.span().subspan(static_cast<std::size_t>(set.begins[static_cast<std::size_t>(d)]),
                                  static_cast<std::size_t>(set.length(d)));
    return static_cast<std::size_t>(
        std::ranges::find_if(labels, [](std::int32_t label) { return label >= 0; }) - labels.begin());
  };
  Encoded out;
  std::vector<std::int32_t> ids, labels;
  for (std::int64_t begin = 0; begin < set.documents(); begin += options.batch) {
    const std::int64_t end = std::min(begin + options.batch, set.documents());
    for (std::int64_t d = begin; d < end; ++d) {
      const std::int64_t other = d == begin ? end - 1 : d - 1;
      const auto question = ids_of(d).first(question_of(d));
      const auto answer = ids_of(other).subspan(question_of(other));
      const text::Lengths lengths =
          text::fit(question.size(), answer.size(), static_cast<std::size_t>(options.cutoff_len));
      ids.assign(question.begin(), question.begin() + static_cast<std::ptrdiff_t>(lengths.question));
      labels.assign(ids.size(), kDesirable);
      const auto kept = answer.first(lengths.answer);
      ids.insert(ids.end(), kept.begin(), kept.end());
      labels.insert(labels.end(), kept.begin(), kept.end());
      out.append(ids, labels, set.rows[static_cast<std::size_t>(d)]);
    }
  }
  return out;
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
