#include "messages/hang_watch.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <iterator>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/timing.h"
#include "octet/comm/serialize.h"

namespace octet::comm {
namespace {

std::atomic<bool> requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

}  // namespace

double TraceRing::now() const {
  return seconds_since(start_);
}

void TraceRing::open(const std::string& folder, int rank) {
  {
    const std::scoped_lock lock(mutex_);
    folder_ = folder;
    rank_ = rank;
  }
  if (folder.empty()) return;
  struct sigaction action {};
  action.sa_handler = [](int) { requested.store(true); };
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGQUIT, &action, nullptr);
}

bool TraceRing::take_request() {
  return requested.load(std::memory_order_relaxed) && requested.exchange(false);
}

std::uint64_t TraceRing::posted(Trace trace) {
  trace.posted = now();
  const std::scoped_lock lock(mutex_);
  if (ring_.size() < length) {
    ring_.push_back(std::move(trace));
  } else {
    ring_[count_ % length] = std::move(trace);
  }
  return count_++;
}

void TraceRing::begun(std::uint64_t which) {
  const double time = now();
  const std::scoped_lock lock(mutex_);
  if (which + length >= count_ && which < count_) ring_[which % length].begun = time;
}

void TraceRing::done(std::uint64_t which) {
  const double time = now();
  const std::scoped_lock lock(mutex_);
  if (which + length >= count_ && which < count_) ring_[which % length].done = time;
}

std::string TraceRing::to_json() const {
  const std::scoped_lock lock(mutex_);
  Json all = Json::array();
  for (std::uint64_t i = count_ > length ? count_ - length : 0; i < count_; ++i) {
    const Trace& t = ring_[i % length];
    Json row{{"kind", name_of(t.kind)}, {"name", t.name}, {"queue", t.queue},  {"sequence", t.sequence},
             {"bytes", t.bytes},        {"rank", rank_},  {"posted", t.posted}};
    row["begun"] = t.begun < 0 ? Json() : Json(t.begun);
    row["done"] = t.done < 0 ? Json() : Json(t.done);
    all.push_back(std::move(row));
  }
  return all.dump(1);
}

void TraceRing::write() const {
  std::string path;
  {
    const std::scoped_lock lock(mutex_);
    if (folder_.empty()) return;
    path = folder_ + "/collectives-rank" + std::to_string(rank_) + ".json";
  }
  try {
    write_file_atomically(path, to_json() + "\n");
  } catch (const std::exception& error) {
    log::warn("the trace of collectives was not written: " + std::string(error.what()));
  }
}

namespace {

constexpr auto look_every = std::chrono::milliseconds(20);
constexpr std::size_t longest_words = 80;

bool reported(Queue queue) {
  return queue == Queue::gather || queue == Queue::reduce || queue == Queue::control;
}

}  // namespace

bool RankReport::waits() const {
  return std::ranges::any_of(lanes, [](const auto& lane) { return lane.second.waits; });
}

const LaneReport* RankReport::on(int lane) const {
  const auto found = lanes.find(lane);
  return found == lanes.end() ? nullptr : &found->second;
}

void RollCall::began(const Call& call, const std::string& what) {
  const Queue queue = call.lane->queue;
  if (queue == Queue::end || call.ends) own_.ends = true;
  if (!reported(queue)) return;
  LaneReport& report = own_.lanes[call.lane->id];
  if (report.lane.empty()) {
    report.lane = call.lane->name;
    report.queue = static_cast<int>(queue);
  }
  report.paired = call.paired;
  if (!call.paired) report.begun = call.sequence + 1;
  report.waits = !call.ends;
  report.waits_for.clear();
  report.doing.assign(what, 0, longest_words);
}

void RollCall::ended(const Call& call) {
  if (call.ends) own_.ends = false;
  if (!reported(call.lane->queue)) return;
  LaneReport& report = own_.lanes[call.lane->id];
  report.waits = false;
  report.waits_for.clear();
}

void RollCall::waits_for(const Call& call, std::vector<int> ranks) {
  if (reported(call.lane->queue)) own_.lanes[call.lane->id].waits_for = std::move(ranks);
}

void RollCall::serve() {
  const auto now = Clock::now();
  if (broken_ || now - looked_ < look_every) return;
  looked_ = now;
  try {
    std::erase_if(sent_, [&](const Sent& sent) { return transport_.test(sent.ticket); });
    for (;;) {
      if (!arriving_from_) {
        const auto letter = transport_.probe(lane_.id);
        if (!letter) return;
        arriving_.resize(letter->bytes);
        arriving_from_ = {letter->peer, transport_.irecv(lane_.id, letter->peer, tag_of(Kind::control, 0),
                                                         arriving_.data(), arriving_.size())};
      }
      if (!transport_.test(arriving_from_->second)) return;
      const int peer = arriving_from_->first;
      arriving_from_.reset();
      take(peer);
    }
  } catch (const Error&) {
    broken_ = true;  // the job has failed: threads that wait for messages get the error
  }
}

