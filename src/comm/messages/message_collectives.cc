#include "messages/message_collectives.h"

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include "gpu/device_staging.h"
#include "octet/base/error.h"
#include "octet/device/cpu.h"
#include "octet/ops/wire.h"

namespace octet::comm {
namespace {

// Total bytes of all ranks. Collectives up to this size are so short that waking another thread is
// noticeable.
constexpr std::int64_t short_bytes = std::int64_t{1} << 24;

}  // namespace

std::size_t staging_bytes(int size, DeviceKind kind) {
  if (kind == DeviceKind::cuda) return size == 1 ? 0 : staging_budget(size, kind).bytes();
  return reduce_staging(size).bytes() + gather_staging(size).bytes();
}

MessageCollectives::MessageCollectives(Device& device, RankJob& job, const Group& group)
    : device_(device),
      group_(job, group.name, group.ranks),
      arena_(device),
      flat_(one_node(place())),
      hierarchy_(place()),
      exceptions_at_start_(std::uncaught_exceptions()) {
  check(device.kind() == DeviceKind::cpu || place().size == 1, "messages carry memory of CPUs");
  gather_staging_ = reserve("communication/gather staging", gather_staging(place().size));
  reduce_staging_ = reserve("communication/reduce staging", reduce_staging(place().size));
  const auto mode = place().size > 1 ? StreamOptions::Mode::served : StreamOptions::Mode::in_line;
  gather_ = device.make_stream({.name = "gather", .mode = mode});
  reduce_ = device.make_stream({.name = "reduce", .mode = mode});
  if (group_.engine() != nullptr && place().size > 1) group_.engine()->attach(*gather_, *reduce_);
}

MessageCollectives::~MessageCollectives() {
  if (std::uncaught_exceptions() > exceptions_at_start_) {
    group_.end_with_error(*gather_, *reduce_);
    return;
  }
  for (Stream* stream : {gather_.get(), reduce_.get()}) {
    try {
      stream->synchronize();
    } catch (const std::exception&) {
      // The waiting thread has seen the error, and a destructor cannot report it.
    }
  }
  group_.end(*gather_, *reduce_);
}

Staging MessageCollectives::reserve(const char* name, Staging staging) {
  staging.take(arena_.reserve_as<std::byte>(name, staging.bytes()));
  return staging;
}

Queue MessageCollectives::queue_of(const Stream& stream) const {
  check(&stream == gather_.get() || &stream == reduce_.get(),
        "collectives go to the gather or the reduce stream of their group");
  return &stream == gather_.get() ? Queue::gather : Queue::reduce;
}

const Staging& MessageCollectives::staging_of(Queue queue) const {
  return queue == Queue::gather ? gather_staging_ : reduce_staging_;
}

void MessageCollectives::enqueue(Stream& stream, const std::shared_ptr<Timed>& timed) {
  Call& call = timed->operation.call;
  call.sealed = sealed_ && place().size > 1;
  call.notes = &notes_;
  call.name = timed->operation.what.c_str();
  if (place().size == 1) {
    cpu::enqueue(stream, [this, timed] {
      check(group_.advance(*timed, true), "a world of one rank waits for no other rank");
    });
    return;
  }
  group_.expect(*timed);
  cpu::enqueue_resumable(stream, [this, timed] { return group_.advance(*timed, true); });
  group_.engine()->announce(timed->operation.bytes * place().size <= short_bytes);
}

// A GPU has one rank here, with its slice already in place.
bool MessageCollectives::nothing_moves() const {
  return device_.kind() != DeviceKind::cpu;
}

void MessageCollectives::sum_alone(Stream& stream, const ReduceScatterArgs& args) {
  const bool one = args.earlier.empty();
  if (args.count == 0 || (one && args.to == args.from && !args.accumulate)) return;
  check(args.from != nullptr && args.to != nullptr, "reduce_scatter has its buffers");
  std::vector<const void*> own = args.earlier;
  own.push_back(args.from);
  if (args.order != nullptr && !one) {
    std::vector<const float*> addends;
    for (const void* addend : own) addends.push_back(static_cast<const float*>(addend));
    return ops::sum_tree(stream, {.addends = addends,
                                  .merges = args.order->merges,
                                  .to = static_cast<float*>(args.to),
                                  .count = args.count});
  }
  ops::sum_parts(stream, {.wire = ops::wire_of_values(Wire::f32, args.from_dtype),
                          .parts = own,
                          .to = args.to,
                          .to_dtype = args.to_dtype,
                          .count = args.count,
                          .accumulate = args.accumulate});
}

void MessageCollectives::reduce_scatter(Stream& stream, const ReduceScatterArgs& args) {
  const Queue queue = queue_of(stream);
  check_sizes(place().size, args.count, sizeof(float));
  if (args.order != nullptr) check_order(args, place());
  if (device_.kind() == DeviceKind::dry) return;
  if (device_.kind() == DeviceKind::cuda) return sum_alone(stream, args);
  check_reduce_scatter(args, place());
  if (group_.options().removed) {
    removing_ = true;
    return;
  }
  auto timed = group_.begin(Kind::reduce_scatter, queue, args.name,
                            static_cast<std::int64_t>(ops::wire_bytes(args.wire, args.count)));
  timed->operation.steps =
      chosen_reduce_scatter_steps(timed->operation.call, staging_of(queue), hierarchy_, args);
  enqueue(stream, timed);
}

void MessageCollectives::all_gather(Stream& stream, const AllGatherArgs& args) {
  const Queue queue = queue_of(stream);
  check_sizes(place().size, args.bytes, 1);
  if (nothing_moves()) return;
  check(args.bytes == 0 || args.buffer != nullptr, "all_gather has its buffer");
  if (removing_) return;
  auto timed = group_.begin(Kind::all_gather, queue, args.name, args.bytes);
  timed->operation.steps = all_gather_steps(timed->operation.call, ways(args.hierarchical), args);
  enqueue(stream, timed);
}

void MessageCollectives::all_gather_values(Stream& stream, const AllGatherValuesArgs& args) {
  const Queue queue = queue_of(stream);
  check_sizes(place().size, args.count, sizeof(float));
  check(args.dtype == DType::f32 || args.dtype == DType::bf16, "all_gather_values takes f32 or bf16");
  if (nothing_moves()) return;
  check(args.count == 0 || args.buffer != nullptr, "all_gather_values has its buffer");
  if (removing_) return;
  auto timed = group_.begin(Kind::all_gather_values, queue, args.name,
                            static_cast<std::int64_t>(ops::wire_bytes(args.wire, args.count)));
  timed->operation.steps =
      all_gather_values_steps(timed->operation.call, staging_of(queue), ways(args.hierarchical), args);
  enqueue(stream, timed);
}

void MessageCollectives::all_to_all(Stream& stream, const AllToAllArgs& args) {
  const Queue queue = queue_of(stream);
  check_all_to_all(args, place());
  if (device_.kind() == DeviceKind::dry || removing_) return;
  if (device_.kind() == DeviceKind::cuda) {  // there is only one rank
    device_.copy(stream, args.to, args.from, static_cast<std::size_t>(args.bytes));
    return;
  }
  auto timed = group_.begin(Kind::all_to_all, queue, args.name, args.bytes);
  timed->operation.steps = all_to_all_steps(timed->operation.call, args);
  enqueue(stream, timed);
}

void MessageCollectives::pass(Stream& stream, const SendArgs* out, const ReceiveArgs* in) {
  const Queue queue = queue_of(stream);
  const Passing passing = check_pass(out, in, place());
  if (nothing_moves() || removing_) return;
  auto timed = group_.begin_between(passing.kind, queue, passing.name, passing.bytes, passing.partners);
  timed->operation.steps = pass_steps(timed->operation.call, out == nullptr ? SendArgs{} : *out,
                                      in == nullptr ? ReceiveArgs{} : *in);
  enqueue(stream, timed);
}

void MessageCollectives::all_reduce_max(Stream& stream, const char* name, float* values, std::int64_t count) {
  reduce_all(stream, Kind::all_reduce_max, name, {{ops::Combine::max_f32, values, count}});
}

void MessageCollectives::all_reduce_sum(Stream& stream, const char* name, std::int64_t* values,
                                        std::int64_t count) {
  reduce_all(stream, Kind::all_reduce_sum, name, {{ops::Combine::sum_i64, values, count}});
}

void MessageCollectives::all_reduce_sum(Stream& stream, const char* name, double* values,
                                        std::int64_t count) {
  reduce_all(stream, Kind::all_reduce_sum, name, {{ops::Combine::sum_f64, values, count}});
}

void MessageCollectives::all_reduce_sums(Stream& stream, const char* name, std::int64_t* integers,
                                         std::int64_t integer_count, double* doubles,
                                         std::int64_t double_count) {
  reduce_all(
      stream, Kind::all_reduce_sum, name,
      {{ops::Combine::sum_i64, integers, integer_count}, {ops::Combine::sum_f64, doubles, double_count}});
}

void MessageCollectives::reduce_all(Stream& stream, Kind kind, const char* name,
                                    const std::vector<ReducedValues>& values) {
  const Queue queue = queue_of(stream);
  std::int64_t bytes = 0;
  for (const ReducedValues& some : values) {
    const std::size_t element = ops::element_bytes(some.how);
    check_sizes(place().size, some.count, element);
    bytes += some.count * static_cast<std::int64_t>(element);
  }
  if (nothing_moves()) return;
  auto timed = group_.begin(kind, queue, name, bytes);
  timed->operation.steps = all_reduce_steps(timed->operation.call, staging_of(queue), hierarchy_, values);
  enqueue(stream, timed);
}

Seals* seals_of(Collectives& collectives) {
  return dynamic_cast<Seals*>(&collectives);
}

}  // namespace octet::comm
