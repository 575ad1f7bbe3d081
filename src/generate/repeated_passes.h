// Records and replays passes that repeat with other tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "octet/device/recording.h"

namespace octet::generate {

/// A pass that takes one token of each sequence enqueues work that depends only on the number of tokens. If
/// the device can record, each number of tokens is enqueued the first time, recorded the second time and
/// replayed afterwards. Numbers are rounded up, so there are few recordings.
class RepeatedPasses {
 public:
  /// Repeats passes of at most `most` tokens. A null stream disables repetition.
  RepeatedPasses(Stream* stream, std::int64_t most) : stream_(stream), most_(most) {}
  /// Whether passes of this many tokens are repeated.
  bool repeats(std::int64_t tokens) const {
    return stream_ != nullptr && most_ > 0 && tokens <= most_ && can_record(*stream_);
  }
  /// Returns the padded number of tokens of a pass of `tokens` tokens.
  std::int64_t rounded(std::int64_t tokens) const;
  /// Runs a pass that `enqueue` puts on the stream. `tokens` is a rounded number; `kind` separates
  /// recordings. Returns true if the pass was replayed.
  bool make(std::int64_t tokens, int kind, const std::function<void()>& enqueue);

 private:
  struct Known {
    std::unique_ptr<Recording> recording;
    bool refused = false;
  };
  Stream* stream_;
  std::int64_t most_;
  std::map<std::pair<std::int64_t, int>, Known> passes_;
};

}  // namespace octet::generate
