#include "answering.h"

#include <algorithm>
#include <span>
#include <utility>

#include "octet/base/error.h"

namespace octet::generate {

Answering::Answering(const DecoderParts& parts, Passes& passes, bool runs_ahead)
    : parts_(parts), passes_(passes), runs_ahead_(runs_ahead) {
  count();
}

std::size_t Answering::submit(const Request& request, const AnswerOptions& options) {
  require_possible(options.sampling);
  passes_.require_ids(request.prompt, parts_.options.capacity - 1);
  // A model in training may have changed since the last answer.
  if (!parts_.own && !busy()) {
    parts_.sequences.forget();
    passes_.take_scales();
  }
  Sequence sequence{.request = submitted_, .asked = request, .options = options, .tokens = request.prompt};
  parts_.counts.prompt_tokens += std::ssize(request.prompt);
  parts_.sequences.submit(std::move(sequence));
  return submitted_++;
}

bool Answering::busy() const {
  return parts_.sequences.busy();
}

std::int64_t Answering::room() const {
  return parts_.sequences.room();
}

// Takes the next token of a sequence. Returns true if its answer continues.
bool Answering::extend(Sequence& s, std::size_t row, const OnToken& on_token) {
  const AnswerOptions& o = s.options;
  TokenChoice::Choice choice = parts_.choice.choose_for(s, row);
  const std::int32_t token = choice.token;
  if (std::ranges::find(o.stop_ids, token) != o.stop_ids.end()) {
    s.answer.finish = FinishReason::stop;
    return false;
  }
  s.tokens.push_back(token);
  s.answer.ids.push_back(token);
  ++parts_.counts.new_tokens;
  if (o.logprobs >= 0) s.answer.logprobs.push_back(choice.logprob);
  if (o.logprobs > 0) s.answer.top.push_back(std::move(choice.best));
  if (on_token && !on_token(s.request, token)) {
    s.answer.finish = FinishReason::stop;
    return false;
  }
  return std::ssize(s.tokens) < parts_.options.capacity && std::ssize(s.answer.ids) < o.max_new;
}

void Answering::count() {
  parts_.counts.shared_tokens = parts_.sequences.shared();
  parts_.counts.put_back = parts_.sequences.put_back();
  parts_.counts.recomputed_tokens = parts_.sequences.recomputed();
  parts_.counts.cache_pages = parts_.sequences.pages().pages();
  parts_.counts.cache_pages_used = parts_.sequences.pages().most_held();
}

// A sequence that returned to the queue computes tokens again. The experts with which its answer was sampled
// stay.
void Answering::take_experts(const PassTokens& tokens) {
  const model::Architecture& a = parts_.options.architecture;
  const auto blocks =
      static_cast<std::size_t>(std::ranges::count_if(a.blocks, &model::BlockShape::mixes_experts));
  const auto taken = static_cast<std::size_t>(a.experts.taken);
  for (std::size_t token = 0; token < tokens.ids.size(); ++token) {
    std::vector<std::uint16_t>& experts = parts_.sequences.at_slot(tokens.slots[token]).answer.experts;
    const auto position = static_cast<std::size_t>(tokens.positions[token]);
    if (position * blocks * taken < experts.size()) continue;
    for (std::size_t block = 0; block < blocks; ++block) {
      const std::span<const std::int32_t> chosen = parts_.runner.experts(block, token);
      experts.insert(experts.end(), chosen.begin(), chosen.end());
    }
  }
}

void Answering::plan_ahead() {
  const int stages = parts_.options.architecture.share.stages;
  while (std::ssize(in_flight_) < stages) {
    PassTokens tokens = next_tokens(false);
    if (tokens.ids.empty()) return;
    in_flight_.push_back(passes_.planned(std::move(tokens)));
  }
}

PassTokens Answering::next_tokens(bool behind) {
  passes_.add_copies(parts_.sequences.admit());
  const auto room = static_cast<std::size_t>(most_tokens(parts_.options));
  return behind ? parts_.sequences.next_behind(room)
                : parts_.sequences.next_pass(room, parts_.options.architecture.share.stages);
}

void Answering::begin_passes() {
  if (begun_ == 0) {
    passes_.begin(in_flight_.front());
    ++begun_;
  }
  // A profile times one pass at a time.
  const bool timed = parts_.model.compute().profile() != nullptr;
  if (!runs_ahead_ || timed || in_flight_.size() > 1 || !in_flight_.front().wanted.best_alone()) return;
  PassTokens tokens = next_tokens(true);
  if (tokens.ids.empty()) return;
  in_flight_.push_back(passes_.planned(std::move(tokens)));
  passes_.begin(in_flight_.back());
  ++begun_;
}

std::vector<Decoder::Finished> Answering::step(const OnToken& on_token) {
  plan_ahead();
  count();
  if (in_flight_.empty()) {
    passes_.pass_by();  // other ranks may still have requests
    return {};
  }
  begin_passes();
  const PassPlan plan = std::move(in_flight_.front());
  in_flight_.pop_front();
  parts_.runner.finish();
  --begun_;
  if (parts_.options.keep_experts) take_experts(plan.tokens);
  std::vector<Decoder::Finished> finished;
  for (std::size_t row = 0; row < plan.tokens.sequences.size(); ++row) {
    Sequence& s = *plan.tokens.sequences[row];
    if (!parts_.sequences.land(s)) continue;
    const bool goes_on = extend(s, row, on_token);
    parts_.sequences.learn(s);
    if (goes_on) continue;
    finished.push_back({s.request, std::move(s.answer)});
    parts_.sequences.end(s);
  }
  parts_.counts.whole_rows = parts_.choice.whole_rows();
  return finished;
}

std::vector<Answer> Answering::complete(const std::vector<Request>& requests, const AnswerOptions& options,
                                        const OnToken& on_token) {
  check(!busy(), "only one list of requests is answered at a time");
  passes_.require([&] {
    require_possible(options.sampling);
    for (const Request& request : requests) passes_.require_ids(request.prompt, parts_.options.capacity - 1);
  });
  const std::size_t first = submitted_;
  for (const Request& request : requests) submit(request, options);
  const auto of_list = [&](std::size_t request, std::int32_t token) {
    return on_token(request - first, token);
  };
  std::vector<Answer> answers(requests.size());
  while (passes_.goes_on(busy())) {
    for (Decoder::Finished& done : step(on_token ? OnToken(of_list) : OnToken())) {
      answers[done.request - first] = std::move(done.answer);
    }
  }
  return answers;
}

void Answering::run_rest() {
  for (const PassPlan& plan : std::exchange(in_flight_, {})) passes_.run(plan);
}

}  // namespace octet::generate
