#include "octet/device/host_mirror.h"

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

}  // namespace octet
