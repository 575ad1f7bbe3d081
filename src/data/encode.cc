#include "octet/data/encode.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>
#include <thread>

#include "octet/base/error.h"
#include "octet/base/strings.h"

namespace octet::data {
namespace {

void remember(EncodingCounts& counts, const std::string& reason) {
  if (counts.reasons.size() < 5) counts.reasons.push_back(reason);
}

// The row, or nothing for one that cannot be read.
std::optional<Json> read_row(const RowMix::Place& place, EncodingCounts& counts) {
  try {
    return place.file->row(place.row);
  } catch (const Error& e) {
    ++counts.broken;
    const Problem& p = e.problem();
    remember(counts, place.file->where(place.row) + ": " + p.what + (p.found.empty() ? "" : ": " + p.found));
    return std::nullopt;
  }
}

// Encodes rows [first, last) of a share into `out`.
void encode_run(const RowMix& mix, const Encoder& encoder, const EncodeShare& share, std::int64_t first,
                std::int64_t last, Encoded& out) {
  EncodingCounts& c = out.counts;
  for (std::int64_t i = first; i < last; ++i) {
    const std::int64_t row = share.places ? share.places->at(static_cast<std::size_t>(i)) : i;
    const RowMix::Place place = mix.at(row);
    if (share.left_out && share.left_out->contains({place.file, place.row})) continue;
    ++c.rows;
    const auto json = read_row(place, c);
    if (!json) continue;
    std::string why;
    const auto sample = convert_row(*json, place.source->format, &why);
    if (!sample) {
      ++c.invalid;
      remember(c, place.file->where(place.row) + ": " + why);
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
      if (trained == 0 && !encoded.fragment) continue;
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

Error too_many_broken(const EncodingCounts& counts, std::int64_t max_broken) {
  std::string rows;
  for (const auto& reason : counts.reasons) rows += (rows.empty() ? "" : "\n  ") + reason;
  return Error({.what = "too many rows of the data cannot be read",
                .expected = "at most " + with_commas(max_broken) + " (max_broken_rows)",
                .found = with_commas(counts.broken) + " of " + with_commas(counts.rows) + " rows",
                .where = rows,
                .fix = "mend the files, or raise max_broken_rows to leave such rows out",
                .code = ExitCode::usage});
}

Encoded encode_rows(const RowMix& mix, const Encoder& encoder, const EncodeShare& share) {
  constexpr std::int64_t kRun = 256;  // rows that a thread takes at a time
  const std::int64_t runs = (share.last_row - share.first_row + kRun - 1) / kRun;
  int threads = share.threads > 0 ? share.threads : static_cast<int>(std::thread::hardware_concurrency());
  threads = static_cast<int>(std::clamp<std::int64_t>(runs, 1, std::max(1, threads)));
  std::vector<Encoded> parts(static_cast<std::size_t>(std::max<std::int64_t>(runs, 0)));
  std::atomic<std::int64_t> next{0}, broken{0};
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(threads));
  const auto work = [&](std::size_t thread) {
    try {
      for (std::int64_t run = next++; run < runs; run = next++) {
        const std::int64_t first = share.first_row + run * kRun;
        encode_run(mix, encoder, share, first, std::min(first + kRun, share.last_row),
                   parts[static_cast<std::size_t>(run)]);
        const EncodingCounts& counts = parts[static_cast<std::size_t>(run)].counts;
        if (counts.broken > 0 && (broken += counts.broken) > share.max_broken) next = runs;
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
  if (all.counts.broken > share.max_broken) throw too_many_broken(all.counts, share.max_broken);
  return all;
}

}  // namespace octet::data
