#include "job/rank_job.h"

#include <unistd.h>

#include <cstdio>
#include <exception>
#include <utility>

#include "gpu/device_collectives.h"
#include "messages/message_collectives.h"
#include "octet/base/clock.h"
#include "octet/base/error.h"

namespace octet::comm {
namespace {

Lane main_lane(const RankOptions& options, const Place& place) {
  if (options.engine != nullptr) return options.engine->control();
  return {.id = options.transport->open_lane(Queue::control, {0}),
          .queue = Queue::control,
          .name = name_of(Queue::control),
          .place = place,
          .ranks = {0}};
}

}  // namespace

RankJob::RankJob(const RankOptions& options)
    : options_(options),
      transport_(options.engine ? options.engine->transport() : *options.transport),
      place_(options.engine ? options.engine->place() : options.transport->place()),
      control_(std::make_unique<RankChannel>(*this, main_lane(options_, place_))),
      exceptions_at_start_(std::uncaught_exceptions()) {}

// While an exception unwinds, the other ranks may be gone. The owner of the engine ends it after the error is
// printed.
RankJob::~RankJob() {
  const bool orderly = std::uncaught_exceptions() <= exceptions_at_start_;
  if (orderly && options_.engine != nullptr && options_.end_engine) options_.engine->shutdown(std::nullopt);
}

std::unique_ptr<Collectives> RankJob::collectives(const Group& group, Device& device, Carrying carrying) {
  // Ranks that are threads imitate GPUs if the options select it.
  const bool exchanges =
      device.kind() == DeviceKind::cuda ||
      (options_.engine != nullptr && !options_.engine->is_process() && carrying.carrier != Carrier::messages);
  if (group.size() > 1 && exchanges)
    return std::make_unique<DeviceCollectives>(device, *this, group, carrying);
  return std::make_unique<MessageCollectives>(device, *this, group);
}

std::unique_ptr<Channel> RankJob::channel(const std::string& name) {
  return channel(name, {.name = "all", .ranks = all_ranks(place_.size)});
}

std::unique_ptr<Channel> RankJob::channel(const std::string& name, const Group& group) {
  Lane lane = control_->open_lanes("channel " + name, group.ranks, {Queue::control}).front();
  lane.name += " '" + name + "'";
  return std::make_unique<RankChannel>(*this, std::move(lane), name);
}

std::shared_ptr<Timed> RankJob::begin(Kind kind, const Lane& lane, unsigned sequence, const char* name,
                                      std::int64_t bytes) {
  auto timed = std::make_shared<Timed>();
  timed->kind = kind;
  timed->operation.what = name_of(kind);
  if (name[0] != '\0') timed->operation.what += std::string(" '") + name + "'";
  Call& call = timed->operation.call;
  call.transport = &transport_;
  call.lane = &lane;
  call.sequence = sequence;
  call.tag = tag_of(kind, sequence);
  timed->operation.bytes = bytes;
  if (options_.engine != nullptr) {
    timed->operation.traced = options_.engine->traces().posted(
        {.kind = kind, .name = name, .queue = lane.name, .sequence = sequence, .bytes = bytes});
  }
  return timed;
}

void RankJob::run(const std::shared_ptr<Timed>& timed) {
  timed->start = Clock::now();
  if (options_.engine != nullptr) {
    // Shares ownership of `timed` and points to its operation.
    options_.engine->run(std::shared_ptr<Operation>(timed, &timed->operation));
  } else {
    check(timed->operation.steps.resume(), "a world of one rank waits for no other rank");
  }
  meter_.count(timed->kind, {.calls = 1,
                             .bytes_sent = timed->operation.call.bytes_sent,
                             .bytes_between_nodes = timed->operation.call.bytes_between_nodes,
                             .seconds = seconds_since(timed->start)});
}

void RankJob::watch(const WatchOptions& options) {
  if (options_.engine != nullptr) options_.engine->watch(options);
}

std::string RankJob::trace() const {
  return options_.engine != nullptr ? options_.engine->traces().to_json() : "[]";
}

void RankJob::abort(int code) {
  std::fflush(stdout);
  std::fflush(stderr);
  if (options_.engine == nullptr) _exit(code);
  const std::string message =
      "rank " + std::to_string(place_.rank) + " ended the job with code " + std::to_string(code);
  options_.engine->end_job(options_.engine->is_process() ? "" : message, code);
  throw Error(Problem{.what = message, .code = static_cast<ExitCode>(code)});
}

}  // namespace octet::comm
