#include "answer_file.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <optional>

#include "answer_rows.h"
#include "journal.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/base/timing.h"
#include "octet/comm/serialize.h"
#include "output_files.h"
#include "row_work.h"

namespace octet::answers {
namespace {

/// Seconds between two exchanges, in which ranks receive rows and deliver results.
constexpr double kRoundSeconds = 0.25;
/// Number of failed rows that are named; further failures are only counted.
constexpr std::int64_t kNamedFailures = 5;

/// A rank's message to the others in each exchange.
struct Report {
  std::int64_t room = 0;
  std::vector<RowWork::Done> done;
  generate::DecodeCounts counts;
};

std::string packed(const Report& report) {
  Json done = Json::array();
  for (const RowWork::Done& d : report.done) {
    done.push_back({{"row", d.row},
                    {"lines", d.result.lines},
                    {"failure", d.result.failure},
                    {"routing", d.routing},
                    {"judged", d.judged},
                    {"right", d.right},
                    {"rouge_l", d.rouge_l},
                    {"attempts", d.attempts}});
  }
  const generate::DecodeCounts& c = report.counts;
  return Json{{"room", report.room},
              {"counts",
               {c.prompt_tokens, c.shared_tokens, c.new_tokens, c.passes, c.cache_pages, c.cache_pages_used,
                c.put_back, c.recomputed_tokens}},
              {"done", std::move(done)}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

Report unpacked(const std::string& text) {
  const Json json = parse_json(text, "the results of one rank");
  Report report;
  report.room = json["room"];
  const Json& counts = json["counts"];
  report.counts = {.prompt_tokens = counts[0],
                   .shared_tokens = counts[1],
                   .new_tokens = counts[2],
                   .passes = counts[3],
                   .cache_pages = counts[4],
                   .cache_pages_used = counts[5],
                   .put_back = counts[6],
                   .recomputed_tokens = counts[7]};
  for (const Json& d : json["done"]) {
    report.done.push_back(
        {.row = d["row"],
         .result = {.lines = d["lines"].get<std::vector<std::string>>(), .failure = d["failure"]},
         .routing = d["routing"].get<std::vector<std::string>>(),
         .judged = d["judged"],
         .right = d["right"],
         .rouge_l = d["rouge_l"],
         .attempts = d["attempts"]});
  }
  return report;
}

std::string settings_hash(const Answerer& answerer, const RowWork& work, const GenerateOptions& o) {
  const generate::Sampling& s = o.answers.sampling;
  Json settings{
      {"folder", o.model},
      {"adapter", o.adapter},
      {"recipe", answerer.recipe()},
      {"prompt", work.prompt_text()},
      {"system", o.system},
      {"dtype", static_cast<int>(o.dtype)},
      {"sampling", {s.temperature, s.top_p, s.top_k, s.min_p, s.repetition_penalty, s.seed}},
      {"limits", {o.answers.max_new, o.answers.min_new, o.max_length, o.answers.logprobs, o.samples}},
      {"stops", o.stops},
      {"stop_ids", answerer.stop_ids()},
      {"score", o.score},
      {"best", o.best},
      {"extract", o.extract.value_or("")},
      {"allow", o.allow},
      {"retries", o.retries},
      {"shard", {o.shard.number, o.shard.of}},
  };
  if (o.rouge_l) settings["rouge_l"] = true;
  if (o.fp8) settings["fp8"] = true;
  if (o.fp8_blocks) settings["fp8_recipe"] = "block";
  if (o.strict) settings["deterministic"] = "strict";
  if (o.fp8_cache) settings["fp8_cache"] = true;
  if (o.hdf5) settings["hdf5"] = true;
  if (!o.save_routing.empty()) settings["routing"] = true;
  return hash128_hex(settings.dump(-1, ' ', false, Json::error_handler_t::replace));
}

/// Collects the results on the first rank, writes them in order, and reports totals.
class Books {
 public:
  Books(const GenerateOptions& options, std::int64_t rows)
      : options_(options), lines_(static_cast<std::size_t>(rows)) {}

  // Opens the file of answers. Called on the first rank alone.
  void open(const AnswerJournal::Job& job, const runtime::Routers& routers) {
    if (!options_.save_routing.empty()) {
      const bool continues = path_exists(options_.out + ".rows");
      RoutingOut::require_free(options_.save_routing, routers, options_.overwrite || continues);
    }
    if (!options_.out.empty()) journal_.emplace(options_.out, job, options_.overwrite);
    if (!options_.save_routing.empty())
      routing_.emplace(options_.save_routing, routers,
                       kept() == 0 ? RoutingOut::New::yes : RoutingOut::New::no);
  }
  std::vector<std::int64_t> missing() const {
    std::vector<std::int64_t> rows;
    for (std::int64_t row = 0; row < std::ssize(lines_); ++row) {
      if (!journal_ || !journal_->done(row)) rows.push_back(row);
    }
    return rows;
  }
  std::int64_t kept() const { return journal_ ? journal_->kept() : 0; }
  bool complete() const { return journal_ && journal_->complete(); }

  void add(const RowWork::Done& done) {
    ++done_;
    attempts_ += done.attempts;
    judged_ += done.judged ? 1 : 0;
    right_ += done.right ? 1 : 0;
    rouge_l_ += done.rouge_l;
    if (!done.result.failure.empty() && ++failures_ <= kNamedFailures) {
      log::warn("a row is left out: " + done.result.failure);
    }
    // First, so that each noted row has its experts.
    for (const std::string& line : done.routing) routing_->add(line);
    if (journal_) {
      journal_->add(done.row, done.result);
    } else {
      lines_[static_cast<std::size_t>(done.row)] = done.result.lines;
    }
  }
  void sync() {
    if (routing_) routing_->sync();
    if (journal_) journal_->sync();
  }
  std::int64_t failures() const { return failures_; }

  /// Times of a run. `whole` includes loading; `answering` does not, because it gives the answer rate.
  struct Times {
    double answering = 0, whole = 0;  ///< seconds
    int ranks = 1;
  };
  void finish(const Times& times, const generate::DecodeCounts& counts) {
    if (journal_ && !journal_->complete()) journal_->finish();
    const bool judges = options_.exact_match || options_.rouge_l;
    if (!journal_ && !judges) {
      for (const auto& lines : lines_) {
        for (const std::string& line : lines) std::printf("%s\n", line.c_str());
      }
    }
    tell(times, counts);
    if (judges && judged_ == 0) {
      throw Error({.what = "the file has no answers to compare with",
                   .expected = "rows with an answer",
                   .found = "0 rows with an answer",
                   .where = options_.file,
                   .fix = "leave out --exact-match and --rouge-l, or name a file of rows with answers",
                   .code = ExitCode::usage});
    }
    const double judged = static_cast<double>(judged_);
    if (options_.exact_match)
      std::printf("exact match: %.4g %%\n", 100.0 * static_cast<double>(right_) / judged);
    if (options_.rouge_l) std::printf("ROUGE-L: %.4g %%\n", 100.0 * rouge_l_ / judged);
  }

 private:
  void tell(const Times& times, const generate::DecodeCounts& counts) const {
    const auto per = [&times](std::int64_t count, double unit) {
      const double rate = static_cast<double>(count) * unit / std::max(times.answering, 1e-9);
      return with_commas(std::llround(rate));
    };
    std::string line = with_commas(done_ - failures_) +
                       (options_.score ? " rows scored in " : " rows answered in ") +
                       clock_time(times.answering);
    if (kept() > 0) line += " (" + with_commas(kept()) + " were there)";
    if (failures_ > 0) line += ", " + with_commas(failures_) + " left out";
    log::info(line);
    if (options_.score || done_ == 0) return;
    log::info("  " + per(counts.new_tokens, 1) + " tokens/s, " + per(done_ - failures_, 60) +
              " rows per minute" +
              (attempts_ > done_ * options_.samples
                   ? ", " + with_commas(attempts_ - done_ * options_.samples) + " retries"
                   : ""));
    if (counts.prompt_tokens > 0) {
      char share[32];
      std::snprintf(
          share, sizeof(share), "%.1f %%",
          100.0 * static_cast<double>(counts.shared_tokens) / static_cast<double>(counts.prompt_tokens));
      log::info("  " + with_commas(counts.prompt_tokens) + " tokens of prompts, " + share +
                " of them shared, in " + with_commas(counts.passes) + " forward passes");
    }
    log::info("  cache: at most " + with_commas(counts.cache_pages_used) + " of " +
              with_commas(counts.cache_pages) + " pages of " + std::to_string(options_.page_tokens) +
              " tokens held, " + with_commas(counts.put_back) + " sequences returned to the queue (" +
              with_commas(counts.recomputed_tokens) + " tokens computed again)");
    if (options_.gpu_hour_price > 0) {
      const double hours = times.whole * times.ranks / 3600;
      char cost[96];
      std::snprintf(cost, sizeof(cost), "  cost %.4g (%.4g device hours at %.4g)",
                    hours * options_.gpu_hour_price, hours, options_.gpu_hour_price);
      log::info(cost);
    }
  }

  const GenerateOptions& options_;
  std::optional<AnswerJournal> journal_;
  std::optional<RoutingOut> routing_;
  std::vector<std::vector<std::string>> lines_;
  std::int64_t done_ = 0, failures_ = 0, judged_ = 0, right_ = 0, attempts_ = 0;
  double rouge_l_ = 0;  // sum in the order in which rows finish
};

/// Deals the next rows to the ranks with the most room. All ranks compute the same deal; each returns its own
/// rows.
std::vector<std::int64_t> deal(const std::vector<std::int64_t>& rows, std::size_t& next,
                               std::vector<std::int64_t> room, int rank) {
  std::vector<std::int64_t> own;
  while (next < rows.size()) {
    const auto most = std::ranges::max_element(room);
    if (*most <= 0) break;
    if (most - room.begin() == rank) own.push_back(rows[next]);
    --*most;
    ++next;
  }
  return own;
}

// Starts rows, and decodes the open rows until the next exchange.
void work_a_round(RowWork& work, const std::vector<std::int64_t>& rows, int ranks) {
  for (const std::int64_t row : rows) work.begin(row);
  const auto start = Clock::now();
  do {
    work.step();
    // A single rank needs no exchange: it writes and refills as soon as a row is done.
  } while (work.busy() && seconds_since(start) < kRoundSeconds && (ranks > 1 || !work.has_done()));
}

void require_few_failures(std::int64_t failures, const GenerateOptions& o) {
  if (failures <= o.max_broken_rows) return;
  throw Error(
      {.what = "rows could not be answered",
       .expected = "at most " + std::to_string(o.max_broken_rows) + " (--max-broken-rows)",
       .found = std::to_string(failures) + " so far",
       .where = o.file,
       .fix = "correct the rows named above, or raise --max-broken-rows" +
              std::string(o.out.empty() ? "" : "; the answers are kept, and the same command resumes"),
       .code = ExitCode::usage});
}

/// A file of questions with its results.
struct Opened {
  std::optional<QuestionFile> file;
  std::optional<RowWork> work;
  std::optional<ScoreFile> scores;
  std::optional<Books> books;
  std::vector<std::int64_t> rows;  ///< unanswered; known only on the rank that prints
};

void open_file(Opened& all, bool prints, Answerer& answerer, const GenerateOptions& o) {
  const QuestionFile& file = all.file.emplace(o.file, o.shard);
  all.work.emplace(answerer, file, o);
  all.books.emplace(o, file.size());
  if (!prints) return;
  AnswerJournal::Job asked{.settings = settings_hash(answerer, *all.work, o), .questions = {}};
  if (o.hdf5) {
    std::vector<std::int64_t> numbers;
    for (std::int64_t i = 0; i < file.size(); ++i)
      numbers.push_back(static_cast<std::int64_t>(file.number(i)));
    asked.whole = &all.scores.emplace(answerer.score_source(), std::move(numbers));
  }
  if (!o.out.empty()) {
    for (std::int64_t i = 0; i < file.size(); ++i) asked.questions.push_back(file.hash(i));
  }
  all.books->open(asked, answerer.routers());
  all.rows = all.books->missing();
  if (all.books->kept() > 0) {
    log::info(with_commas(all.books->kept()) + " of " + with_commas(file.size()) +
              " rows are answered already");
  }
}

void add_counts(generate::DecodeCounts& sum, const generate::DecodeCounts& counts) {
  sum.prompt_tokens += counts.prompt_tokens;
  sum.shared_tokens += counts.shared_tokens;
  sum.new_tokens += counts.new_tokens;
  sum.passes += counts.passes;
  sum.cache_pages += counts.cache_pages;
  sum.cache_pages_used += counts.cache_pages_used;
  sum.put_back += counts.put_back;
  sum.recomputed_tokens += counts.recomputed_tokens;
}

}  // namespace

void answer_file(runtime::Session& session, comm::Channel& ranks, Answerer& answerer,
                 const GenerateOptions& o, std::chrono::steady_clock::time_point began) {
  Opened all;
  ranks.together([&] { open_file(all, session.prints(), answerer, o); });
  const std::vector<std::int64_t> rows = comm::broadcast_value(ranks, all.rows, 0);
  const auto start = Clock::now();
  std::size_t next = 0;
  std::int64_t done = 0, failures = 0;
  generate::DecodeCounts counts;
  std::exception_ptr failed;  // error of this rank, reported to all at the next exchange
  while (done < std::ssize(rows)) {
    std::vector<std::int64_t> room;
    counts = {};
    std::vector<RowWork::Done> results = all.work->take_done();
    const Report own{
        .room = all.work->room(), .done = std::move(results), .counts = answerer.decoder().counts()};
    std::vector<Report> reports;
    for (const std::string& text : ranks.all_gather_bytes(packed(own))) reports.push_back(unpacked(text));
    for (const Report& report : reports) {
      room.push_back(report.room);
      add_counts(counts, report.counts);
    }
    ranks.together([&] {
      if (failed) std::rethrow_exception(failed);
      for (const Report& report : reports) {
        for (const RowWork::Done& d : report.done) {
          ++done;
          failures += d.result.failure.empty() ? 0 : 1;
          if (session.prints()) all.books->add(d);
        }
      }
      if (session.prints()) all.books->sync();
      require_few_failures(failures, o);
    });
    const std::vector<std::int64_t> mine = deal(rows, next, room, ranks.rank());
    try {
      work_a_round(*all.work, mine, ranks.size());
    } catch (...) {
      failed = std::current_exception();
    }
  }
  if (session.prints()) {
    all.books->finish(
        {.answering = seconds_since(start), .whole = seconds_since(began), .ranks = session.job().size()},
        counts);
  }
}

}  // namespace octet::answers
