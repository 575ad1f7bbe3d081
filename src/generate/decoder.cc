#include "octet/generate/decoder.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "cache_size.h"
#include "decoder_options.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/comm/mesh.h"
#include "octet/model/build.h"
#include "octet/runtime/scoring.h"
#include "pass_plan.h"
#include "pass_runner.h"
#include "sequences.h"
#include "tensor_sums.h"
#include "token_choice.h"

namespace octet::generate {

struct Decoder::Ahead {
  std::vector<PageCopy> copies;    ///< to do before the next pass
  std::deque<PassPlan> in_flight;  ///< oldest first
  std::size_t begun = 0;           ///< the oldest `begun` of them have begun
};

Decoder::Decoder(Device& device, comm::Job& job, comm::Collectives& data, const DecoderOptions& options)
    : options_(possible(options, device)),
      own_(std::make_unique<runtime::Instance>(device, job, data, instance_options(options, nullptr))),
      model_(own_.get()),
      arena_(&own_->arena()),
      core_(&own_->core()) {
  reserve();
}

Decoder::Decoder(Device& device, Team& team, const DecoderOptions& options)
    : options_(possible(options_for(team, options), device)),
      team_(&team),
      own_job_(comm::make_self_job()),
      own_data_(own_job_->collectives(comm::Mesh(1).group("data", 0), device, comm::Carrier::automatic)),
      sums_(team.share().sums() ? std::make_unique<TensorSums>(team.tensor(), device) : nullptr),
      own_(std::make_unique<runtime::Instance>(device, *own_job_, *own_data_,
                                               instance_options(options_, sums_.get()))),
      model_(own_.get()),
      arena_(&own_->arena()),
      core_(&own_->core()) {
  reserve();
}

Decoder::Decoder(runtime::Instance& model, const DecoderOptions& options)
    : options_(possible(options_for(model, options), model.device())),
      own_arena_(std::make_unique<Arena>(model.device())),
      model_(&model),
      arena_(own_arena_.get()) {
  own_core_ = std::make_unique<model::Transformer>(options_.architecture, options_.recipe, *arena_,
                                                   core_beside(model, options_));
  core_ = own_core_.get();
  reserve();
}

Decoder::~Decoder() {
  if (ahead_->begun > 0) {
    try {
      compute().synchronize();  // its memory is about to be freed
    } catch (const std::exception& error) {
      log::warn(std::string("a forward pass failed after the end of its requests: ") + error.what());
    }
  }
  if (team_ == nullptr || !team_->leads() || std::uncaught_exceptions() > exceptions_at_start_) return;
  try {
    dismiss(0);
  } catch (const std::exception& error) {
    log::warn(std::string("the end of the other ranks of a model failed: ") + error.what());
  }
}

void Decoder::reserve() {
  const model::KvLayout layout = cache_layout(options_);
  const CacheShape shape = asked_cache(options_, layout);
  runner_ = std::make_unique<PassRunner>(RunnerParts{.model = *model_,
                                                     .core = *core_,
                                                     .arena = *arena_,
                                                     .own = own_ != nullptr,
                                                     .ahead = runs_ahead(),
                                                     .team = team_,
                                                     .sums = sums_.get()},
                                         options_, layout, shape.pages);
  choice_ = std::make_unique<TokenChoice>(options_, *runner_);
  ahead_ = std::make_unique<Ahead>();
  sequences_ = std::make_unique<Sequences>(options_.sequences, options_.capacity, shape);
  count();
  if (options_.scored > 0) {
    staging_ = std::make_unique<runtime::Staging>(
        *arena_, runtime::StagingOptions{.tokens = core_->options().max_tokens,
                                         .labels = options_.scored,
                                         .documents = 2,  // one is padding
                                         .length = core_->options().max_length,
                                         .vocabulary = options_.architecture.vocabulary,
                                         .token_unit = model_->options().token_unit});
  }
  arena_->seal();
}

void Decoder::load_weights(const std::string& folder) {
  check(own_ != nullptr, "the weights of a model in training are not read by a decoder");
  runner_->forget_parameters();
  const auto load = [&] { own_->load_weights(folder); };
  team_ != nullptr ? team_->job().together(load) : load();
  own_->store().synchronize(compute());
  sequences_->forget();
}

void Decoder::initialise(std::uint64_t seed) {
  check(own_ != nullptr, "the weights of a model in training are not made by a decoder");
  runner_->forget_parameters();
  own_->initialise(seed);
  own_->store().synchronize(compute());
  sequences_->forget();
}

std::int64_t Decoder::parameter_count() const {
  if (team_ == nullptr) return model_->store().layout().parameter_count();
  model::Architecture whole = options_.architecture;
  whole.share = {};
  return model::build_layout(whole).parameter_count();
}

bool Decoder::walks_together() const {
  return model_->job().size() > 1 && model_->options().store.stage == 3;
}

void Decoder::require(const std::function<void()>& checks) {
  if (walks_together()) {
    model_->job().together(checks);
  } else {
    checks();
  }
}

bool Decoder::goes_on(bool here) {
  return walks_together() ? model_->job().all_max(here ? 1 : 0) == 1 : here;
}

void Decoder::take_scales() {
  precision::ScaleSet* const own = core_->activation_scales();
  if (own_ != nullptr || own == nullptr || options_.recipe.kind != precision::RecipeKind::delayed) return;
  model_->store().synchronize(compute());  // the gradient scales are set on another stream
  own->take(compute(), *model_->core().activation_scales());
}

std::vector<std::vector<double>> Decoder::log_probabilities(
    const std::vector<std::vector<std::int32_t>>& sequences) {
  require([&] {
    for (const std::vector<std::int32_t>& sequence : sequences) {
      const auto length = static_cast<std::int64_t>(sequence.size());
      if (length > 0 && length <= options_.scored) continue;
      throw Error({.what = "a sequence cannot be scored",
                   .expected = "1 to " + std::to_string(options_.scored) + " tokens",
                   .found = std::to_string(length),
                   .fix = "remove the text, or raise --max-length",
                   .code = ExitCode::usage});
    }
  });
  take_scales();
  std::vector<std::vector<double>> out;
  while (goes_on(out.size() < sequences.size())) {
    if (out.size() == sequences.size()) {
      model_->store().pass_by(compute());
      continue;
    }
    const std::vector<std::int32_t>& sequence = sequences[out.size()];
    runtime::HostBatch batch;
    runtime::add_document(batch, sequence, sequence);
    out.push_back(runtime::log_probabilities(*core_, model_->store(), compute(),
                                             staging_->upload(compute(), batch), batch.targets,
                                             staging_->loss_sum()));
  }
  return out;
}

PassPlan Decoder::planned(PassTokens tokens) {
  PassPlan plan{.copies = std::exchange(ahead_->copies, {}),
                .changes = sequences_->take_changes(),
                .tokens = std::move(tokens),
                .wanted = {}};
  plan.wanted = choice_->wanted_of(plan.tokens);
  if (team_ != nullptr) plan.told = packed(plan);
  if (team_ != nullptr) team_->ahead().broadcast(plan.told, 0);
  return plan;
}

void Decoder::begin(const PassPlan& plan) {
  if (team_ != nullptr && team_->leads()) team_->stage_ranks().broadcast(plan.told, 0);
  runner_->begin(plan);
  ++counts_.passes;
  counts_.replayed = runner_->replayed();
}

void Decoder::run(const PassPlan& plan) {
  begin(plan);
  runner_->finish();
}

// The dismissal is a message of one byte, and no plan has one byte. Earlier stages have begun passes that are
// no longer needed. Their messages are still received, because the senders would block otherwise.
void Decoder::dismiss(int code) {
  check(team_ != nullptr && team_->leads(), "a leader dismisses the ranks of its team");
  if (std::exchange(dismissed_, true)) return;
  for (const PassPlan& plan : std::exchange(ahead_->in_flight, {})) run(plan);
  for (comm::Channel* channel : {&team_->ahead(), &team_->stage_ranks()})
    channel->broadcast(std::string(1, static_cast<char>(code)), 0);
}

int Decoder::follow() {
  check(team_ != nullptr && !team_->leads(), "every rank that does not lead follows");
  comm::Channel& channel = options_.architecture.share.last() ? team_->stage_ranks() : team_->ahead();
  while (true) {
    const std::string told = channel.broadcast({}, 0);
    if (told.size() == 1) return static_cast<unsigned char>(told.front());
    run(unpacked(told));
  }
}

void Decoder::require_ids(const std::vector<std::int32_t>& ids, std::int64_t most) const {
  const auto length = std::ssize(ids);
  if (length == 0)
    throw Error({.what = "a prompt is empty",
                 .expected = "at least one token",
                 .found = "0 tokens",
                 .fix = "write a question",
                 .code = ExitCode::usage});
  if (length > most) {
    throw Error({.what = "a prompt is too long",
                 .expected = "at most " + std::to_string(most) + " tokens",
                 .found = std::to_string(length),
                 .fix = "shorten it, or raise --max-length",
                 .code = ExitCode::usage});
  }
  const std::int64_t vocabulary = options_.architecture.vocabulary;
  for (const std::int32_t id : ids) {
    if (id >= 0 && id < vocabulary) continue;
    throw Error({.what = "a token id is outside the model's vocabulary",
                 .expected = "ids below " + std::to_string(vocabulary),
                 .found = std::to_string(id),
                 .fix = "use the tokenizer that belongs to the model",
                 .code = ExitCode::usage});
  }
}

std::size_t Decoder::submit(const Request& request, const AnswerOptions& options) {
  require_possible(options.sampling);
  require_ids(request.prompt, options_.capacity - 1);
  // A model in training may have changed since the last answer.
  if (own_ == nullptr && !busy()) {
    sequences_->forget();
    take_scales();
  }
  Sequence sequence{.request = submitted_, .asked = request, .options = options, .tokens = request.prompt};
  counts_.prompt_tokens += std::ssize(request.prompt);
  sequences_->submit(std::move(sequence));
  return submitted_++;
}

bool Decoder::busy() const {
  return sequences_->busy();
}

std::int64_t Decoder::room() const {
  return sequences_->room();
}

// Takes the next token of a sequence. Returns true if its answer continues.
bool Decoder::extend(Sequence& s, std::size_t row, const OnToken& on_token) {
  const AnswerOptions& o = s.options;
  TokenChoice::Choice choice = choice_->choose_for(s, row);
  const std::int32_t token = choice.token;
  if (std::ranges::find(o.stop_ids, token) != o.stop_ids.end()) {
    s.answer.finish = FinishReason::stop;
    return false;
  }
  s.tokens.push_back(token);
  s.answer.ids.push_back(token);
  ++counts_.new_tokens;
  if (o.logprobs >= 0) s.answer.logprobs.push_back(choice.logprob);
  if (o.logprobs > 0) s.answer.top.push_back(std::move(choice.best));
  if (on_token && !on_token(s.request, token)) {
    s.answer.finish = FinishReason::stop;
    return false;
  }
  return std::ssize(s.tokens) < options_.capacity && std::ssize(s.answer.ids) < o.max_new;
}

void Decoder::count() {
  counts_.shared_tokens = sequences_->shared();
  counts_.put_back = sequences_->put_back();
  counts_.recomputed_tokens = sequences_->recomputed();
  counts_.cache_pages = sequences_->pages().pages();
  counts_.cache_pages_used = sequences_->pages().most_held();
}

void Decoder::plan_ahead() {
  const int stages = options_.architecture.share.stages;
  while (std::ssize(ahead_->in_flight) < stages) {
    PassTokens tokens = next_tokens(false);
    if (tokens.ids.empty()) return;
    ahead_->in_flight.push_back(planned(std::move(tokens)));
  }
}

PassTokens Decoder::next_tokens(bool behind) {
  const std::vector<PageCopy> copies = sequences_->admit();
  ahead_->copies.insert(ahead_->copies.end(), copies.begin(), copies.end());
  const auto room = static_cast<std::size_t>(most_tokens(options_));
  return behind ? sequences_->next_behind(room)
                : sequences_->next_pass(room, options_.architecture.share.stages);
}

bool Decoder::runs_ahead() const {
  return options_.run_ahead.value_or(model_->device().traits().runs_ahead) && own_ != nullptr &&
         team_ == nullptr && !walks_together();
}

void Decoder::begin_passes() {
  std::deque<PassPlan>& passes = ahead_->in_flight;
  if (ahead_->begun == 0) {
    begin(passes.front());
    ++ahead_->begun;
  }
  // A profile times one pass at a time.
  const bool timed = compute().profile() != nullptr;
  if (!runs_ahead() || timed || passes.size() > 1 || !passes.front().wanted.best_alone()) return;
  PassTokens tokens = next_tokens(true);
  if (tokens.ids.empty()) return;
  passes.push_back(planned(std::move(tokens)));
  begin(passes.back());
  ++ahead_->begun;
}

std::vector<Decoder::Finished> Decoder::step(const OnToken& on_token) {
  plan_ahead();
  count();
  if (ahead_->in_flight.empty()) {
    if (walks_together()) model_->store().pass_by(compute());  // other ranks still have requests
    return {};
  }
  begin_passes();
  const PassPlan plan = std::move(ahead_->in_flight.front());
  ahead_->in_flight.pop_front();
  runner_->finish();
  --ahead_->begun;
  std::vector<Finished> finished;
  for (std::size_t row = 0; row < plan.tokens.sequences.size(); ++row) {
    Sequence& s = *plan.tokens.sequences[row];
    if (!sequences_->land(s)) continue;
    const bool goes_on = extend(s, row, on_token);
    sequences_->learn(s);
    if (goes_on) continue;
    finished.push_back({s.request, std::move(s.answer)});
    sequences_->end(s);
  }
  counts_.whole_rows = choice_->whole_rows();
  return finished;
}

std::vector<Answer> Decoder::complete(const std::vector<Request>& requests, const AnswerOptions& options,
                                      const OnToken& on_token) {
  check(!busy(), "only one list of requests is answered at a time");
  require([&] {
    require_possible(options.sampling);
    for (const Request& request : requests) require_ids(request.prompt, options_.capacity - 1);
  });
  const std::size_t first = submitted_;
  for (const Request& request : requests) submit(request, options);
  const auto of_list = [&](std::size_t request, std::int32_t token) {
    return on_token(request - first, token);
  };
  std::vector<Answer> answers(requests.size());
  while (goes_on(busy())) {
    for (Finished& done : step(on_token ? OnToken(of_list) : OnToken())) {
      answers[done.request - first] = std::move(done.answer);
    }
  }
  return answers;
}

// Runs a text through the first slot, `piece` tokens at a time. `see` reads the logits of the tokens
// [begin, end).
void Decoder::take_text(const std::vector<std::int32_t>& ids, std::int64_t piece,
                        const std::function<void(std::int64_t begin, std::int64_t end)>& see) {
  check(!busy(), "texts are taken between answers");
  sequences_->begin_text(ids);
  try {
    for (std::int64_t begin = 0; begin < std::ssize(ids); begin += piece) {
      const std::int64_t end = std::min(std::ssize(ids), begin + piece);
      run(planned(sequences_->next_of_text(piece)));
      see(begin, end);
    }
  } catch (...) {
    sequences_->end_text();
    throw;
  }
  sequences_->end_text();
}

Decoder::Score Decoder::score(const std::vector<std::int32_t>& ids, std::int64_t best) {
  check(options_.score_rows > 0, "the decoder was built for scores");
  require_ids(ids, options_.capacity);
  Score score;
  take_text(ids, options_.score_rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < std::min(end, std::ssize(ids) - 1); ++t) {
      const LogProbabilities raw = choice_->log_softmax(static_cast<std::size_t>(t - begin));
      score.logprobs.push_back(raw.of(ids[static_cast<std::size_t>(t) + 1]));
      require_finite(score.logprobs.back());
      score.top.push_back(raw.best(best));
    }
  });
  return score;
}

std::vector<float> Decoder::next_logits(const std::vector<std::int32_t>& prompt) {
  require_ids(prompt, options_.capacity);
  std::vector<float> last;
  take_text(
      prompt, std::min(logit_rows(options_), piece_of(options_)), [&](std::int64_t begin, std::int64_t end) {
        const std::span<const float> logits = runner_->logits(static_cast<std::size_t>(end - begin - 1));
        last.assign(logits.begin(), logits.end());
      });
  return last;
}

int lead_or_follow(Team& team, Decoder& decoder, const std::function<void()>& lead) {
  if (!team.leads()) return decoder.follow();
  try {
    lead();
  } catch (const Error& error) {
    // An Error that only this rank has ends the job, and with it the other ranks.
    if (error.problem().agreed) decoder.dismiss(static_cast<int>(error.code()));
    throw;
  }
  decoder.dismiss(0);
  return 0;
}

const char* to_string(FinishReason reason) {
  return reason == FinishReason::stop ? "stop" : "length";
}

}  // namespace octet::generate
