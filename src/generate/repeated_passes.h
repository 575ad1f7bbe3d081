// Passes that are made again and again with other tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "octet/device/recording.h"

namespace octet::generate {

/// Of a decoder's passes those that take a token of each sequence: what they enqueue depends on how many
/// there are and on nothing else that the host knows. Where the device records work, each number of tokens is
/// enqueued the first time, recorded the second and replayed from then on. So that there are few, numbers are
/// rounded up.
class RepeatedPasses {
 public:
  /// Passes of at most `most` tokens: of no other number are they repeated. None on a null stream.
  RepeatedPasses(Stream* stream, std::int64_t most) : stream_(stream), most_(most) {}
  /// Whether passes of so many tokens are repeated here.
  bool repeats(std::int64_t tokens) const {
    return stream_ != nullptr && most_ > 0 && tokens <= most_ && can_record(*stream_);
  }
  /// As how many tokens a pass of `tokens` is made.
  std::int64_t rounded(std::int64_t tokens) const;
  /// Makes a pass that `enqueue` puts on the stream: of a rounded number of tokens, and of a kind. True when
  /// it was replayed.
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
