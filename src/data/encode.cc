#include "octet/data/encode.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>

#include "octet/base/error.h"

namespace octet::data {
namespace {

// A row of all data sets one behind the other.
struct Place {
  const DataSource* source;
  const RowReader* file;
  std::int64_t row;  ///< in the file
};

Place find_row(const std::vector<DataSource>& sources, std::int64_t row) {
  for (const DataSource& source : sources) {
    if (row >= source.rows) {
      row -= source.rows;
      continue;
    }
    if (!source.picks.empty()) row = source.picks[static_cast<std::size_t>(row)];
    for (const auto& file : source.files) {
      if (row < file->size()) return {&source, file.get(), row};
      row -= file->size();
    }
  }
  throw Error("a row is outside its data sets");
}

// Encodes rows [first, last) into `out`.
void encode_run(const std::vector<DataSource>& sources, const Encoder& encoder, std::int64_t first,
                std::int64_t last, Encoded& out) {
  EncodingCounts& c = out.counts;
  for (std::int64_t row = first; row < last; ++row) {
    const Place place = find_row(sources, row);
    ++c.rows;
    std::string why;
    const auto sample = convert_row(place.file->row(place.row), place.source->format, &why);
    if (!sample) {
      ++c.invalid;
      if (c.reasons.size() < 5) c.reasons.push_back(place.file->where(place.row) + ": " + why);
      continue;
    }
    const EncodedSample encoded = encoder.encode(*sample);
    c.dropped += encoded.dropped ? 1 : 0;
    c.truncated += encoded.truncated ? 1 : 0;
    c.cut_answers += encoded.cut_answer ? 1 : 0;
    std::int64_t kept = 0;
    for (const auto& document : encoded.documents) {
      // The first token of a document is never predicted.
      std::int64_t trained = 0;
      for (std::size_t t = 1; t < document.labels.size(); ++t) trained += document.labels[t] >= 0 ? 1 : 0;
      if (trained == 0) continue;
      out.append(document.ids, document.labels, row);
      ++kept;
      ++c.documents;
      c.tokens += static_cast<std::int64_t>(document.ids.size());
      c.trained += trained;
    }
    if (kept == 0 && !encoded.dropped) ++c.unlabelled;
  }
}

}  // namespace

Encoded encode_rows(const std::vector<DataSource>& sources, const Encoder& encoder,
                    const EncodeShare& share) {
  constexpr std::int64_t kRun = 256;  // rows that a thread takes at a time
  const std::int64_t runs = (share.last_row - share.first_row + kRun - 1) / kRun;
  int threads = share.threads > 0 ? share.threads : static_cast<int>(std::thread::hardware_concurrency());
  threads = static_cast<int>(std::clamp<std::int64_t>(runs, 1, std::max(1, threads)));
  std::vector<Encoded> parts(static_cast<std::size_t>(std::max<std::int64_t>(runs, 0)));
  std::atomic<std::int64_t> next{0};
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(threads));
  const auto work = [&](std::size_t thread) {
    try {
      for (std::int64_t run = next++; run < runs; run = next++) {
        const std::int64_t first = share.first_row + run * kRun;
        encode_run(sources, encoder, first, std::min(first + kRun, share.last_row),
                   parts[static_cast<std::size_t>(run)]);
      }
    } catch (...) {
      failures[thread] = std::current_exception();
      next = runs;
    }
  };
  std::vector<std::thread> pool;
  for (int t = 1; t < threads; ++t) pool.emplace_back(work, static_cast<std::size_t>(t));
  work(0);
  for (auto& thread : pool) thread.join();
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  Encoded all;
  for (const Encoded& part : parts) all.append(part);
  return all;
}

}  // namespace octet::data
