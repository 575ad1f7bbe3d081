#include "rank_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <exception>
#include <thread>
#include <utility>

#include "control.h"
#include "octet/base/error.h"
#include "octet/device/cpu.h"
#include "octet/ops/wire.h"

namespace octet::comm {
namespace {

using Clock = std::chrono::steady_clock;

// Elements of all parts of one staging set together. The reduce queue's chunks stay near 512 KiB at four
// ranks, so that a sum finds them in the cache; the gather queue stages only values that travel in a narrow
// format.
constexpr std::int64_t reduce_elements = std::int64_t{1} << 19;
constexpr std::int64_t gather_elements = std::int64_t{1} << 18;
// How long a rank that ends because of an error waits for collectives under way.
constexpr auto patience_for_collectives = std::chrono::seconds(2);

// Bytes of all staging sets of one queue.
struct StagingBytes {
  std::size_t arrive_part;
  std::size_t leave_part;
  std::size_t total;
};
StagingBytes staging_bytes_of(int size, std::int64_t elements) {
  if (size == 1) return {0, 0, 0};
  const std::int64_t chunk = staging_chunk(size, elements);
  const std::size_t arrive = static_cast<std::size_t>(chunk) * sizeof(float);
  const std::size_t leave = std::max({ops::wire_bytes(Wire::bf16, chunk), ops::wire_bytes(Wire::fp8, chunk),
                                      ops::wire_bytes(Wire::int8, chunk)});
  return {arrive, leave,
          static_cast<std::size_t>(staging_sets) * static_cast<std::size_t>(size) * (arrive + leave)};
}

// [count] elements for each of `size` ranks fit an address space.
void check_sizes(std::int64_t size, std::int64_t count, std::size_t element) {
  std::int64_t bytes = 0;
  check(count >= 0, "a collective's count is not negative");
  check(!__builtin_mul_overflow(count, static_cast<std::int64_t>(element) * size, &bytes),
        "a collective's size in bytes fits 63 bits");
}

bool disjoint(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto x = reinterpret_cast<std::uintptr_t>(a);
  const auto y = reinterpret_cast<std::uintptr_t>(b);
  return x + a_bytes <= y || y + b_bytes <= x;
}

}  // namespace

std::size_t staging_bytes(int size) {
  return staging_bytes_of(size, reduce_elements).total + staging_bytes_of(size, gather_elements).total;
}

struct RankCommunicator::Timed {
  Operation operation;
  Kind kind{};
  bool started = false;
  Clock::time_point start;
  Engine* engine = nullptr;  // told when a collective is over, also when its stream dropped it
  ~Timed() {
    if (engine != nullptr) engine->end_collective();
  }
};

RankCommunicator::RankCommunicator(Device& device, const RankOptions& options)
    : device_(device),
      options_(options),
      transport_(options.engine ? options.engine->transport() : *options.transport),
      place_(options.engine ? options.engine->place() : options.transport->place()),
      arena_(device),
      flat_(one_node(place_)),
      hierarchy_(place_),
      exceptions_at_start_(std::uncaught_exceptions()) {
  if (device.kind() == DeviceKind::cuda && place_.size > 1) {
    throw Error(Problem{.what = "ranks with GPUs cannot send messages to each other in this version",
                        .expected = "one rank with a GPU, or ranks on CPUs",
                        .found = std::to_string(place_.size) + " ranks on " + device.description(),
                        .fix = "start the program without mpirun to train on one GPU, or set device: cpu",
                        .code = ExitCode::usage});
  }
  gather_staging_ = reserve_staging("communication/gather staging", gather_elements);
  reduce_staging_ = reserve_staging("communication/reduce staging", reduce_elements);
  // A rank that is alone sends nothing: its collectives run where they are enqueued.
  const auto mode = place_.size > 1 ? StreamOptions::Mode::served : StreamOptions::Mode::in_line;
  gather_ = device.make_stream({.name = "gather", .mode = mode});
  reduce_ = device.make_stream({.name = "reduce", .mode = mode});
  if (options_.engine && place_.size > 1 && device.kind() == DeviceKind::cpu) {
    options_.engine->attach(*gather_, *reduce_);
  }
}

RankCommunicator::~RankCommunicator() {
  if (std::uncaught_exceptions() > exceptions_at_start_) {
    end_with_error();
    return;
  }
  for (Stream* stream : {gather_.get(), reduce_.get()}) {
    try {
      stream->synchronize();
    } catch (const std::exception&) {
      // Whoever waited for this work has seen the error; an ending communicator has nobody to tell.
    }
  }
  if (options_.engine == nullptr) return;
  options_.engine->detach();
  if (options_.end_engine) options_.engine->shutdown(std::nullopt);
}

// An exception is on its way through the program, which still has to print it. When all ranks ended together,
// what is queued completes and the owner of the engine ends it in order. Otherwise the peers may be gone: the
// thread stops at once, as buffers go away, and a process that ends without MPI_Finalize takes the job with
// it.
void RankCommunicator::end_with_error() {
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

Staging RankCommunicator::reserve_staging(const char* name, std::int64_t elements) {
  const StagingBytes bytes = staging_bytes_of(place_.size, elements);
  Staging staging{.chunk = staging_chunk(place_.size, elements),
                  .arrive_bytes = bytes.arrive_part,
                  .leave_bytes = bytes.leave_part,
                  .size = place_.size};
  staging.arrive = arena_.reserve_as<std::byte>(name, bytes.total);
  if (staging.arrive != nullptr) {
    staging.leave = staging.arrive + static_cast<std::size_t>(staging_sets * place_.size) * bytes.arrive_part;
  }
  return staging;
}

Queue RankCommunicator::queue_of(const Stream& stream) const {
  check(&stream == gather_.get() || &stream == reduce_.get(),
        "collectives go to the communicator's gather or reduce stream");
  return &stream == gather_.get() ? Queue::gather : Queue::reduce;
}

const Staging& RankCommunicator::staging_of(Queue queue) const {
  return queue == Queue::gather ? gather_staging_ : reduce_staging_;
}

std::shared_ptr<RankCommunicator::Timed> RankCommunicator::begin(Kind kind, Queue queue, const char* name,
                                                                 std::int64_t bytes) {
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

bool RankCommunicator::advance(Timed& timed) {
  if (!std::exchange(timed.started, true)) {
    timed.start = Clock::now();
    count_under_way(1);
  }
  const bool finished =
      place_.size > 1 ? options_.engine->advance(timed.operation) : timed.operation.steps.resume();
  if (finished) {
    count_under_way(-1);
    count(timed);
  }
  return finished;
}

void RankCommunicator::count_under_way(int change) {
  const std::scoped_lock lock(traffic_mutex_);
  const bool before = under_way_ > 0;
  under_way_ += change;
  if (before == (under_way_ > 0)) return;
  const auto now = Clock::now();
  if (before) seconds_busy_ += std::chrono::duration<double>(now - busy_since_).count();
  busy_since_ = now;
}

double RankCommunicator::seconds_busy() const {
  const std::scoped_lock lock(traffic_mutex_);
  if (under_way_ == 0) return seconds_busy_;
  return seconds_busy_ + std::chrono::duration<double>(Clock::now() - busy_since_).count();
}

void RankCommunicator::count(const Timed& timed) {
  const std::scoped_lock lock(traffic_mutex_);
  Traffic& traffic = traffic_[timed.kind];
  ++traffic.calls;
  traffic.bytes_sent += timed.operation.call.bytes_sent;
  traffic.bytes_between_nodes += timed.operation.call.bytes_between_nodes;
  traffic.seconds += std::chrono::duration<double>(Clock::now() - timed.start).count();
}

void RankCommunicator::enqueue(Stream& stream, std::shared_ptr<Timed> timed) {
  if (place_.size == 1) {
    cpu::enqueue(stream, [this, timed] { check(advance(*timed), "a lone rank waits for nobody"); });
    return;
  }
  timed->engine = options_.engine.get();
  options_.engine->begin_collective();
  cpu::enqueue_resumable(stream, [this, timed] { return advance(*timed); });
  options_.engine->announce();
}

// A GPU has one rank here, whose own slice is in its place.
bool RankCommunicator::nothing_moves() const {
  return device_.kind() != DeviceKind::cpu;
}

void RankCommunicator::sum_alone(Stream& stream, const ReduceScatterArgs& args) {
  if (args.count == 0 || (args.to == args.from && !args.accumulate)) return;
  check(args.from != nullptr && args.to != nullptr, "reduce_scatter has its buffers");
  const std::array<const void*, 1> own = {args.from};
  ops::sum_parts(stream, {.wire = ops::wire_of_values(Wire::f32, args.from_dtype),
                          .parts = own,
                          .to = args.to,
                          .to_dtype = args.to_dtype,
                          .count = args.count,
                          .accumulate = args.accumulate});
}

void RankCommunicator::reduce_scatter(Stream& stream, const ReduceScatterArgs& args) {
  const Queue queue = queue_of(stream);
  check_sizes(place_.size, args.count, sizeof(float));
  if (args.order != nullptr) check_order(args, place_);
  if (device_.kind() == DeviceKind::dry) return;
  if (device_.kind() == DeviceKind::cuda) return sum_alone(stream, args);
  for (const DType dtype : {args.from_dtype, args.to_dtype}) {
    check(dtype == DType::f32 || dtype == DType::bf16, "reduce_scatter takes f32 or bf16");
  }
  const auto bytes = [&](DType dtype) { return static_cast<std::size_t>(args.count) * size_of(dtype); };
  check(args.count == 0 || (args.from != nullptr && args.to != nullptr), "reduce_scatter has its buffers");
  check((args.to == read_at(args, place_.rank * args.count) && args.to_dtype == args.from_dtype) ||
            disjoint(args.from, bytes(args.from_dtype) * place_.size, args.to, bytes(args.to_dtype)),
        "reduce_scatter writes the own slice of its input or memory apart from it");
  if (options_.removed) {
    removing_ = true;
    return;
  }
  auto timed = begin(Kind::reduce_scatter, queue, args.name,
                     static_cast<std::int64_t>(ops::wire_bytes(args.wire, args.count)));
  Call& call = timed->operation.call;
  if (args.order != nullptr) {
    timed->operation.steps = ordered_reduce_scatter_steps(call, staging_of(queue), args);
  } else if (args.by_node && hierarchy_.several()) {
    timed->operation.steps = reduce_scatter_by_node_steps(call, staging_of(queue), hierarchy_, args);
  } else {
    ReduceScatterArgs flat = args;
    if (args.by_node && place_.nodes == 1) flat.wire = Wire::f32;  // nothing leaves the node
    timed->operation.steps = reduce_scatter_steps(call, staging_of(queue), flat);
  }
  enqueue(stream, std::move(timed));
}

void RankCommunicator::all_gather(Stream& stream, const AllGatherArgs& args) {
  const Queue queue = queue_of(stream);
  check_sizes(place_.size, args.bytes, 1);
  if (nothing_moves()) return;
  check(args.bytes == 0 || args.buffer != nullptr, "all_gather has its buffer");
  if (removing_) return;
  auto timed = begin(Kind::all_gather, queue, args.name, args.bytes);
  timed->operation.steps = all_gather_steps(timed->operation.call, ways(args.by_node), args);
  enqueue(stream, std::move(timed));
}

void RankCommunicator::all_gather_values(Stream& stream, const AllGatherValuesArgs& args) {
  const Queue queue = queue_of(stream);
  check_sizes(place_.size, args.count, sizeof(float));
  check(args.dtype == DType::f32 || args.dtype == DType::bf16, "all_gather_values takes f32 or bf16");
  if (nothing_moves()) return;
  check(args.count == 0 || args.buffer != nullptr, "all_gather_values has its buffer");
  if (removing_) return;
  auto timed = begin(Kind::all_gather_values, queue, args.name,
                     static_cast<std::int64_t>(ops::wire_bytes(args.wire, args.count)));
  timed->operation.steps =
      all_gather_values_steps(timed->operation.call, staging_of(queue), ways(args.by_node), args);
  enqueue(stream, std::move(timed));
}

void RankCommunicator::watch(const WatchOptions& options) {
  if (options_.engine != nullptr) options_.engine->watch(options);
}

std::string RankCommunicator::trace() const {
  return options_.engine != nullptr ? options_.engine->traces().to_json() : "[]";
}

void RankCommunicator::all_reduce_max(Stream& stream, const char* name, float* values, std::int64_t count) {
  const Queue queue = queue_of(stream);
  check_sizes(place_.size, count, sizeof *values);
  if (nothing_moves()) return;
  auto timed = begin(Kind::all_reduce_max, queue, name, count * static_cast<std::int64_t>(sizeof *values));
  timed->operation.steps = all_reduce_max_steps(timed->operation.call, staging_of(queue), values, count);
  enqueue(stream, std::move(timed));
}

void RankCommunicator::all_reduce_sum(Stream& stream, const char* name, std::int64_t* values,
                                      std::int64_t count) {
  const Queue queue = queue_of(stream);
  check_sizes(place_.size, count, sizeof *values);
  if (nothing_moves()) return;
  auto timed = begin(Kind::all_reduce_sum, queue, name, count * static_cast<std::int64_t>(sizeof *values));
  timed->operation.steps = all_reduce_sum_steps(timed->operation.call, staging_of(queue), values, count);
  enqueue(stream, std::move(timed));
}

void RankCommunicator::all_reduce_sum(Stream& stream, const char* name, double* values, std::int64_t count) {
  const Queue queue = queue_of(stream);
  check_sizes(place_.size, count, sizeof *values);
  if (nothing_moves()) return;
  auto timed = begin(Kind::all_reduce_sum, queue, name, count * static_cast<std::int64_t>(sizeof *values));
  timed->operation.steps = all_reduce_sum_steps(timed->operation.call, staging_of(queue), values, count);
  enqueue(stream, std::move(timed));
}

void RankCommunicator::run(std::shared_ptr<Timed> timed) {
  timed->start = Clock::now();
  if (options_.engine != nullptr) {
    // Shares ownership of the whole, points to the part.
    options_.engine->run(std::shared_ptr<Operation>(timed, &timed->operation));
  } else {
    check(timed->operation.steps.resume(), "a lone rank waits for nobody");
  }
  count(*timed);
}

std::vector<std::string> RankCommunicator::gather_bytes(std::string bytes) {
  const std::scoped_lock lock(control_mutex_);
  std::vector<std::string> all;
  auto timed = begin(Kind::control, Queue::control, "", static_cast<std::int64_t>(bytes.size()));
  timed->operation.steps = all_gather_bytes_steps(timed->operation.call, std::move(bytes), &all);
  run(std::move(timed));
  return all;
}

void RankCommunicator::barrier() {
  gather_bytes({});
}

std::string RankCommunicator::broadcast(const std::string& bytes, int root) {
  check(root >= 0 && root < place_.size, "broadcast's root is a rank");
  const std::scoped_lock lock(control_mutex_);
  std::string copy = place_.rank == root ? bytes : std::string();
  auto timed = begin(Kind::control, Queue::control, "", static_cast<std::int64_t>(bytes.size()));
  timed->operation.steps = broadcast_steps(timed->operation.call, &copy, root);
  run(std::move(timed));
  return copy;
}

std::vector<std::string> RankCommunicator::all_gather_bytes(const std::string& bytes) {
  return gather_bytes(bytes);
}

std::vector<std::int64_t> RankCommunicator::all_gather_int(std::int64_t value) {
  std::vector<std::int64_t> values;
  for (const auto& bytes : gather_bytes(std::string(reinterpret_cast<const char*>(&value), sizeof value))) {
    check(bytes.size() == sizeof value, "every rank sends one integer");
    std::int64_t one;
    std::memcpy(&one, bytes.data(), sizeof one);
    values.push_back(one);
  }
  return values;
}

std::vector<Traffic> RankCommunicator::take_traffic() {
  const std::scoped_lock lock(traffic_mutex_);
  std::vector<Traffic> taken;
  for (auto& [kind, traffic] : std::exchange(traffic_, {})) {
    traffic.kind = name_of(kind);
    taken.push_back(traffic);
  }
  return taken;
}

void RankCommunicator::abort(int code) {
  std::fflush(stdout);
  std::fflush(stderr);
  if (options_.engine == nullptr) _exit(code);
  const std::string message =
      "rank " + std::to_string(place_.rank) + " ended the job with code " + std::to_string(code);
  options_.engine->end_job(options_.engine->is_process() ? "" : message, code);
  throw Error(Problem{.what = message, .code = static_cast<ExitCode>(code)});
}

}  // namespace octet::comm
