// Scores given texts: log-probabilities and logits of their tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "octet/generate/decoder.h"
#include "octet/runtime/staging.h"
#include "passes.h"

namespace octet::generate {

/// See the functions of Decoder with the same names.
class Scoring {
 public:
  /// Reserves staging buffers in `arena` for log_probabilities(), if options.scored is above 0.
  Scoring(const DecoderParts& parts, Passes& passes, Arena& arena);

  std::vector<std::vector<double>> log_probabilities(const std::vector<std::vector<std::int32_t>>& sequences);
  Decoder::Score score(const std::vector<std::int32_t>& ids, std::int64_t best);
  std::vector<float> next_logits(const std::vector<std::int32_t>& prompt);

 private:
  void take_text(const std::vector<std::int32_t>& ids, std::int64_t piece,
                 const std::function<void(std::int64_t begin, std::int64_t end)>& see);

  DecoderParts parts_;
  Passes& passes_;
  std::unique_ptr<runtime::Staging> staging_;  ///< null: no sequences are scored
};

}  // namespace octet::generate
