#include "octet/data/encoded.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/random.h"

namespace octet::data {
namespace {

template <typename T>
void put(std::string& bytes, const std::vector<T>& values) {
  const std::uint64_t count = values.size();
  bytes.append(reinterpret_cast<const char*>(&count), sizeof count);
  bytes.append(reinterpret_cast<const char*>(values.data()), count * sizeof(T));
}

// Takes what put() wrote off the front of `bytes`.
template <typename T>
std::vector<T> take(std::string_view& bytes) {
  std::uint64_t count = 0;
  const auto refuse = [] { throw Error("a message with tokenised data is damaged"); };
  if (bytes.size() < sizeof count) refuse();
  std::memcpy(&count, bytes.data(), sizeof count);
  bytes.remove_prefix(sizeof count);
  if (count > bytes.size() / sizeof(T)) refuse();
  std::vector<T> values(count);
  if (count > 0) std::memcpy(values.data(), bytes.data(), count * sizeof(T));
  bytes.remove_prefix(count * sizeof(T));
  return values;
}

}  // namespace

std::int64_t Encoded::longest() const {
  std::int64_t most = 0;
  for (std::int64_t d = 0; d < documents(); ++d) most = std::max(most, length(d));
  return most;
}

double Encoded::mean_length() const {
  return static_cast<double>(ids.size()) / static_cast<double>(std::max<std::int64_t>(1, documents()));
}

void Encoded::append(const std::vector<std::int32_t>& document_ids,
                     const std::vector<std::int32_t>& document_labels, std::int64_t row) {
  check(document_ids.size() == document_labels.size(), "as many labels as tokens");
  ids.insert(ids.end(), document_ids.begin(), document_ids.end());
  labels.insert(labels.end(), document_labels.begin(), document_labels.end());
  begins.push_back(static_cast<std::int64_t>(ids.size()));
  rows.push_back(row);
}

void Encoded::append(const Encoded& other) {
  const auto shift = static_cast<std::int64_t>(ids.size());
  ids.insert(ids.end(), other.ids.begin(), other.ids.end());
  labels.insert(labels.end(), other.labels.begin(), other.labels.end());
  for (std::size_t d = 1; d < other.begins.size(); ++d) begins.push_back(other.begins[d] + shift);
  rows.insert(rows.end(), other.rows.begin(), other.rows.end());
  EncodingCounts& c = counts;
  const EncodingCounts& o = other.counts;
  c.rows += o.rows, c.documents += o.documents, c.tokens += o.tokens, c.trained += o.trained;
  c.invalid += o.invalid, c.dropped += o.dropped, c.unlabelled += o.unlabelled, c.truncated += o.truncated;
  c.cut_answers += o.cut_answers, c.broken += o.broken;
  for (const auto& reason : o.reasons) {
    if (c.reasons.size() < 5) c.reasons.push_back(reason);
  }
}

std::string Encoded::to_bytes() const {
  std::string bytes;
  put(bytes, ids);
  put(bytes, labels);
  put(bytes, begins);
  put(bytes, rows);
  const EncodingCounts& c = counts;
  put(bytes, std::vector<std::int64_t>{c.rows, c.documents, c.tokens, c.trained, c.invalid, c.dropped,
                                       c.unlabelled, c.truncated, c.cut_answers, c.broken});
  std::string reasons;
  for (const auto& reason : c.reasons) reasons += reason + '\n';
  put(bytes, std::vector<char>(reasons.begin(), reasons.end()));
  return bytes;
}

Encoded Encoded::from_bytes(std::string_view bytes) {
  Encoded e;
  e.ids = take<std::int32_t>(bytes);
  e.labels = take<std::int32_t>(bytes);
  e.begins = take<std::int64_t>(bytes);
  e.rows = take<std::int64_t>(bytes);
  const auto c = take<std::int64_t>(bytes);
  const auto reasons = take<char>(bytes);
  if (c.size() != 10 || e.ids.size() != e.labels.size() || e.begins.empty() ||
      e.rows.size() + 1 != e.begins.size() || e.begins.back() != static_cast<std::int64_t>(e.ids.size())) {
    throw Error("a message with tokenised data is damaged");
  }
  e.counts = {c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8], c[9], {}};
  std::string line;
  for (const char ch : reasons) {
    if (ch != '\n') {
      line += ch;
    } else {
      e.counts.reasons.push_back(std::move(line));
      line.clear();
    }
  }
  return e;
}

std::string Encoded::fingerprint() const {
  std::string bytes;
  put(bytes, ids);
  put(bytes, labels);
  put(bytes, begins);
  return hash128_hex(bytes);
}

std::pair<Encoded, Encoded> hold_out(const Encoded& all, const HoldOut& options) {
  std::set<std::int64_t> chosen;
  for (std::int64_t i = 0; i < options.count; ++i) {
    chosen.insert(static_cast<std::int64_t>(permute(
        static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(options.rows), options.seed, 0xE7A1u)));
  }
  std::pair<Encoded, Encoded> parts;
  std::map<std::int64_t, std::int64_t> place_of;  // held-out row -> the first place it came from
  for (std::int64_t d = 0; d < all.documents(); ++d) {
    const auto begin = all.begins[static_cast<std::size_t>(d)],
               end = all.begins[static_cast<std::size_t>(d) + 1];
    const std::int64_t place = all.rows[static_cast<std::size_t>(d)];
    const std::int64_t row =
        options.distinct.empty() ? place : options.distinct[static_cast<std::size_t>(place)];
    const bool held = chosen.contains(row);
    if (held && place_of.try_emplace(row, place).first->second != place) continue;
    (held ? parts.second : parts.first)
        .append(std::vector<std::int32_t>(all.ids.begin() + begin, all.ids.begin() + end),
                std::vector<std::int32_t>(all.labels.begin() + begin, all.labels.begin() + end), place);
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

Items pack_best_fit(const Encoded& set, std::int64_t capacity) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(set.documents()));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::ranges::stable_sort(order,
                           [&set](std::int64_t a, std::int64_t b) { return set.length(a) > set.length(b); });
  std::vector<std::vector<std::int64_t>> packs;
  std::multimap<std::int64_t, std::size_t> room;  // free tokens -> pack
  for (const std::int64_t d : order) {
    const std::int64_t length = set.length(d);
    const auto best = room.lower_bound(length);
    if (best == room.end()) {
      check(length <= capacity, "no document is longer than a packed sequence");
      room.emplace(capacity - length, packs.size());
      packs.push_back({d});
      continue;
    }
    const auto [space, pack] = *best;
    room.erase(best);
    packs[pack].push_back(d);
    room.emplace(space - length, pack);
  }
  Items items;
  for (const auto& pack : packs) {
    items.documents.insert(items.documents.end(), pack.begin(), pack.end());
    items.begins.push_back(static_cast<std::int64_t>(items.documents.size()));
  }
  return items;
}

}  // namespace octet::data
