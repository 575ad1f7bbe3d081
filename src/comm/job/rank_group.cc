#include "job/rank_group.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "messages/transport_collectives.h"
#include "octet/base/error.h"
#include "octet/base/timing.h"

namespace octet::comm {
namespace {

// Time that a rank with an error waits for unfinished collectives.
constexpr auto patience_for_collectives = std::chrono::seconds(2);

bool disjoint(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto x = reinterpret_cast<std::uintptr_t>(a);
  const auto y = reinterpret_cast<std::uintptr_t>(b);
  return x + a_bytes <= y || y + b_bytes <= x;
}

}  // namespace

void check_sizes(std::int64_t size, std::int64_t count, std::size_t element) {
  std::int64_t bytes = 0;
  check(count >= 0, "a collective's count is not negative");
  check(!__builtin_mul_overflow(count, static_cast<std::int64_t>(element) * size, &bytes),
        "a collective's size in bytes fits 63 bits");
}

void check_reduce_scatter(const ReduceScatterArgs& args, const Place& place) {
  for (const DType dtype : {args.from_dtype, args.to_dtype}) {
    check(dtype == DType::f32 || dtype == DType::bf16, "reduce_scatter takes f32 or bf16");
  }
  const auto bytes = [&](DType dtype) { return static_cast<std::size_t>(args.count) * size_of(dtype); };
  check(args.count == 0 || (args.from != nullptr && args.to != nullptr), "reduce_scatter has its buffers");
  check((args.to == read_at(args, place.rank * args.count) && args.to_dtype == args.from_dtype) ||
            disjoint(args.from, bytes(args.from_dtype) * place.size, args.to, bytes(args.to_dtype)),
        "reduce_scatter writes the own slice of its input or memory apart from it");
  check(args.earlier.empty() || args.order != nullptr || (!args.hierarchical && args.residual == nullptr),
        "several addends of a rank are summed in rank order, without residuals");
}

void check_all_to_all(const AllToAllArgs& args, const Place& place) {
  check_sizes(place.size, args.bytes, 1);
  check(args.bytes == 0 || (args.from != nullptr && args.to != nullptr), "all_to_all has its buffers");
  const auto bytes = static_cast<std::size_t>(args.bytes * place.size);
  check(args.bytes == 0 || disjoint(args.from, bytes, args.to, bytes),
        "all_to_all writes memory apart from its input");
}

Passing check_pass(const SendArgs* out, const ReceiveArgs* in, const Place& place) {
  Passing passing;
  const auto take = [&](Kind kind, const char* name, int peer, const void* memory, std::int64_t bytes) {
    check(peer >= 0 && peer < place.size && peer != place.rank,
          "messages go to, and come from, other ranks of the group");
    check(bytes >= 0 && (bytes == 0 || memory != nullptr), "a message has a size and a place in memory");
    if (passing.partners.empty()) passing.kind = kind, passing.name = name;
    passing.bytes = std::max(passing.bytes, bytes);
    if (std::ranges::find(passing.partners, peer) == passing.partners.end()) passing.partners.push_back(peer);
  };
  if (out != nullptr) take(Kind::send, out->name, out->to, out->from, out->bytes);
  if (in != nullptr) take(Kind::receive, in->name, in->from, in->to, in->bytes);
  return passing;
}

RankGroup::RankGroup(RankJob& job, const std::string& name, const std::vector<int>& ranks) : job_(job) {
  std::vector<Lane> lanes =
      job.control().open_lanes(name, ranks, {Queue::gather, Queue::reduce, Queue::control});
  // If all ranks are one group, messages need not name it.
  const bool whole = static_cast<int>(ranks.size()) == job.place().size;
  for (Lane& lane : lanes) lane.name += whole ? "" : " of " + name;
  gather_.lane = std::move(lanes[0]);
  reduce_.lane = std::move(lanes[1]);
  control_ = std::make_unique<RankChannel>(job, std::move(lanes[2]), name);
}

// An exception is unwinding the program and is not printed yet. If all ranks end together, queued work
// completes and the owner of the engine ends it in order. Otherwise the peers may be gone, and the buffers
// are freed next: the thread stops at once. A process that exits without MPI_Finalize ends the job.
void RankGroup::end_with_error(Stream& gather, Stream& reduce) {
  if (engine() == nullptr) return;
  const auto deadline = Clock::now() + patience_for_collectives;
  while (engine()->outstanding() > 0 && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (engine()->outstanding() == 0) {
    end(gather, reduce);
  } else {
    engine()->stop();
  }
}

void RankGroup::end(Stream& gather, Stream& reduce) {
  if (engine() != nullptr && place().size > 1) engine()->detach(gather, reduce);
}

std::shared_ptr<Timed> RankGroup::begin(Kind kind, Queue queue, const char* name, std::int64_t bytes) {
  Numbered& numbered = of(queue);
  return job_.begin(kind, numbered.lane, numbered.next++, name, bytes);
}

// Messages are not numbered: two members may have exchanged other numbers of messages with other members.
std::shared_ptr<Timed> RankGroup::begin_between(Kind kind, Queue queue, const char* name, std::int64_t bytes,
                                                const std::vector<int>& partners) {
  const Lane& lane = of(queue).lane;
  auto timed = job_.begin(kind, lane, 0, name, bytes);
  timed->operation.call.paired = true;
  for (const int partner : partners) {
    timed->operation.call.partners.push_back(lane.ranks[static_cast<std::size_t>(partner)]);
  }
  return timed;
}

void RankGroup::expect(Timed& timed) {
  timed.engine = engine();
  engine()->begin_collective();
}

bool RankGroup::advance(Timed& timed, bool counts) {
  if (!std::exchange(timed.started, true)) {
    timed.start = Clock::now();
    if (counts) meter_.under_way(1);
  }
  const bool finished =
      place().size > 1 ? engine()->advance(timed.operation) : timed.operation.steps.resume();
  if (finished && counts) {
    meter_.under_way(-1);
    meter_.count(timed.kind, {.calls = 1,
                              .bytes_sent = timed.operation.call.bytes_sent,
                              .bytes_between_nodes = timed.operation.call.bytes_between_nodes,
                              .seconds = seconds_since(timed.start)});
  }
  return finished;
}

}  // namespace octet::comm
