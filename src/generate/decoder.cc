#include "octet/generate/decoder.h"

#include <utility>

#include "answering.h"
#include "decoder_options.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/comm/mesh.h"
#include "octet/model/layout.h"
#include "pass_runner.h"
#include "passes.h"
#include "scoring.h"
#include "sequences.h"
#include "team_messages.h"
#include "token_choice.h"

namespace octet::generate {

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
  if (answering_->has_begun()) {
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
  sequences_ = std::make_unique<Sequences>(options_.sequences, options_.capacity, shape);
  const DecoderParts parts{.options = options_,
                           .team = team_,
                           .own = own_ != nullptr,
                           .model = *model_,
                           .core = *core_,
                           .runner = *runner_,
                           .choice = *choice_,
                           .sequences = *sequences_,
                           .counts = counts_};
  passes_ = std::make_unique<Passes>(parts);
  answering_ = std::make_unique<Answering>(parts, *passes_, runs_ahead());
  scoring_ = std::make_unique<Scoring>(parts, *passes_, *arena_);
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

bool Decoder::runs_ahead() const {
  return options_.run_ahead.value_or(model_->device().traits().runs_ahead) && own_ != nullptr &&
         team_ == nullptr && !walks_together(*model_);
}

// The dismissal is a message of one byte, and no plan has one byte. Earlier stages have begun passes that are
// no longer needed. Their messages are still received, because the senders would block otherwise.
void Decoder::dismiss(int code) {
  check(team_ != nullptr && team_->leads(), "a leader dismisses the ranks of its team");
  if (std::exchange(dismissed_, true)) return;
  answering_->run_rest();
  for (comm::Channel* channel : {&team_->ahead(), &team_->stage_ranks()})
    channel->broadcast(std::string(1, static_cast<char>(code)), 0);
}

int Decoder::follow() {
  check(team_ != nullptr && !team_->leads(), "every rank that does not lead follows");
  comm::Channel& channel = options_.architecture.share.last() ? team_->stage_ranks() : team_->ahead();
  while (true) {
    const std::string told = channel.broadcast({}, 0);
    if (told.size() == 1) return static_cast<unsigned char>(told.front());
    passes_->run(unpacked(told));
  }
}

std::vector<std::vector<double>> Decoder::log_probabilities(
    const std::vector<std::vector<std::int32_t>>& sequences) {
  return scoring_->log_probabilities(sequences);
}

Decoder::Score Decoder::score(const std::vector<std::int32_t>& ids, std::int64_t best) {
  return scoring_->score(ids, best);
}

std::vector<float> Decoder::next_logits(const std::vector<std::int32_t>& prompt) {
  return scoring_->next_logits(prompt);
}

std::size_t Decoder::submit(const Request& request, const AnswerOptions& options) {
  return answering_->submit(request, options);
}

bool Decoder::busy() const {
  return answering_->busy();
}

std::int64_t Decoder::room() const {
  return answering_->room();
}

std::vector<Decoder::Finished> Decoder::step(const OnToken& on_token) {
  return answering_->step(on_token);
}

std::vector<Answer> Decoder::complete(const std::vector<Request>& requests, const AnswerOptions& options,
                                      const OnToken& on_token) {
  return answering_->complete(requests, options, on_token);
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
