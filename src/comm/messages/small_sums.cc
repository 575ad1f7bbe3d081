// Reduce-scatters of few values, in rounds.
#include <algorithm>
#include <cstring>
#include <vector>

#include "messages/rounds.h"
#include "octet/base/index.h"
#include "octet/ops/wire.h"

namespace octet::comm {
namespace {

/// Blocks of all ranks in memory: [size, addends, wire format], for the owners of slices and later from them.
class SmallSum {
 public:
  SmallSum(const Place& place, const ReduceScatterArgs& args, bool hierarchical)
      : place_(place),
        args_(args),
        hierarchical_(hierarchical),
        wire_(ops::wire_of_values(hierarchical ? Wire::f32 : args.wire, args.from_dtype)),
        own_(own_addends(args)),
        pitch_(addend_pitch(ops::wire_bytes(wire_, args.count))),
        blocks_(index(place.size) * block_bytes()) {
    for (int rank = 0; rank < place_.size; ++rank) {
      for (std::size_t i = 0; i < own_.size(); ++i) put(rank, i);
    }
  }

  std::byte* blocks() { return blocks_.data(); }
  std::size_t block_bytes() const { return own_.size() * pitch_; }
  void add() { hierarchical_ ? add_node_sums() : add_all(); }

 private:
  std::byte* at(int rank, std::size_t addend) {
    return blocks_.data() + index(rank) * block_bytes() + addend * pitch_;
  }
  void put(int rank, std::size_t addend) {
    const std::byte* values = own_[addend] + index(rank * args_.count) * size_of(args_.from_dtype);
    if (ops::travels_as_it_lies(wire_, args_.from_dtype)) {
      std::memcpy(at(rank, addend), values, ops::wire_bytes(wire_, args_.count));
    } else {
      ops::encode_values({.wire = wire_,
                          .from = values,
                          .dtype = args_.from_dtype,
                          .count = args_.count,
                          .to = at(rank, addend),
                          .residual = residual_at(args_, rank * args_.count)});
    }
  }
  void sum(Wire wire, const std::vector<const void*>& parts) const {
    ops::sum_parts({.wire = wire,
                    .parts = parts,
                    .to = args_.to,
                    .to_dtype = args_.to_dtype,
                    .count = args_.count,
                    .accumulate = args_.accumulate});
  }
  void add_all() {
    std::vector<const void*> parts;
    for (int rank = 0; rank < place_.size; ++rank) {
      for (std::size_t i = 0; i < own_.size(); ++i) parts.push_back(at(rank, i));
    }
    sum(wire_, parts);
  }
  // Adds in the order of sums by nodes, and rounds each node sum like a sent node sum.
  void add_node_sums() {
    const std::size_t slot = index(ops::wire_blocks(args_.count) * ops::kWireBlock) * sizeof(float);
    std::vector<std::byte> sums(index(place_.nodes + 1) * slot);
    std::vector<const void*> nodes;
    for (int node = 0; node < place_.nodes; ++node) {
      std::vector<const void*> parts;
      for (int rank = 0; rank < place_.size; ++rank) {
        if (place_.node_of[index(rank)] == node) parts.push_back(at(rank, 0));
      }
      std::byte* const kept = sums.data() + index(node) * slot;
      std::byte* const sum = args_.wire == Wire::f32 ? kept : sums.data() + index(place_.nodes) * slot;
      ops::sum_parts({.wire = wire_, .parts = parts, .to = sum, .count = args_.count});
      if (args_.wire != Wire::f32)
        ops::encode_values({.wire = args_.wire, .from = sum, .count = args_.count, .to = kept});
      nodes.push_back(kept);
    }
    sum(args_.wire, nodes);
  }

  const Place& place_;
  ReduceScatterArgs args_;
  bool hierarchical_;
  Wire wire_;  // of the blocks
  std::vector<const std::byte*> own_;
  std::size_t pitch_;
  std::vector<std::byte> blocks_;
};

}  // namespace

bool reduces_in_rounds(int size, const ReduceScatterArgs& args, bool hierarchical) {
  const auto addends = static_cast<std::int64_t>(args.earlier.size()) + 1;
  const std::int64_t bytes = args.count * addends * static_cast<std::int64_t>(sizeof(float)) * size;
  // The residuals of node sums belong to the ranks that send them.
  const bool keeps_residuals = hierarchical && args.residual != nullptr && args.wire != Wire::f32;
  return args.count > 0 && args.order == nullptr && !keeps_residuals && slices_in_rounds(size, bytes);
}

Steps reduce_scatter_in_rounds_steps(Call& call, ReduceScatterArgs args, bool hierarchical) {
  SmallSum sum(call.place(), args, hierarchical);
  Steps exchange = exchange_in_rounds_steps(call, sum.blocks(), sum.block_bytes());
  while (!exchange.resume()) co_await pause;
  sum.add();
}

}  // namespace octet::comm
