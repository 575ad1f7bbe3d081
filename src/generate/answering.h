// Answers requests: chooses tokens pass by pass, and keeps passes in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "octet/generate/decoder.h"
#include "passes.h"

namespace octet::generate {

/// See the functions of Decoder with the same names.
class Answering {
 public:
  /// `runs_ahead`: a pass may begin before the host has read the results of the previous pass.
  Answering(const DecoderParts& parts, Passes& passes, bool runs_ahead);

  std::size_t submit(const Request& request, const AnswerOptions& options);
  bool busy() const;
  std::int64_t room() const;
  std::vector<Decoder::Finished> step(const OnToken& on_token);
  std::vector<Answer> complete(const std::vector<Request>& requests, const AnswerOptions& options,
                               const OnToken& on_token);
  /// Runs the planned passes and discards their results.
  void run_rest();
  /// Whether a pass has begun and not ended.
  bool has_begun() const { return begun_ > 0; }

 private:
  /// Plans passes until one per stage is in flight, or nothing is left to compute.
  void plan_ahead();
  /// Chooses the tokens of the next pass and admits sequences for it.
  PassTokens next_tokens(bool behind);
  /// Begins the oldest planned pass. Begins a second pass if that pass does not depend on the host.
  void begin_passes();
  void count();
  /// Adds the experts of the tokens of the last pass to their answers.
  void take_experts(const PassTokens& tokens);
  bool extend(Sequence& s, std::size_t row, const OnToken& on_token);

  DecoderParts parts_;
  Passes& passes_;
  bool runs_ahead_;
  std::deque<PassPlan> in_flight_;  ///< oldest first
  std::size_t begun_ = 0;           ///< the oldest `begun_` of them have begun
  std::size_t submitted_ = 0;
};

}  // namespace octet::generate
