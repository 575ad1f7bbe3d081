#include "stage_edges.h"

#include <algorithm>

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

}  // namespace octet::generate