void RollCall::take(int peer) {
  auto letter = from_bytes<Letter>(arriving_);
  if (!letter.is_answer) {
    send(peer, true, letter.round);
  } else if (asking() && letter.round == round_) {
    answers_[peer] = std::move(letter.report);
  }
}

void RollCall::send(int peer, bool is_answer, unsigned round) {
  Sent& sent = sent_.emplace_back();
  sent.bytes = to_bytes(Letter{.is_answer = is_answer, .round = round, .report = own_});
  sent.ticket =
      transport_.isend(lane_.id, peer, tag_of(Kind::control, 0), sent.bytes.data(), sent.bytes.size());
}

void RollCall::ask(const Call& call) {
  if (asking()) return;
  asking_ = &call;
  asked_at_ = Clock::now();
  ++round_;
  answers_.clear();
  const std::vector<int> concerned = call.partners.empty() ? call.lane->ranks : call.partners;
  for (const int rank : concerned) answers_.emplace(rank, std::nullopt);
  answers_[lane_.place.rank] = own_;
  for (const int rank : concerned) {
    if (rank != lane_.place.rank) send(rank, false, round_);
  }
}

bool RollCall::heard(std::chrono::duration<double> patience) const {
  return since_asked() > patience ||
         std::ranges::all_of(answers_, [](const auto& answer) { return answer.second.has_value(); });
}

bool RollCall::came(const RankReport& report) const {
  const LaneReport* on = report.on(asking_->lane->id);
  if (asking_->paired) return on != nullptr && on->waits && on->paired;
  if (asking_->lane->queue == Queue::end) return report.ends;
  return !reported(asking_->lane->queue) || (on != nullptr && on->begun > asking_->sequence);
}

RollCall::Missing RollCall::missing() const {
  Missing found;
  std::vector<int> elsewhere;
  for (const auto& [rank, report] : answers_) {
    const bool waits = report && report->waits();
    if (rank < lane_.place.rank && waits) found.lower_waits = true;
    if (report && came(*report)) continue;
    (waits ? elsewhere : found.ranks).push_back(rank);
  }
  if (found.ranks.empty()) found.ranks = std::move(elsewhere);
  for (const int rank : found.ranks) found.words += (found.words.empty() ? "" : "; ") + words_of(rank);
  return found;
}

// Returns null if the rank has not answered, or does not wait in the queried collective.
const LaneReport* RollCall::report_of_waiting(int rank) const {
  const auto answer = answers_.find(rank);
  if (answer == answers_.end() || !answer->second) return nullptr;
  const LaneReport* on = answer->second->on(asking_->lane->id);
  if (on == nullptr || !on->waits) return nullptr;
  return asking_->paired || on->begun == asking_->sequence + 1 ? on : nullptr;
}

std::vector<int> RollCall::blocking(const std::vector<int>& waited_for) const {
  std::map<int, std::vector<int>> chains;  // the ranks that a rank waits for
  std::vector<int> next = waited_for;
  while (!next.empty()) {
    const int rank = next.back();
    next.pop_back();
    if (chains.contains(rank)) continue;
    const LaneReport* report = report_of_waiting(rank);
    chains[rank] = report == nullptr ? std::vector<int>() : report->waits_for;
    std::ranges::copy(chains[rank], std::back_inserter(next));
  }
  std::vector<int> ends;
  for (const auto& [rank, others] : chains) {
    if (others.empty()) ends.push_back(rank);
  }
  if (!ends.empty()) return ends;
  // Ranks that no other rank waits for are in no circle.
  const auto is_outside = [&](const auto& chain) {
    return std::ranges::none_of(
        chains, [&](const auto& other) { return std::ranges::count(other.second, chain.first) > 0; });
  };
  while (std::erase_if(chains, is_outside) > 0) {
  }
  for (const auto& [rank, others] : chains) ends.push_back(rank);
  return ends;
}

std::vector<int> RollCall::still_in() const {
  std::vector<int> ranks;
  for (const auto& [rank, report] : answers_) {
    if (report_of_waiting(rank) != nullptr) ranks.push_back(rank);
  }
  return ranks;
}

