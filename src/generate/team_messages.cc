#include "team_messages.h"

#include <algorithm>
#include <vector>

#include "octet/base/error.h"
#include "octet/ops/wire.h"

namespace octet::generate {
namespace {

ops::Matrix top(ops::Matrix m, std::int64_t rows) {
  m.rows = rows;
  return m;
}

}  // namespace

StageEdges::StageEdges(comm::Collectives& pipeline, const model::Share& share, Device& device)
    : pipeline_(pipeline),
      share_(share),
      device_(device),
      ready_(device.make_event()),
      came_(device.make_event()),
      read_(device.make_event()) {}

void StageEdges::reserve(Arena& arena, std::int64_t rows, std::int64_t cols, DType dtype) {
  const std::size_t bytes = static_cast<std::size_t>(rows * cols) * size_of(dtype);
  in_ = {.data = nullptr, .dtype = dtype, .rows = rows, .cols = cols, .ld = cols};
  const auto buffer = [&] {
    ops::Matrix states = in_;
    states.data = arena.reserve("decode/hidden states between stages", bytes);
    return states;
  };
  for (int i = 1; !share_.last() && i < share_.stages; ++i)
    out_.push_back({.states = buffer(), .sent = device_.make_event()});
  if (!share_.first()) in_ = buffer();
}

ops::ConstMatrix StageEdges::receive(Stream& compute, std::int64_t tokens) {
  if (share_.first()) return {};
  Stream& stream = stream_from(share_.stage - 1);
  stream.wait(*read_);  // by the previous pass
  pipeline_.receive(
      stream,
      {.name = "hidden states", .from = number_of(share_.stage - 1), .to = in_.data, .bytes = bytes(tokens)});
  stream.record(*came_);
  compute.wait(*came_);
  return top(in_, tokens);
}

ops::Matrix StageEdges::place(Stream& compute, std::int64_t tokens) {
  if (share_.last()) return {};
  tokens_ = tokens;
  compute.wait(*out_[next_].sent);
  return top(out_[next_].states, tokens);
}

void StageEdges::send(Stream& compute) {
  if (!share_.first()) compute.record(*read_);
  if (share_.last()) return;
  const Out& out = out_[next_];
  Stream& stream = stream_from(share_.stage);
  compute.record(*ready_);
  stream.wait(*ready_);
  pipeline_.send(stream, {.name = "hidden states",
                          .to = number_of(share_.stage + 1),
                          .from = out.states.data,
                          .bytes = bytes(tokens_)});
  stream.record(*out.sent);
  next_ = (next_ + 1) % out_.size();
}

namespace {

std::size_t bytes_of(const ops::Matrix& values) {
  return static_cast<std::size_t>(values.rows * values.cols) * size_of(values.dtype);
}

}  // namespace

TensorSums::TensorSums(comm::Collectives& tensor, Device& device)
    : tensor_(tensor), device_(device), ready_(device.make_event()), done_(device.make_event()) {}

void TensorSums::reserve(Arena& arena, std::int64_t rows, std::int64_t cols, DType dtype) {
  const auto ranks = static_cast<std::size_t>(tensor_.size());
  const std::size_t most = static_cast<std::size_t>(rows * cols) * size_of(dtype);
  parts_ =
      static_cast<std::byte*>(arena.reserve("decode/parts of sums", ranks * std::min(most, kOneShotBytes)));
  if (most <= kOneShotBytes || cols % tensor_.size() == 0) return;
  slices_bytes_ = (static_cast<std::size_t>(rows * cols) + ranks) * size_of(dtype);
  slices_ = static_cast<std::byte*>(arena.reserve("decode/parts of sums", slices_bytes_));
}

std::int64_t TensorSums::direct_rows(std::int64_t cols, DType dtype) const {
  // If one row is not whole words of a direct sum, some row counts are not, so none is direct.
  if (!tensor_.sums_directly(cols, dtype)) return 0;
  std::int64_t rows = 0;
  // Up to 2^21 - 1, bit by bit. Sums of fewer rows are direct too.
  for (std::int64_t more = std::int64_t{1} << 20; more > 0; more /= 2)
    if (tensor_.sums_directly((rows + more) * cols, dtype)) rows += more;
  return rows;
}

bool TensorSums::adds(const ops::Matrix& values) const {
  return values.ld == values.cols && tensor_.sums_directly(values.rows * values.cols, values.dtype);
}

void TensorSums::reduce_and_add(Stream& compute, const char*, const ops::Matrix& values,
                                const ops::ConstMatrix& addend, const ops::Matrix& to) {
  check(adds(values) && addend.ld == values.ld && to.ld == values.ld && addend.dtype == values.dtype &&
            to.dtype == values.dtype,
        "direct sums are of dense matrices of one dtype");
  tensor_.sum_directly(compute, {.values = values.data,
                                 .addend = addend.data,
                                 .to = to.data,
                                 .dtype = values.dtype,
                                 .count = values.rows * values.cols});
}

void TensorSums::reduce_partial(Stream& compute, const char* name, const ops::Matrix& values) {
  check(values.ld == values.cols && (values.dtype == DType::f32 || values.dtype == DType::bf16),
        "sums over ranks are of dense matrices in f32 or bf16");
  if (tensor_.size() == 1 || values.rows * values.cols == 0) return;
  if (adds(values))
    return reduce_and_add(compute, name, values, {nullptr, values.dtype, values.rows, values.cols, values.ld},
                          values);
  bytes_of(values) <= kOneShotBytes ? in_one_exchange(compute, name, values) : in_two(compute, name, values);
}

void TensorSums::in_one_exchange(Stream& compute, const char* name, const ops::Matrix& values) {
  const std::size_t bytes = bytes_of(values);
  Stream& stream = tensor_.gather_stream();
  device_.copy(compute, parts_ + static_cast<std::size_t>(tensor_.rank()) * bytes, values.data, bytes);
  compute.record(*ready_);
  stream.wait(*ready_);
  tensor_.all_gather(stream, {.name = name, .buffer = parts_, .bytes = static_cast<std::int64_t>(bytes)});
  stream.record(*done_);
  compute.wait(*done_);
  std::vector<const void*> parts;
  for (int rank = 0; rank < tensor_.size(); ++rank)
    parts.push_back(parts_ + static_cast<std::size_t>(rank) * bytes);
  ops::sum_parts(compute, {.wire = ops::wire_of_values(ops::Wire::f32, values.dtype),
                           .parts = parts,
                           .to = values.data,
                           .to_dtype = values.dtype,
                           .count = values.rows * values.cols});
}

void TensorSums::in_two(Stream& compute, const char* name, const ops::Matrix& values) {
  const std::int64_t count = values.rows * values.cols, ranks = tensor_.size();
  const std::int64_t slice = (count + ranks - 1) / ranks;
  const std::size_t slice_bytes = static_cast<std::size_t>(slice) * size_of(values.dtype);
  auto* at = static_cast<std::byte*>(values.data);
  const bool filled_up = slice * ranks != count;
  if (filled_up) {
    check(slice_bytes * static_cast<std::size_t>(ranks) <= slices_bytes_,
          "there is room for the summed values");
    at = slices_;
    device_.copy(compute, at, values.data, bytes_of(values));
  }
  Stream& stream = tensor_.reduce_stream();
  std::byte* const own = at + static_cast<std::size_t>(tensor_.rank()) * slice_bytes;
  compute.record(*ready_);
  stream.wait(*ready_);
  tensor_.reduce_scatter(stream, {.name = name,
                                  .from = at,
                                  .from_dtype = values.dtype,
                                  .to = own,
                                  .to_dtype = values.dtype,
                                  .count = slice});
  tensor_.all_gather(stream, {.name = name, .buffer = at, .bytes = static_cast<std::int64_t>(slice_bytes)});
  stream.record(*done_);
  compute.wait(*done_);
  if (filled_up) device_.copy(compute, values.data, at, bytes_of(values));
}

}  // namespace octet::generate
