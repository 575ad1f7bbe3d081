// The optimizer's state in the host's memory, on its way through the device for an update.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "octet/device/device.h"
#include "octet/ops/optimizer.h"

namespace octet::store {

struct Segments;

/// Updates segments whose moments, and masters where these moved too, lie in pinned memory: piece by piece
/// the copy engines bring them and take them back, while the piece between is updated. A kernel that reaches
/// over the link itself takes 1.65 s on an H200 for what takes 0.29 s so.
class StateCarrier {
 public:
  /// Reserves room for three pieces of so many elements, if any segment's state lies elsewhere.
  StateCarrier(const Segments& segments, Arena& arena, std::int64_t piece);
  ~StateCarrier();
  StateCarrier(const StateCarrier&) = delete;
  StateCarrier& operator=(const StateCarrier&) = delete;

  /// ops::adamw() of `count` elements, whose moments lie in the host's memory; `master_too`: and their
  /// masters. What `stream` does behind it finds the new state there.
  void update(const ops::AdamWArgs& args, std::int64_t count, bool master_too, Stream& stream);

 private:
  struct Way;
  struct Piece;
  void carry(const Piece& piece, int set, Stream& stream);

  Device& device_;
  std::int64_t elements_ = 0;  ///< of a piece at most; 0: nothing is carried
  struct Set {
    std::byte* room = nullptr;
    std::unique_ptr<Event> brought, updated, taken;
  };
  std::array<Set, 3> sets_;
  std::unique_ptr<Stream> in_, out_;
  std::unique_ptr<Event> before_;
  int next_ = 0;  ///< set
};

}  // namespace octet::store
