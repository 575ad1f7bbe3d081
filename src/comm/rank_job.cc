#include "rank_job.h"

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "collectives.h"
#include "control.h"
#include "octet/base/error.h"

namespace octet::comm {
namespace {

using Clock = std::chrono::steady_clock;

// How long a rank that ends because of an error waits for collectives under way.
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
}

RankJob::RankJob(const RankOptions& options)
    : options_(options),
      transport_(options.engine ? options.engine->transport() : *options.transport),
      place_(options.engine ? options.engine->place() : options.transport->place()) {}

void RankJob::end() {
  if (options_.engine == nullptr) return;
  options_.engine->detach();
  if (options_.end_engine) options_.engine->shutdown(std::nullopt);
}

// An exception is on its way through the program, which still has to print it. When all ranks ended together,
// what is queued completes and the owner of the engine ends it in order. Otherwise the peers may be gone: the
// thread stops at once, as buffers go away, and a process that ends without MPI_Finalize takes the job with
// it.
void RankJob::end_with_error() {
  if (options_.engine == nullptr) return;
  const auto deadline = Clock::now() + patience_for_collectives;
  while (options_.engine->outstanding() > 0 && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (options_.engine->outstanding() == 0) {
    options_.engine->detach();
  } else {
    options_.engine->stop();
  }
}

std::shared_ptr<Timed> RankJob::begin(Kind kind, Queue queue, const char* name, std::int64_t bytes) {
  auto timed = std::make_shared<Timed>();
  timed->kind = kind;
  timed->operation.what = name_of(kind);
  if (name[0] != '\0') timed->operation.what += std::string(" '") + name + "'";
  Call& call = timed->operation.call;
  call.transport = &transport_;
  call.queue = queue;
  call.sequence = sequence_[static_cast<int>(queue)]++;
  call.tag = tag_of(kind, call.sequence);
  timed->operation.bytes = bytes;
  if (options_.engine != nullptr) {
    timed->operation.traced = options_.engine->traces().posted(
        {.kind = kind, .name = name, .queue = queue, .sequence = call.sequence, .bytes = bytes});
  }
  return timed;
}

void RankJob::expect(Timed& timed) {
  timed.engine = options_.engine.get();
  options_.engine->begin_collective();
}

bool RankJob::advance(Timed& timed, bool counts) {
  if (!std::exchange(timed.started, true)) {
    timed.start = Clock::now();
    if (counts) count_under_way(1);
  }
  const bool finished =
      place_.size > 1 ? options_.engine->advance(timed.operation) : timed.operation.steps.resume();
  if (finished && counts) {
    count_under_way(-1);
    count(timed);
  }
  return finished;
}

void RankJob::count_under_way(int change) {
  const std::scoped_lock lock(traffic_mutex_);
  const bool before = under_way_ > 0;
  under_way_ += change;
  if (before == (under_way_ > 0)) return;
  const auto now = Clock::now();
  if (before) seconds_busy_ += std::chrono::duration<double>(now - busy_since_).count();
  busy_since_ = now;
}

double RankJob::seconds_busy() const {
  const std::scoped_lock lock(traffic_mutex_);
  if (under_way_ == 0) return seconds_busy_;
  return seconds_busy_ + std::chrono::duration<double>(Clock::now() - busy_since_).count();
}

void RankJob::count(Kind kind, const Traffic& traffic) {
  const std::scoped_lock lock(traffic_mutex_);
  Traffic& sum = traffic_[kind];
  sum.calls += traffic.calls;
  sum.bytes_sent += traffic.bytes_sent;
  sum.bytes_between_nodes += traffic.bytes_between_nodes;
  sum.seconds += traffic.seconds;
}

void RankJob::count(const Timed& timed) {
  count(timed.kind, {.calls = 1,
                     .bytes_sent = timed.operation.call.bytes_sent,
                     .bytes_between_nodes = timed.operation.call.bytes_between_nodes,
                     .seconds = std::chrono::duration<double>(Clock::now() - timed.start).count()});
}

std::vector<Traffic> RankJob::take_traffic() {
  const std::scoped_lock lock(traffic_mutex_);
  std::vector<Traffic> taken;
  for (auto& [kind, traffic] : std::exchange(traffic_, {})) {
    traffic.kind = name_of(kind);
    taken.push_back(traffic);
  }
  return taken;
}

void RankJob::run(std::shared_ptr<Timed> timed) {
  timed->start = Clock::now();
  if (options_.engine != nullptr) {
    // Shares ownership of the whole, points to the part.
    options_.engine->run(std::shared_ptr<Operation>(timed, &timed->operation));
  } else {
    check(timed->operation.steps.resume(), "a lone rank waits for nobody");
  }
  count(*timed);
}

std::vector<std::string> RankJob::gather_bytes(std::string bytes) {
  return gather_all(std::move(bytes), false);
}

std::vector<std::string> RankJob::gather_all(std::string bytes, bool ends) {
  const std::scoped_lock lock(control_mutex_);
  std::vector<std::string> all;
  auto timed = begin(Kind::control, Queue::control, "", static_cast<std::int64_t>(bytes.size()));
  timed->operation.call.ends = ends;
  timed->operation.steps = all_gather_bytes_steps(timed->operation.call, std::move(bytes), &all);
  run(std::move(timed));
  return all;
}

std::string RankJob::broadcast(const std::string& bytes, int root) {
  check(root >= 0 && root < place_.size, "broadcast's root is a rank");
  const std::scoped_lock lock(control_mutex_);
  std::string copy = place_.rank == root ? bytes : std::string();
  auto timed = begin(Kind::control, Queue::control, "", static_cast<std::int64_t>(bytes.size()));
  timed->operation.steps = broadcast_steps(timed->operation.call, &copy, root);
  run(std::move(timed));
  return copy;
}

std::vector<std::int64_t> RankJob::gather_int(std::int64_t value) {
  std::vector<std::int64_t> values;
  for (const auto& bytes : gather_bytes(std::string(reinterpret_cast<const char*>(&value), sizeof value))) {
    check(bytes.size() == sizeof value, "every rank sends one integer");
    std::int64_t one;
    std::memcpy(&one, bytes.data(), sizeof one);
    values.push_back(one);
  }
  return values;
}

std::string RankJob::agreed(const std::function<void()>& attempt) {
  std::string trouble;
  try {
    attempt();
  } catch (const Error& error) {
    trouble = error.problem().what.empty() ? "an error without a message" : error.problem().what;
    if (!error.problem().found.empty()) trouble += ": " + error.problem().found;
  }
  const auto all = gather_bytes(trouble);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) return "rank " + std::to_string(rank) + ": " + all[rank];
  }
  return {};
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
