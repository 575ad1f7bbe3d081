#include "loaded_values.h"

#include <algorithm>
#include <utility>

namespace octet::store {

Departures::~Departures() {
  for (const Piece& piece : pieces_) device_.release_host(piece.data, piece.bytes);
}

void Departures::send(Stream& stream, float* out, std::int64_t count,
                      const std::function<void(float*)>& make) {
  if (device_.host_reaches_memory()) {
    stream.synchronize();  // earlier work may still read `out`
    return make(out);
  }
  // The send of the other piece waited for the stream, so the copy from this piece is complete.
  Piece& piece = pieces_[turn_++ % pieces_.size()];
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
  if (piece.bytes < bytes) {
    device_.release_host(std::exchange(piece.data, nullptr), std::exchange(piece.bytes, 0));
    piece.data = static_cast<float*>(device_.allocate_host(bytes));
    piece.bytes = bytes;
  }
  make(piece.data);
  stream.synchronize();
  if (bytes > 0) device_.copy_to_device(stream, out, piece.data, bytes);
}

}  // namespace octet::store
