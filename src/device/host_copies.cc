#include "octet/device/host_copies.h"

#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "octet/base/error.h"

namespace octet {
namespace {
constexpr std::size_t kMirrorAlignment = 64;
}

Stream& HostMirror::stream() {
  if (!stream_) stream_ = device_.make_stream({.name = "state"});
  return *stream_;
}

std::size_t HostMirror::bytes_for(const std::vector<TensorSlice>& slices, const Device& device) {
  std::size_t bytes = 0;
  for (const TensorSlice& slice : slices) {
    if (device.host_reaches(slice.data)) continue;
    const std::size_t size = static_cast<std::size_t>(slice.elements()) * size_of(slice.dtype);
    bytes += (size + kMirrorAlignment - 1) / kMirrorAlignment * kMirrorAlignment;
  }
  return bytes;
}

std::vector<TensorSlice> HostMirror::open(std::vector<TensorSlice> slices) {
  clear();
  if (device_.host_reaches_memory()) return slices;
  std::size_t bytes = 0;
  std::vector<std::size_t> starts;
  for (const TensorSlice& slice : slices) {
    starts.push_back(bytes);
    if (device_.host_reaches(slice.data)) continue;
    const auto add = [&](void* there, std::int64_t elements) {
      const std::size_t size = static_cast<std::size_t>(elements) * size_of(slice.dtype);
      pieces_.push_back({.there = there, .at = bytes, .bytes = size});
      bytes += size;
    };
    if (slice.dense()) {
      add(slice.data, slice.elements());
    } else {  // memory between its rows belongs to other tensors
      each_run(slice, [&](std::int64_t, std::int64_t count, void* data) { add(data, count); });
    }
    bytes = (bytes + kMirrorAlignment - 1) / kMirrorAlignment * kMirrorAlignment;
  }
  try {
    memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
  } catch (const std::bad_alloc&) {
    clear();
    throw Error({.what = "not enough host memory to hold the state of the GPU while it is saved or loaded",
                 .expected = std::to_string(bytes) + " free bytes",
                 .where = device_.description(),
                 .fix = "free memory on this machine, or raise the memory limit"});
  }
  for (std::size_t i = 0; i < slices.size(); ++i) {
    if (device_.host_reaches(slices[i].data)) continue;
    slices[i].data = memory_.get() + starts[i];
    if (slices[i].rows > 1) slices[i].pitch = slices[i].count;
  }
  return slices;
}

std::vector<TensorSlice> HostMirror::fetch(std::vector<TensorSlice> slices) {
  slices = open(std::move(slices));
  if (pieces_.empty()) return slices;
  for (const Piece& piece : pieces_) {
    device_.copy_to_host(stream(), memory_.get() + piece.at, piece.there, piece.bytes);
  }
  stream().synchronize();
  return slices;
}

void HostMirror::send() {
  if (pieces_.empty()) return;
  for (const Piece& piece : pieces_) {
    device_.copy_to_device(stream(), piece.there, memory_.get() + piece.at, piece.bytes);
  }
  stream().synchronize();
  clear();
}

void HostMirror::clear() {
  pieces_.clear();
  memory_.reset();
}

namespace {

constexpr std::size_t kPage = 4096;
/// Alignment of small or scattered slices, which are not written directly.
constexpr std::size_t kSmall = 64;
/// A run of at least this size has the same offset modulo kPage as in its file.
constexpr std::size_t kLarge = std::size_t{128} << 10;

std::size_t size_in_bytes(const TensorSlice& slice) {
  return static_cast<std::size_t>(slice.elements()) * size_of(slice.dtype);
}

/// Returns the offset of a slice in the snapshot. `at`: the first free byte.
std::size_t start_of(const TensorSlice& slice, std::size_t at) {
  const std::size_t next = (at + kSmall - 1) / kSmall * kSmall;
  if (!slice.one_run() || size_in_bytes(slice) < kLarge) return next;
  const std::size_t phase = static_cast<std::size_t>(slice.begin) * size_of(slice.dtype) % kPage;
  return next + (phase + kPage - next % kPage) % kPage;
}

bool host_reaches(const Device& device) {
  return device.kind() == DeviceKind::dry ? device.stands_for() == DeviceKind::cpu
                                          : device.host_reaches_memory();
}

}  // namespace

HostSnapshot::HostSnapshot(Arena& arena, const std::string& name, const SnapshotSources& sizes)
    : device_(arena.device()),
      stream_(device_.make_stream({.name = "snapshot"})),
      copied_(device_.make_event()) {
  for (const auto* slices : {&sizes.still, &sizes.moving, &sizes.host}) {
    for (const TensorSlice& slice : *slices) bytes_ = start_of(slice, bytes_) + size_in_bytes(slice);
  }
  const MemoryKind kind = host_reaches(device_) ? MemoryKind::device : MemoryKind::pinned;
  auto* memory = arena.reserve_as<std::byte>(name, bytes_ + kPage, kind);
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  memory_ = memory + (kPage - address % kPage) % kPage;
}

std::vector<TensorSlice> HostSnapshot::take(const SnapshotSources& from) {
  std::vector<TensorSlice> taken;
  std::size_t at = 0;
  const auto place = [&](const std::vector<TensorSlice>& slices, const auto& copy) {
    for (const TensorSlice& slice : slices) {
      at = start_of(slice, at);
      TensorSlice& here = taken.emplace_back(slice);
      here.data = memory_ + at;
      if (slice.rows > 1) here.pitch = slice.count;
      each_run(slice, [&](std::int64_t, std::int64_t count, const void* data) {
        const std::size_t size = static_cast<std::size_t>(count) * size_of(slice.dtype);
        check(at + size <= bytes_, "a snapshot has the size that was reserved for it");
        copy(memory_ + at, data, size);
        at += size;
      });
    }
  };
  const auto enqueue = [&](void* to, const void* there, std::size_t size) {
    device_.copy_to_host(*stream_, to, there, size);
  };
  // `still` slices are placed first but copied last, because take() does not wait for them.
  for (const TensorSlice& slice : from.still) at = start_of(slice, at) + size_in_bytes(slice);
  place(from.moving, enqueue);
  place(from.host, [](void* to, const void* here, std::size_t size) { std::memcpy(to, here, size); });
  if (!from.moving.empty()) stream_->synchronize();
  at = 0;
  place(from.still, enqueue);
  stream_->record(*copied_);
  open_ = true;
  return taken;
}

void HostSnapshot::fence(Stream& stream) {
  if (std::exchange(open_, false)) stream.wait(*copied_);
}

}  // namespace octet
