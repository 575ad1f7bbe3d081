#include "part_set.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/checkpoint/coverage.h"
#include "octet/checkpoint/manifest.h"
#include "octet/checkpoint/packer.h"
#include "octet/weights/convert.h"

namespace octet::memory_tier {
namespace {

constexpr std::size_t kBlocksOfRound = 16;  ///< blocks per round, of at most kChunkBytes each

/// A chunk of a slice of a part.
struct Block {
  std::int64_t part = 0, slice = 0, chunk = 0;
  auto operator<=>(const Block&) const = default;
};

std::int64_t bytes_of(const PartSlice& slice, std::int64_t chunk) {
  return std::min(checkpoint::kChunkBytes, slice.bytes - chunk * checkpoint::kChunkBytes);
}

/// The slices that a rank needs, by tensor, as runs of elements in ascending order.
class Wanted {
 public:
  explicit Wanted(const std::vector<TensorSlice>& slices) {
    for (const TensorSlice& slice : slices) {
      std::vector<Run>& runs = by_tensor_[slice.name];
      each_run(slice, [&](std::int64_t first, std::int64_t count, void* data) {
        if (count > 0) runs.push_back({first, first + count, static_cast<std::byte*>(data), slice.dtype});
        left_ += count;
      });
    }
    for (auto& [name, runs] : by_tensor_) {
      std::ranges::sort(runs, {}, &Run::begin);
      // `reach` is the maximum end of a run and all earlier runs, so that a binary search finds all overlaps.
      std::int64_t end = 0;
      for (Run& run : runs) run.reach = end = std::max(end, run.end);
    }
  }

  /// Returns whether any of the elements [begin, end) of a tensor are needed.
  bool touches(const std::string& tensor, std::int64_t begin, std::int64_t end) const {
    bool found = false;
    each_overlap(tensor, begin, end, [&](const Run&, std::int64_t, std::int64_t) { found = true; });
    return found;
  }
  /// Copies the needed elements among [begin, end) of a tensor from memory, converted from `dtype`.
  void take(const std::string& tensor, DType dtype, std::int64_t begin, std::int64_t end,
            const std::byte* from) {
    each_overlap(tensor, begin, end, [&](const Run& run, std::int64_t first, std::int64_t last) {
      const std::byte* source = from + (first - begin) * static_cast<std::int64_t>(size_of(dtype));
      std::byte* to = run.data + (first - run.begin) * static_cast<std::int64_t>(size_of(run.dtype));
      const std::int64_t count = last - first;
      if (run.dtype == dtype) {
        std::memcpy(to, source, static_cast<std::size_t>(count) * size_of(dtype));
      } else {
        floats_.resize(static_cast<std::size_t>(count));
        weights::to_float(dtype, source, count, floats_.data());
        weights::from_float(run.dtype, floats_.data(), count, to);
      }
      left_ -= count;
    });
  }
  /// Returns the number of elements not yet filled.
  std::int64_t left() const { return left_; }

 private:
  struct Run {
    std::int64_t begin = 0, end = 0;
    std::byte* data = nullptr;
    DType dtype = DType::f32;
    std::int64_t reach = 0;
  };
  template <typename Do>
  void each_overlap(const std::string& tensor, std::int64_t begin, std::int64_t end, Do&& act) const {
    const auto found = by_tensor_.find(tensor);
    if (found == by_tensor_.end()) return;
    const std::vector<Run>& runs = found->second;
    auto run = std::ranges::upper_bound(runs, begin, {}, &Run::reach);
    for (; run != runs.end() && run->begin < end; ++run) {
      const std::int64_t first = std::max(begin, run->begin), last = std::min(end, run->end);
      if (first < last) act(*run, first, last);
    }
  }

