#include "octet/data/encoder.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <ranges>
#include <system_error>
#include <thread>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/mapped_files.h"
#include "octet/base/strings.h"

namespace octet::data {
namespace {

constexpr const char* kIsLonger = ": is longer than cutoff_len";

void remember(EncodingCounts& counts, const std::string& reason) {
  if (counts.reasons.size() < 5) counts.reasons.push_back(reason);
}

// Returns the row, or nothing if it cannot be read.
std::optional<Json> read_row(const RowMix::Place& place, EncodingCounts& counts) {
  try {
    Json row = place.file->row(place.row);
    require_mapped_files();
    return row;
  } catch (const ShortenedFile&) {
    throw;
  } catch (const Error& e) {
    // If the file was truncated since it was mapped, the file is the error and not the row.
    require_mapped_files(FileSizes::always);
    ++counts.broken;
    const Problem& p = e.problem();
    remember(counts, place.file->where(place.row) + ": " + p.what + (p.found.empty() ? "" : ": " + p.found));
    return std::nullopt;
  }
}

// Whether a trained answer or a plain text consists of blanks only.
bool has_empty_answer(const Sample& sample) {
  if (sample.plain) return trim(sample.text).empty();
  if (sample.rejected && trim(sample.rejected->content).empty() && sample.rejected->thought.empty())
    return true;
  return std::ranges::any_of(sample.turns, [](const Turn& turn) {
    return turn.role == "assistant" && turn.trained && turn.thought.empty() && trim(turn.content).empty();
  });
}

// Encodes a sample. An Error without a location gets the location of the row.
EncodedSample encode_at(const RowMix::Place& place, const Encoder& encoder, const Sample& sample) {
  try {
    return encoder.encode(sample);
  } catch (const Error& e) {
    if (!e.problem().where.empty()) throw;
    Problem problem = e.problem();
    problem.where = place.file->where(place.row);
    throw Error(std::move(problem));
  }
}

// The first token of a document is never predicted.
std::int64_t trained_tokens(const EncodedSample::Document& document) {
  return std::ranges::count_if(document.labels | std::views::drop(1),
                               [](std::int32_t label) { return label >= 0; });
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
    const auto sample = convert_row(*json, place.source->format, &why, &c.notes);
    if (!sample) {
      ++c.invalid;
      remember(c, place.file->where(place.row) + ": " + why);
      continue;
    }
    c.empty_answers += has_empty_answer(*sample) ? 1 : 0;
    const EncodedSample encoded = encode_at(place, encoder, *sample);
    c.dropped += encoded.dropped ? 1 : 0;
    if (!encoded.why.empty()) remember(c, place.file->where(place.row) + ": " + encoded.why);
    c.truncated += encoded.truncated ? 1 : 0;
    if (encoded.truncated && share.name_truncated) remember(c, place.file->where(place.row) + kIsLonger);
    c.cut_answers += encoded.cut_answer ? 1 : 0;
    std::int64_t kept = 0;
    const bool incomplete = encoded.pair && std::ranges::any_of(encoded.documents, [](const auto& document) {
                              return trained_tokens(document) == 0;
                            });
    for (const auto& document : encoded.documents) {
      const std::int64_t trained = trained_tokens(document);
      if (incomplete || (trained == 0 && !encoded.fragment)) continue;
      out.append(document.ids, document.labels, row);
      ++kept;
      ++c.documents;
      c.tokens += static_cast<std::int64_t>(document.ids.size());
      c.trained += trained;
    }
    if (kept == 0 && !encoded.dropped) ++c.unlabelled;
  }
}

// Concatenates the parts of all threads in order. At most `most_waiting` parts wait for earlier ones: a data
// set larger than memory is never held twice.
class InOrder {
 public:
  explicit InOrder(std::int64_t most_waiting) : most_waiting_(most_waiting) {}

