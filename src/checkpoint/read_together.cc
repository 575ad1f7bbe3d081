#include "octet/checkpoint/read_together.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/files.h"

namespace octet::checkpoint {
namespace {

// Bytes that a rank reads at a time, and the number of readers per round. Their product bounds the memory of
// the received bytes.
constexpr std::int64_t kPartBytes = 2 * kChunkBytes;
constexpr int kReaders = 8;

std::int64_t bytes_of(const TensorSlice& slice) {
  return slice.elements() * static_cast<std::int64_t>(size_of(slice.dtype));
}

// Returns a hash of the slices that a rank needs, without their addresses.
std::string description_of(const std::vector<TensorSlice>& slices) {
  std::string text;
  const auto number = [&text](std::int64_t value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  for (const TensorSlice& slice : slices) {
    number(static_cast<std::int64_t>(slice.name.size()));
    text += slice.name;
    number(static_cast<std::int64_t>(slice.dtype));
    number(static_cast<std::int64_t>(slice.shape.size()));
    for (const std::int64_t extent : slice.shape) number(extent);
    for (const std::int64_t value :
         {slice.begin, slice.count, slice.rows, slice.one_run() ? 0 : slice.stride})
      number(value);
  }
  return hash128_hex(text);
}

// Splits the runs into parts of at most kPartBytes (or of one chunk, if its converted values are larger).
// Parts are cut at chunk boundaries of the file, so that no chunk is read twice.
std::vector<std::vector<TensorSlice>> parts_of(const Checkpoint& checkpoint,
                                               const std::vector<TensorSlice>& slices) {
  std::vector<std::vector<TensorSlice>> parts(1);
  std::int64_t filled = 0;
  for (const TensorSlice& slice : slices) {
    const CheckpointTensor* stored = checkpoint.find(slice.name);
    const DType dtype = stored == nullptr ? slice.dtype : stored->dtype;
    const std::int64_t chunk = kChunkBytes / static_cast<std::int64_t>(size_of(dtype));
    each_run(slice, [&](std::int64_t first, std::int64_t count, void* data) {
      const std::int64_t end = first + count;
      for (std::int64_t at = first; at < end || count == 0;) {
        TensorSlice piece = slice;
        piece.begin = at;
        piece.count = std::min(end, (at / chunk + 1) * chunk) - at;
        piece.data =
            static_cast<std::byte*>(data) + (at - first) * static_cast<std::int64_t>(size_of(slice.dtype));
        piece.rows = 1, piece.stride = piece.pitch = 0;
        const std::int64_t bytes = bytes_of(piece);
        if (filled > 0 && filled + bytes > kPartBytes) {
          parts.emplace_back();
          filled = 0;
        }
        at += piece.count;
        filled += bytes;
        parts.back().push_back(std::move(piece));
        if (count == 0) break;
      }
    });
  }
  return parts;
}

void read_own(const Checkpoint& checkpoint, const std::vector<TensorSlice>& slices) {
  try {
    checkpoint.read(slices);
  } catch (const Error& e) {
    if (e.code() == ExitCode::usage) throw;
    Problem problem = e.problem();
    problem.code = ExitCode::no_valid_checkpoint;
    throw Error(std::move(problem));
  }
}

std::string packed(const std::vector<TensorSlice>& part) {
  std::string bytes;
  for (const TensorSlice& slice : part)
    bytes.append(static_cast<const char*>(slice.data), static_cast<std::size_t>(bytes_of(slice)));
  return bytes;
}

void unpack(const std::string& bytes, const std::vector<TensorSlice>& part) {
  std::size_t at = 0;
  for (const TensorSlice& slice : part) {
    const auto count = static_cast<std::size_t>(bytes_of(slice));
    check(count <= bytes.size() - at, "a part of a checkpoint has the bytes of its slices");
    if (count > 0) std::memcpy(slice.data, bytes.data() + at, count);
    at += count;
  }
  check(at == bytes.size(), "a part of a checkpoint has no other bytes");
}

// One round: each of the first ranks reads a part, and all ranks receive all parts.
void read_round(comm::Channel& channel, const Checkpoint& checkpoint,
                std::span<const std::vector<TensorSlice>> parts) {
  const auto mine = static_cast<std::size_t>(channel.rank());
  std::string bytes;
  channel.together([&] {
    if (mine >= parts.size()) return;
    read_own(checkpoint, parts[mine]);
    bytes = packed(parts[mine]);
  });
  const std::vector<std::string> all = channel.all_gather_bytes(bytes);
  for (std::size_t reader = 0; reader < parts.size(); ++reader) {
    if (reader != mine) unpack(all[reader], parts[reader]);
  }
}

}  // namespace

void read_together(comm::Channel& channel, const Checkpoint& checkpoint,
                   const std::vector<TensorSlice>& slices) {
  if (const SharedState* memory = checkpoint.memory()) {
    channel.together([&] {
      for (const TensorSlice& slice : slices) checkpoint.require_fit(slice);
    });
    return memory->read(channel, slices);
  }
  if (channel.place().nodes == 1) {
    channel.together([&] { read_own(checkpoint, slices); });
    return;
  }
  const std::vector<std::string> asked = channel.all_gather_bytes(description_of(slices));
  const bool same =
      std::ranges::all_of(asked, [&](const std::string& other) { return other == asked.front(); });
  if (!same) {
    channel.together([&] { read_own(checkpoint, slices); });
    return;
  }
  const std::vector<std::vector<TensorSlice>> parts = parts_of(checkpoint, slices);
  const auto readers = static_cast<std::size_t>(std::min(channel.size(), kReaders));
  for (std::size_t first = 0; first < parts.size(); first += readers) {
    read_round(channel, checkpoint, std::span(parts).subspan(first, std::min(readers, parts.size() - first)));
  }
}

}  // namespace octet::checkpoint