  std::unordered_map<std::string, std::vector<Run>> by_tensor_;
  std::vector<float> floats_;
  std::int64_t left_ = 0;
};

// Calls act(begin, end, first byte in the chunk) for each run of tensor elements [begin, end) in a chunk.
template <typename Do>
void each_run_of(const PartSlice& slice, std::int64_t chunk, Do&& act) {
  const auto width = static_cast<std::int64_t>(size_of(slice.tensor.dtype));
  std::int64_t at = chunk * checkpoint::kChunkBytes / width;
  const std::int64_t first = at, end = at + bytes_of(slice, chunk) / width;
  while (at < end) {
    const std::int64_t row = slice.rows > 1 ? at / slice.count : 0, inside = at - row * slice.count;
    const std::int64_t some = std::min(end - at, slice.count - inside);
    const std::int64_t begin = slice.begin + row * slice.stride + inside;
    act(begin, begin + some, (at - first) * width);
    at += some;
  }
}

void scatter(const PartSlice& slice, std::int64_t chunk, const std::byte* bytes, Wanted& wanted) {
  each_run_of(slice, chunk, [&](std::int64_t begin, std::int64_t end, std::int64_t at) {
    wanted.take(slice.tensor.name, slice.tensor.dtype, begin, end, bytes + at);
  });
}

bool is_wanted(const PartSlice& slice, std::int64_t chunk, const Wanted& wanted) {
  bool found = false;
  each_run_of(slice, chunk, [&](std::int64_t begin, std::int64_t end, std::int64_t) {
    found = found || wanted.touches(slice.tensor.name, begin, end);
  });
  return found;
}

// Returns the blocks that any rank lacks, the same on all ranks.
std::vector<Block> of_all(comm::Channel& channel, const std::vector<Block>& mine) {
  checkpoint::Packer packer;
  for (const Block& block : mine) packer.number(block.part).number(block.slice).number(block.chunk);
  std::set<Block> all;
  for (const std::string& of_rank : channel.all_gather_bytes(packer.packed())) {
    for (checkpoint::Unpacker unpacker(of_rank); !unpacker.done();) {
      Block block;
      block.part = unpacker.number(), block.slice = unpacker.number(), block.chunk = unpacker.number();
      all.insert(block);
    }
  }
  return {all.begin(), all.end()};
}

}  // namespace

PartSet::PartSet(std::vector<Part> parts, std::string words)
    : parts_(std::move(parts)), words_(std::move(words)) {
  check(!parts_.empty(), "a checkpoint has parts");
  const PartFacts& facts = parts_.front().header.facts;
  manifest_.step = facts.step;
  manifest_.world = facts.world;
  manifest_.zero_stage = facts.zero_stage;
  std::vector<std::string> descriptions;
  for (const Part& part : parts_) descriptions.push_back(part.header.description);
  for (weights::TensorHeader& header : checkpoint::cover(descriptions).tensors) {
    checkpoint::CheckpointTensor& tensor = manifest_.tensors.emplace_back();
    static_cast<weights::TensorHeader&>(tensor) = std::move(header);
    tensor.bytes = weights::byte_count(tensor);
  }
}

void PartSet::read(comm::Channel& channel, const std::vector<TensorSlice>& slices) const {
  Wanted wanted(slices);
  std::vector<Block> lacking;
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    const Part& part = parts_[p];
    for (std::size_t s = 0; s < part.header.slices.size(); ++s) {
      const PartSlice& slice = part.header.slices[s];
      for (std::int64_t c = 0; c < checkpoint::chunk_count(slice.bytes); ++c) {
        if (part.memory) {
          scatter(slice, c, part.memory->bytes().data() + slice.offset + c * checkpoint::kChunkBytes, wanted);
        } else if (is_wanted(slice, c, wanted)) {
          lacking.push_back({static_cast<std::int64_t>(p), static_cast<std::int64_t>(s), c});
        }
      }
    }
  }
  const std::vector<Block> blocks = of_all(channel, lacking);
  for (std::size_t first = 0; first < blocks.size(); first += kBlocksOfRound) {
    const std::size_t last = std::min(blocks.size(), first + kBlocksOfRound);
    std::string mine;
    for (std::size_t i = first; i < last; ++i) {
      const Part& part = parts_[static_cast<std::size_t>(blocks[i].part)];
      if (part.giver != channel.rank()) continue;
      const PartSlice& slice = part.header.slices[static_cast<std::size_t>(blocks[i].slice)];
      check(part.memory.has_value(), "the rank that sends a part has it");
      mine.append(reinterpret_cast<const char*>(part.memory->bytes().data()) + slice.offset +
                      blocks[i].chunk * checkpoint::kChunkBytes,
                  static_cast<std::size_t>(bytes_of(slice, blocks[i].chunk)));
    }
    const std::vector<std::string> all = channel.all_gather_bytes(mine);
    std::vector<std::size_t> taken(all.size(), 0);  // consumed bytes of each giver
    channel.together([&] {
      for (std::size_t i = first; i < last; ++i) {
        const Part& part = parts_[static_cast<std::size_t>(blocks[i].part)];
        const PartSlice& slice = part.header.slices[static_cast<std::size_t>(blocks[i].slice)];
        const auto giver = static_cast<std::size_t>(part.giver);
        const auto size = static_cast<std::size_t>(bytes_of(slice, blocks[i].chunk));
        check(taken[giver] + size <= all[giver].size(), "the sending rank sends all requested bytes");
        const char* bytes = all[giver].data() + taken[giver];
        taken[giver] += size;
        if (part.memory) continue;
        if (hash64({bytes, size}) !=
            part.header.chunks[slice.first_chunk + static_cast<std::size_t>(blocks[i].chunk)]) {
          throw Error({.what = "bytes of a checkpoint changed during the transfer from another host's memory",
                       .expected = "the checksum that the checkpoint stores",
                       .found = "another checksum",
                       .where = words_ + ", tensor '" + slice.tensor.name + "', from rank " +
                                std::to_string(part.giver),
                       .fix = "start the run again, which takes the newest checkpoint on the disk",
                       .code = ExitCode::no_valid_checkpoint});
        }
        scatter(slice, blocks[i].chunk, reinterpret_cast<const std::byte*>(bytes), wanted);
      }
    });
  }
  channel.together([&] {
    if (wanted.left() == 0) return;
    throw Error({.what = "a checkpoint in memory is incomplete",
                 .found = std::to_string(wanted.left()) + " elements that no part has",
                 .where = words_,
                 .fix = "start the run again, which takes the newest checkpoint on the disk",
                 .code = ExitCode::no_valid_checkpoint});
  });
}

void PartSet::close() {
  for (Part& part : parts_) part.memory.reset();
}

}  // namespace octet::memory_tier