  // Adds part `number`; blocks while it is too far ahead. Returns false if another thread has failed.
  bool put(std::int64_t number, Encoded part) {
    std::unique_lock lock(mutex_);
    moved_.wait(lock, [&] { return failure_ || number < next_ + most_waiting_; });
    if (failure_) return false;
    waiting_.emplace(number, std::move(part));
    for (auto first = waiting_.begin(); first != waiting_.end() && first->first == next_; ++next_) {
      all_.append(first->second);
      first = waiting_.erase(first);
    }
    moved_.notify_all();
    return true;
  }
  void fail(std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
    moved_.notify_all();
  }
  // Returns the concatenation after all threads have ended, or rethrows the first failure.
  Encoded take() {
    if (failure_) std::rethrow_exception(failure_);
    return std::move(all_);
  }

 private:
  std::int64_t most_waiting_;
  std::mutex mutex_;
  std::condition_variable moved_;
  std::map<std::int64_t, Encoded> waiting_;
  std::int64_t next_ = 0;
  Encoded all_;
  std::exception_ptr failure_;
};

}  // namespace

Error too_many_broken(const EncodingCounts& counts, std::int64_t max_broken) {
  std::string rows;
  for (const auto& reason : counts.reasons) rows += (rows.empty() ? "" : "\n  ") + reason;
  return Error({.what = "too many rows of the data cannot be read",
                .expected = "at most " + with_commas(max_broken) + " (max_broken_rows)",
                .found = with_commas(counts.broken) + " of " + with_commas(counts.rows) + " rows",
                .where = rows,
                .fix = "correct the files, or raise max_broken_rows to skip these rows",
                .code = ExitCode::usage});
}

Error truncated_rows(const EncodingCounts& counts, std::int64_t cutoff_len) {
  std::string rows;
  for (const auto& reason : counts.reasons) {
    if (reason.ends_with(kIsLonger)) rows += (rows.empty() ? "" : "\n  ") + reason;
  }
  return Error(
      {.what = "rows of the data are too long (truncation: error forbids cutting them)",
       .expected = "at most " + with_commas(cutoff_len) + " tokens (cutoff_len) a row",
       .found = with_commas(counts.truncated) + " of " + with_commas(counts.rows) + " rows with more",
       .where = rows,
       .fix = "raise cutoff_len, shorten or remove these rows, or set truncation: cut",
       .code = ExitCode::usage});
}

Encoded encode_rows(const RowMix& mix, const Encoder& encoder, const EncodeShare& share) {
  constexpr std::int64_t kRun = 256;  // rows per work item
  const std::int64_t runs = (share.last_row - share.first_row + kRun - 1) / kRun;
  int threads = share.threads > 0 ? share.threads : static_cast<int>(std::thread::hardware_concurrency());
  threads = static_cast<int>(std::clamp<std::int64_t>(runs, 1, std::max(1, threads)));
  InOrder parts(8 * threads);
  std::atomic<std::int64_t> next{0}, broken{0};
  const auto work = [&] {
    try {
      for (std::int64_t run = next++; run < runs; run = next++) {
        const std::int64_t first = share.first_row + run * kRun;
        Encoded part;
        encode_run(mix, encoder, share, first, std::min(first + kRun, share.last_row), part);
        if (part.counts.broken > 0 && (broken += part.counts.broken) > share.max_broken) next = runs;
        if (!parts.put(run, std::move(part))) return;
      }
    } catch (...) {
      parts.fail(std::current_exception());
    }
  };
  {
    std::vector<std::jthread> pool;
    try {
      for (int t = 1; t < threads; ++t) pool.emplace_back(work);
    } catch (const std::system_error&) {
      // The system has no more threads. The started threads take all rows.
    }
    work();
  }
  Encoded all = parts.take();
  require_mapped_files(FileSizes::always);
  if (all.counts.broken > share.max_broken) throw too_many_broken(all.counts, share.max_broken);
  return all;
}

}  // namespace octet::data
