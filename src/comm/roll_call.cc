#include "roll_call.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "octet/base/error.h"

namespace octet::comm {
namespace {

constexpr auto look_every = std::chrono::milliseconds(20);

bool reported(Queue queue) {
  return static_cast<int>(queue) < RankReport::queues;
}

}  // namespace

void RollCall::began(const Call& call, const std::string& what) {
  if (call.queue == Queue::end || call.ends) own_.ends = 1;
  if (!reported(call.queue)) return;
  const auto q = static_cast<std::size_t>(call.queue);
  own_.begun[q] = call.sequence + 1;
  own_.waits[q] = call.ends ? 0 : 1;
  auto& words = own_.doing[q];
  const std::size_t n = std::min(what.size(), words.size() - 1);
  std::memcpy(words.data(), what.data(), n);
  words[n] = '\0';
}

void RollCall::ended(const Call& call) {
  if (call.ends) own_.ends = 0;
  if (reported(call.queue)) own_.waits[static_cast<std::size_t>(call.queue)] = 0;
}

void RollCall::serve() {
  const auto now = Clock::now();
  if (broken_ || now - looked_ < look_every) return;
  looked_ = now;
  try {
    std::erase_if(sent_, [&](const Sent& sent) { return transport_.test(sent.ticket); });
    for (;;) {
      if (!arriving_from_) {
        const std::optional<int> peer = transport_.probe(Queue::roll);
        if (!peer) return;
        arriving_from_ = {*peer, transport_.irecv(Queue::roll, *peer, tag_of(Kind::control, 0), &arriving_,
                                                  sizeof arriving_)};
      }
      if (!transport_.test(arriving_from_->second)) return;
      const int peer = arriving_from_->first;
      arriving_from_.reset();
      take(peer);
    }
  } catch (const Error&) {
    broken_ = true;  // the job has failed: whoever waits for messages hears of it
  }
}

void RollCall::take(int peer) {
  static_assert(std::is_trivially_copyable_v<Letter>);
  for (auto& words : arriving_.report.doing) words.back() = '\0';
  if (arriving_.is_answer == 0) {
    send(peer, true, arriving_.round);
  } else if (asking() && arriving_.round == round_) {
    answers_[static_cast<std::size_t>(peer)] = arriving_.report;
  }
}

void RollCall::send(int peer, bool is_answer, std::uint32_t round) {
  Sent& sent = sent_.emplace_back();
  sent.letter = {.is_answer = is_answer ? 1u : 0u, .round = round, .report = own_};
  sent.ticket =
      transport_.isend(Queue::roll, peer, tag_of(Kind::control, 0), &sent.letter, sizeof sent.letter);
}

void RollCall::ask(const Call& call) {
  if (asking()) return;
  asking_ = &call;
  asked_at_ = Clock::now();
  ++round_;
  const Place& place = transport_.place();
  answers_.assign(static_cast<std::size_t>(place.size), std::nullopt);
  answers_[static_cast<std::size_t>(place.rank)] = own_;
  for (int d = 1; d < place.size; ++d) send((place.rank + d) % place.size, false, round_);
}

bool RollCall::heard(std::chrono::duration<double> patience) const {
  return since_asked() > patience ||
         std::ranges::all_of(answers_, [](const auto& answer) { return answer.has_value(); });
}

bool RollCall::came(const RankReport& report) const {
  return !reported(asking_->queue) ||
         report.begun[static_cast<std::size_t>(asking_->queue)] > asking_->sequence;
}

RollCall::Missing RollCall::missing() const {
  Missing found;
  std::vector<int> elsewhere;
  const Place& place = transport_.place();
  for (int rank = 0; rank < place.size; ++rank) {
    const auto& report = answers_[static_cast<std::size_t>(rank)];
    const bool waits = report && std::ranges::count(report->waits, std::uint8_t{1}) > 0;
    if (rank < place.rank && waits) found.lower_waits = true;
    if (report && came(*report)) continue;
    (waits ? elsewhere : found.ranks).push_back(rank);
  }
  if (found.ranks.empty()) found.ranks = std::move(elsewhere);
  for (const int rank : found.ranks) found.words += (found.words.empty() ? "" : "; ") + words_of(rank);
  return found;
}

std::vector<int> RollCall::still_in() const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < answers_.size() && reported(asking_->queue); ++rank) {
    const auto q = static_cast<std::size_t>(asking_->queue);
    const auto& report = answers_[rank];
    if (report && report->begun[q] == asking_->sequence + 1 && report->waits[q] != 0) {
      ranks.push_back(static_cast<int>(rank));
    }
  }
  return ranks;
}

std::string RollCall::words_of(int rank) const {
  const std::string who = "rank " + std::to_string(rank);
  const auto& report = answers_[static_cast<std::size_t>(rank)];
  if (!report) return who + " does not answer";
  if (report->ends != 0) return who + " answers: it has ended its work";
  for (int q = 0; q < RankReport::queues; ++q) {
    const auto i = static_cast<std::size_t>(q);
    if (report->waits[i] == 0) continue;
    return who + " answers: it waits in " + report->doing[i].data() + ", queue " +
           name_of(static_cast<Queue>(q)) + ", number " + std::to_string(report->begun[i] - 1);
  }
  return who + " answers: it waits in no collective";
}

}  // namespace octet::comm
