#include "octet/answers/answer.h"

#include <chrono>
#include <cmath>
#include <memory>

#include "answer_file.h"
#include "answerer.h"
#include "conversation.h"
#include "model_source.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/config/derive.h"
#include "octet/generate/team.h"
#include "octet/train/merged_model.h"
#include "trained_prompts.h"

namespace octet::answers {
namespace {

// Checks settings that are final only after the defaults of the model are read.
void require_possible(const GenerateOptions& o) {
  generate::require_possible(o.answers.sampling);
  if (o.retries > 0 && o.answers.sampling.temperature == 0) {
    throw Error({.what = "at temperature 0 every retry gives the same answer",
                 .expected = "a temperature above 0 with --retries",
                 .found = "--retries " + std::to_string(o.retries) + ", temperature 0",
                 .where = "command line",
                 .fix = "give --temperature, or leave out --retries",
                 .code = ExitCode::usage});
  }
  generate::Sampling hottest = o.answers.sampling;
  hottest.temperature *= 1.0 + kHotter * static_cast<double>(o.retries);
  if (hottest.temperature > generate::kHottest) {
    throw Error(
        {.what = "--retries makes the temperature too high",
         .expected = "at most " + std::to_string(std::lround(generate::kHottest)) + " in the last attempt",
         .found = std::to_string(std::llround(std::ceil(hottest.temperature))) + " after " +
                  with_commas(o.retries) + " retries",
         .where = "command line",
         .fix = "lower --retries or --temperature",
         .code = ExitCode::usage});
  }
}

// Runs on the ranks that answer: every rank, or the leaders of replicas with split layers.
void answer_all(runtime::Session& session, comm::Channel& ranks, Answerer& answerer, const GenerateOptions& o,
                std::chrono::steady_clock::time_point began) {
  if (!o.file.empty()) return answer_file(session, ranks, answerer, o, began);
  if (session.prints()) converse(answerer, o);
}

/// Returns the dtype that --dtype auto selects for a model.
DType compute_dtype(const ModelSource& source) {
  if (source.checkpoint != nullptr) return config::computes_in_bf16(source.run) ? DType::bf16 : DType::f32;
  return train::weights_dtype(source.folder) == DType::f32 ? DType::f32 : DType::bf16;
}

// Returns null if every rank has the whole model.
std::unique_ptr<generate::Team> team_of(runtime::Session& session, const GenerateOptions& o,
                                        const ModelSource& source) {
  const int tensor = o.tensor_parallel_size, stages = o.pipeline_parallel_size;
  if (tensor == 1 && stages == 1) return nullptr;
  session.job().together([&] { model::require_splits(source.architecture, tensor, stages); });
  return std::make_unique<generate::Team>(session.job(), session.device(), tensor, stages);
}

void tell_team(runtime::Session& session, generate::Team& team, const generate::Decoder& decoder) {
  const std::int64_t most = session.job().all_max(static_cast<std::int64_t>(decoder.arena().bytes()));
  const bool crosses = session.job().all_max(team.crosses_nodes() ? 1 : 0) == 1;
  if (!session.prints()) return;
  const model::Share& share = team.share();
  log::info("the model's layers are split among " + std::to_string(share.tensor_size) + " x " +
            std::to_string(share.stages) + " ranks; one rank reserves " + with_commas(most) +
            " bytes at most; " + std::to_string(team.replicas()) +
            (team.replicas() == 1 ? " replica answers" : " replicas answer"));
  if (crosses)
    log::warn(
        "tensor parallelism spans several nodes, so every layer sends messages between nodes: choose a "
        "tensor_parallel_size that divides the ranks of a node");
}

}  // namespace

int answer(runtime::Session& session, const GenerateCall& call) {
  GenerateOptions o = call.options;
  const auto began = std::chrono::steady_clock::now();
  ModelSource source;
  session.job().together([&] {
    source = find_model(o);
    if (session.prints() && !source.told().empty()) log::info(source.told());
    if (session.prints()) warn_of_trained_prompts(o, source);
    if (o.dtype_of_model) {
      o.dtype = compute_dtype(source);
      if (session.prints())
        log::info("--dtype auto: " + std::string(name_of(o.dtype)) + ", after the model's weights");
    }
    if (!call.model_defaults) return;
    const std::string taken = take_model_defaults(o, source.folder, call.given);
    if (session.prints() && !taken.empty()) {
      log::info("from generation_config.json: " + taken + " (--no-model-defaults leaves it out)");
    }
  });
  session.job().together([&] { require_possible(o); });
  const std::unique_ptr<generate::Team> team = team_of(session, o, source);
  Answerer answerer(session, team.get(), o, source);
  if (!team) {
    answer_all(session, session.job(), answerer, o, began);
    return 0;
  }
  tell_team(session, *team, answerer.decoder());
  return generate::lead_or_follow(*team, answerer.decoder(),
                                  [&] { answer_all(session, team->peers(), answerer, o, began); });
}

}  // namespace octet::answers
