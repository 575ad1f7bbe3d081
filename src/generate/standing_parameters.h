// Parameters that stay in place from one pass to the next.
#pragma once

#include <vector>

#include "octet/model/parameter_source.h"

namespace octet::generate {

/// Acquires each group of a source once, so that a pass contains only its compute work and waits for no
/// parameters. Only for a source that holds all groups at once and changes nothing by itself.
class StandingParameters final : public model::ParameterSource {
 public:
  explicit StandingParameters(model::ParameterSource& source);
  /// Acquires all groups again at their next use. Must be called after their contents changed.
  void forget(Stream& compute);

  const model::ParameterLayout& layout() const override { return source_.layout(); }
  const model::GroupParameters& acquire(int group, model::Pass pass, Stream& compute) override;
  void release(int, model::Pass, Stream&) override {}
  bool keeps() const override { return true; }
  void blocks_done(Stream&) override {}
  /// Always fails: nothing is trained.
  const model::GroupGradients& gradients(int group, Stream& compute) override;
  void give_back(int group, Stream& compute) override;

 private:
  model::ParameterSource& source_;
  std::vector<const model::GroupParameters*> groups_;
};

}  // namespace octet::generate