std::string RollCall::words_of(int rank) const {
  const std::string who = "rank " + std::to_string(rank);
  const auto& report = answers_.at(rank);
  if (!report) return who + " does not answer";
  if (report->ends) return who + " answers: it has ended its work";
  const LaneReport* waits = nullptr;  // of several lanes, the data lanes come first
  for (const auto& [id, lane] : report->lanes) {
    if (lane.waits && (waits == nullptr || lane.queue < waits->queue)) waits = &lane;
  }
  if (waits == nullptr) return who + " answers: it waits in no collective";
  return who + " answers: it waits in " + waits->doing + ", queue " + waits->lane +
         (waits->paired ? "" : ", number " + std::to_string(waits->begun - 1));
}

namespace {

// How long ranks may take to answer a roll call (a quarter of the timeout between these limits), and how long
// a rank waits for a lower rank to end the job.
constexpr std::chrono::duration<double> shortest_roll_call(2);
constexpr std::chrono::duration<double> longest_roll_call(10);
constexpr std::chrono::duration<double> courtesy(3);
// Seconds without progress after which a rank reports the ranks that it waits for, and between two reports.
constexpr double note_after = 0.1;

}  // namespace

HangWatch::HangWatch(Transport& transport, const Lane& lane)
    : roll_(transport, lane), rank_(transport.place().rank) {}

void HangWatch::set(const WatchOptions& options) {
  traces_.open(options.trace_folder, rank_);
  timeout_seconds_ = options.timeout_seconds;
}

void HangWatch::began(Operation& operation) {
  operation.moved = Clock::now();
  traces_.begun(operation.traced);
  roll_.began(operation.call, operation.what);
}

void HangWatch::moved(Operation& operation, bool finished) {
  operation.moved = Clock::now();
  operation.all_came = false;
  if (operation.noted != Clock::time_point()) {
    operation.noted = {};
    roll_.waits_for(operation.call, {});
  }
  if (roll_.asks_for(operation.call)) roll_.forget();
  if (!finished) return;
  traces_.done(operation.traced);
  roll_.ended(operation.call);
}

void HangWatch::waits(Operation& operation) {
  const double limit = timeout_seconds_.load(std::memory_order_relaxed);
  if (limit <= 0) return;
  const double waited = seconds_since(*operation.moved);
  if (waited > std::min(limit, note_after) && seconds_since(operation.noted) > note_after) {
    operation.noted = Clock::now();
    roll_.waits_for(operation.call, operation.call.missing_ranks());
  }
  if (waited > limit) look_for_the_missing(operation, waited);
}

void HangWatch::serve() {
  if (TraceRing::take_request()) traces_.write();
  roll_.serve();
}

// Handles a collective without progress. Before this rank ends the job, it queries the other ranks, so that
// the message names the missing ranks and not the waiting ranks. If a lower rank also waits, that rank prints
// first, so one message is printed.
void HangWatch::look_for_the_missing(Operation& operation, double seconds) {
  if (!roll_.asks_for(operation.call)) {
    if (roll_.asking()) return;
    traces_.write();
    roll_.ask(operation.call);
    return;
  }
  const std::chrono::duration<double> patience(
      std::clamp(timeout_seconds_ / 4, shortest_roll_call.count(), longest_roll_call.count()));
  if (!roll_.heard(patience)) return;
  RollCall::Missing missing = roll_.missing();
  if (missing.lower_waits && roll_.since_asked() < patience + courtesy) return;
  std::string found;
  if (missing.ranks.empty()) {
    missing.ranks = roll_.blocking(operation.call.missing_ranks());
    found = "all ranks take part, but messages are missing from ";
    if (missing.ranks.empty()) {
      missing.ranks = roll_.still_in();
      found = "all ranks take part, but it does not finish on ";
    }
    // The last rank may have arrived during the query, and other ranks forward its messages. If devices carry
    // the bytes, nothing else shows progress. The collective gets the whole timeout once more, and then
    // counts as stuck.
    roll_.forget();
    operation.moved = Clock::now();
    if (!std::exchange(operation.all_came, true)) return;
  } else {
    found = "nothing from ";
  }
  found += missing.ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < missing.ranks.size(); ++i) {
    found += (i == 0 ? "" : ", ") + std::to_string(missing.ranks[i]);
  }
  if (!missing.words.empty()) found += " (" + missing.words + ")";
  throw Error(
      Problem{.what = operation.what + ": no message came or left for " +
                      std::to_string(static_cast<int>(seconds)) + " s",
              .expected = "every rank to take part within ddp_timeout",
              .found = found,
              .where = std::to_string(operation.bytes) + " bytes, queue " + operation.call.lane->name +
                       (operation.call.paired ? "" : ", number " + std::to_string(operation.call.sequence)),
              .fix = "look at these ranks and at their output; raise ddp_timeout if they are only slow",
              .code = ExitCode::hang});
}

}  // namespace octet::comm
