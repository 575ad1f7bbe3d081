#include "gpu/device_collectives.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <utility>

#include "gpu/device_staging.h"
#include "messages/transport_collectives.h"
#include "octet/base/error.h"
#include "octet/device/cpu.h"
#include "octet/ops/wire.h"

namespace octet::comm {

std::unique_ptr<Event> Stopwatch::event() {
  if (spare_.empty()) return device_.make_timed_event();
  auto last = std::move(spare_.back());
  spare_.pop_back();
  return last;
}

void Stopwatch::begin(Stream& stream, Queue queue, Kind kind) {
  Lap& lap = laps_.emplace_back(Lap{.kind = kind, .queue = queue, .begin = event(), .end = nullptr});
  stream.record(*lap.begin);
}

void Stopwatch::end(Stream& stream, Queue queue) {
  const auto lap = std::ranges::find_if(laps_.rbegin(), laps_.rend(),
                                        [&](const Lap& l) { return l.queue == queue && l.end == nullptr; });
  check(lap != laps_.rend(), "a collective ends after it began");
  lap->end = event();
  stream.record(*lap->end);
}

double Stopwatch::collect(Meter& meter) {
  // Collectives of a queue end in order: if one has not ended, no later one of its queue has.
  std::array<bool, queue_count> open{};
  std::deque<Lap> later;
  std::vector<Lap> done;
  for (Lap& lap : laps_) {
    bool& waits = open[static_cast<std::size_t>(lap.queue)];
    waits = waits || lap.end == nullptr || !device_.complete(*lap.end);
    if (waits) {
      later.push_back(std::move(lap));
    } else {
      done.push_back(std::move(lap));
    }
  }
  laps_ = std::move(later);
  if (done.empty()) return 0;
  // Relative to the first event, because long intervals are measured less exactly than short ones.
  std::vector<std::pair<double, double>> spans;
  for (Lap& lap : done) {
    const double seconds = device_.seconds_between(*lap.begin, *lap.end);
    meter.count(lap.kind, {.seconds = seconds});
    const double begin = device_.seconds_between(*done.front().begin, *lap.begin);
    spans.emplace_back(begin, begin + seconds);
  }
  for (Lap& lap : done) {
    spare_.push_back(std::move(lap.begin));
    spare_.push_back(std::move(lap.end));
  }
  std::ranges::sort(spans);
  double busy = 0, until = spans.front().first;
  for (const auto& [begin, end] : spans) {
    busy += std::max(0.0, end - std::max(begin, until));
    until = std::max(until, end);
  }
  return busy;
}

namespace {

constexpr std::size_t most_open_laps = 1024;

bool reached(std::uint32_t& counter, std::uint32_t number) {
  const auto value = std::atomic_ref<std::uint32_t>(counter).load(std::memory_order_acquire);
  return static_cast<std::int32_t>(value - number) >= 0;
}

/// Work of the communication thread for a collective that has begun: sends the messages, if the host carries
/// some, then polls the device until it is done.
Steps follow(Call& call, HostExchange* host, std::shared_ptr<HostScript> script, std::uint32_t* done,
             std::uint32_t number, std::function<void()> alive) {
  if (host != nullptr) {
    Steps messages = host->serve(call, std::move(script));
    while (!messages.resume()) co_await pause;
  }
  while (!reached(*done, number)) {
    if (alive) alive();
    co_await pause;
  }
}

/// Creates a host device for streams that only the communication thread follows. The threads of ops do not
/// change.
std::unique_ptr<Device> make_followed_device() {
  const int threads = cpu::op_threads();
  auto made = make_cpu_device({.threads = 1});
  cpu::set_op_threads(threads);
  return made;
}

}  // namespace

DeviceCollectives::DeviceCollectives(Device& device, RankJob& job, const Group& group,
                                     const Carrying& carrying)
    : device_(device),
      group_(job, group.name, group.ranks),
      host_(make_followed_device()),
      arena_(device),
      flat_(one_node(place())),
      hierarchy_(place()),
      stopwatch_(device),
      delays_(place().rank),
      broken_(place()),
      exceptions_at_start_(std::uncaught_exceptions()) {
  check(group_.engine() != nullptr && place().size > 1, "ranks with devices have a communication thread");
  const StagingBudget budget = staging_budget(place().size, device.kind());
  const std::string trouble = group_.agreed([&] {
    memory_ = arena_.reserve_as<std::byte>("communication/staging", budget.bytes());
    progress_ = static_cast<Progress*>(device.allocate_host(2 * sizeof(Progress)));
    carriers_ = std::make_unique<Carriers>(device_, group_);
  });
  if (!trouble.empty()) {
    throw Error(Problem{.what = "there is too little memory for communication between the GPUs",
                        .found = trouble,
                        .fix = "lower per_device_train_batch_size or cutoff_len, or set recompute: full"});
  }
  carriers_->choose(carrying, memory_, budget);
  make_lane(gather_, Queue::gather, budget.gather(memory_));
  make_lane(reduce_, Queue::reduce, budget.reduce(memory_));
  const bool messages = gather_.carrier.host != nullptr || reduce_.carrier.host != nullptr;
  group_.engine()->attach(*gather_.watched, *reduce_.watched, messages ? Serves::for_devices : Serves::looks);
}

DeviceCollectives::~DeviceCollectives() {
  // If streams failed or an exception is active, other ranks may be gone. Then do not wait for them, and keep
  // the memory that streams may still write to.
  if (std::uncaught_exceptions() > exceptions_at_start_ || !finished()) {
    group_.end_with_error(*gather_.watched, *reduce_.watched);
    return;
  }
  group_.end(*gather_.watched, *reduce_.watched);
  device_.release_host(progress_, 2 * sizeof(Progress));
}

/// Returns true if all enqueued work is done on all ranks. Until then, other ranks may read memory of this
/// rank.
bool DeviceCollectives::finished() {
  try {
    for (Lane* lane : {&gather_, &reduce_}) lane->stream->synchronize();
    for (Lane* lane : {&gather_, &reduce_}) lane->watched->synchronize();
    group_.barrier_at_end();
    // Memory that other ranks have opened is freed after they have closed it.
    carriers_.reset();
    group_.barrier_at_end();
    return true;
  } catch (const std::exception&) {
    return false;  // the thread that waited for this work has seen the error
  }
}

void DeviceCollectives::make_lane(Lane& lane, Queue queue, const DeviceStaging& staging) {
  lane.queue = queue;
  // On the CPU, each queue has a separate thread, because ranks may enqueue on the two queues in different
  // orders.
  lane.stream = device_.make_stream({.name = name_of(queue), .mode = StreamOptions::Mode::worker});
  lane.watched = host_->make_stream({.name = name_of(queue), .mode = StreamOptions::Mode::served});
  lane.progress = progress_ + (queue == Queue::gather ? 0 : 1);
  lane.carrier = carriers_->take(queue);
  lane.collectives = std::make_unique<Composed>(device_, *lane.stream, *lane.carrier.exchange,
                                                carriers_->access(), place(), flat_, hierarchy_, staging);
  if (lane.carrier.sums != nullptr) lane.collectives->let_sum(*lane.carrier.sums, lane.carrier.sums_bf16);
}

DeviceCollectives::Lane& DeviceCollectives::lane_of(const Stream& stream) {
  check(&stream == gather_.stream.get() || &stream == reduce_.stream.get(),
        "collectives go to the gather or the reduce stream of their group");
  return &stream == gather_.stream.get() ? gather_ : reduce_;
}

template <typename Enqueue>
void DeviceCollectives::run(Lane& lane, const std::shared_ptr<Timed>& timed, Enqueue&& enqueue) {
  delays_.before(*lane.stream, carriers_->access());
  broken_.before(device_, *lane.stream, carriers_->access());
  const std::uint32_t number = ++lane.number;
  const Kind kind = timed->kind;
  HostExchange* host = lane.carrier.host;
  // Also closed after an exception: the communication thread must not wait for more rounds.
  struct Closed {
    std::shared_ptr<HostScript> script;
    ~Closed() {
      if (script) script->close();
    }
  } script{host != nullptr ? std::make_shared<HostScript>() : nullptr};
  if (host != nullptr) host->begin(script.script);
  timed->operation.steps = follow(timed->operation.call, host, script.script, &lane.progress->done, number,
                                  group_.options().alive);
  group_.expect(*timed);
  cpu::enqueue_resumable(*lane.watched, [this, timed, begun = &lane.progress->begun, number] {
    return reached(*begun, number) && group_.advance(*timed, false);
  });
  // Without a host carrier, the thread only watches and polls soon enough by itself. Waking it would take
  // longer than enqueuing a small collective.
  if (host != nullptr) group_.engine()->announce(/*awaited_soon=*/false);
  // If no caller reads times (evaluation, generation), their events must not accumulate.
  if (stopwatch_.open() >= most_open_laps) seconds_busy_ += stopwatch_.collect(group_.meter());
  if (takes_times_) stopwatch_.begin(*lane.stream, lane.queue, kind);
  const auto mark = [&](std::uint32_t& counter) { return CounterStep{.counter = &counter, .value = number}; };
  lane.collectives->begin({.before = mark(lane.progress->begun), .after = mark(lane.progress->done)});
  enqueue(*lane.collectives);
  lane.collectives->end();
  if (takes_times_) stopwatch_.end(*lane.stream, lane.queue);
  const ChunkPipeline::Sent sent = lane.collectives->take_sent();
  group_.meter().count(kind,
                       {.calls = 1, .bytes_sent = sent.bytes, .bytes_between_nodes = sent.between_nodes});
}

void DeviceCollectives::reduce_scatter(Stream& stream, const ReduceScatterArgs& args) {
  Lane& lane = lane_of(stream);
  check_sizes(place().size, args.count, sizeof(float));
  if (args.order != nullptr) check_order(args, place());
  check_reduce_scatter(args, place());
  if (group_.options().removed) {
    removing_ = true;
    return;
  }
  run(lane,
      group_.begin(Kind::reduce_scatter, lane.queue, args.name,
                   static_cast<std::int64_t>(ops::wire_bytes(args.wire, args.count))),
      [&](Composed& collectives) { collectives.reduce_scatter(args); });
}

void DeviceCollectives::all_gather(Stream& stream, const AllGatherArgs& args) {
  Lane& lane = lane_of(stream);
  check_sizes(place().size, args.bytes, 1);
  check(args.bytes == 0 || args.buffer != nullptr, "all_gather has its buffer");
  if (removing_) return;
  run(lane, group_.begin(Kind::all_gather, lane.queue, args.name, args.bytes),
      [&](Composed& collectives) { collectives.all_gather(args); });
}

void DeviceCollectives::all_gather_values(Stream& stream, const AllGatherValuesArgs& args) {
  Lane& lane = lane_of(stream);
  check_sizes(place().size, args.count, sizeof(float));
  check(args.dtype == DType::f32 || args.dtype == DType::bf16, "all_gather_values takes f32 or bf16");
  check(args.count == 0 || args.buffer != nullptr, "all_gather_values has its buffer");
  if (removing_) return;
  run(lane,
      group_.begin(Kind::all_gather_values, lane.queue, args.name,
                   static_cast<std::int64_t>(ops::wire_bytes(args.wire, args.count))),
      [&](Composed& collectives) { collectives.all_gather_values(args); });
}

void DeviceCollectives::all_to_all(Stream& stream, const AllToAllArgs& args) {
  Lane& lane = lane_of(stream);
  check_all_to_all(args, place());
  if (removing_) return;
  run(lane, group_.begin(Kind::all_to_all, lane.queue, args.name, args.bytes),
      [&](Composed& collectives) { collectives.all_to_all(args); });
}

void DeviceCollectives::pass(Stream& stream, const SendArgs* out, const ReceiveArgs* in) {
  Lane& lane = lane_of(stream);
  const Passing passing = check_pass(out, in, place());
  if (removing_) return;
  run(lane, group_.begin_between(passing.kind, lane.queue, passing.name, passing.bytes, passing.partners),
      [&](Composed& collectives) { collectives.pass(out, in); });
}

void DeviceCollectives::all_reduce_max(Stream& stream, const char* name, float* values, std::int64_t count) {
  Lane& lane = lane_of(stream);
  check_sizes(place().size, count, sizeof *values);
  run(lane,
      group_.begin(Kind::all_reduce_max, lane.queue, name, count * static_cast<std::int64_t>(sizeof *values)),
      [&](Composed& c) { c.all_reduce(ops::Combine::max_f32, values, count); });
}

void DeviceCollectives::all_reduce_sum(Stream& stream, const char* name, std::int64_t* values,
                                       std::int64_t count) {
  Lane& lane = lane_of(stream);
  check_sizes(place().size, count, sizeof *values);
  run(lane,
      group_.begin(Kind::all_reduce_sum, lane.queue, name, count * static_cast<std::int64_t>(sizeof *values)),
      [&](Composed& c) { c.all_reduce(ops::Combine::sum_i64, values, count); });
}

void DeviceCollectives::all_reduce_sum(Stream& stream, const char* name, double* values, std::int64_t count) {
  Lane& lane = lane_of(stream);
  check_sizes(place().size, count, sizeof *values);
  run(lane,
      group_.begin(Kind::all_reduce_sum, lane.queue, name, count * static_cast<std::int64_t>(sizeof *values)),
      [&](Composed& c) { c.all_reduce(ops::Combine::sum_f64, values, count); });
}

void DeviceCollectives::sum_directly(Stream& stream, const DirectSumArgs& args) {
  delays_.before(stream, carriers_->access());
  carriers_->sum_directly(stream, args);
}

void DeviceCollectives::share(const std::vector<SharedMemory>& memory) {
  carriers_->share(memory);
}

void DeviceCollectives::unshare(const std::vector<SharedMemory>& memory) {
  carriers_->unshare(memory);
}

std::vector<Traffic> DeviceCollectives::take_traffic() {
  seconds_busy_ += stopwatch_.collect(group_.meter());
  return group_.meter().take();
}

double DeviceCollectives::seconds_busy() {
  return seconds_busy_ += stopwatch_.collect(group_.meter());
}

}  // namespace octet::comm
