// Parameters that stay where they are from one pass to the next.
#pragma once

#include <vector>

#include "octet/model/parameter_source.h"

namespace octet::generate {

/// Acquires each group of a source once, so that a pass has nothing to wait for and consists of its own work
/// alone. Only of a source that holds all groups at once and changes nothing by itself.
class StandingParameters final : public model::ParameterSource {
 public:
  explicit StandingParameters(model::ParameterSource& source);
  /// Acquires all groups anew at their next use: what they hold has changed.
  void forget(Stream& compute);

  const model::ParameterLayout& layout() const override { return source_.layout(); }
  const model::GroupParameters& acquire(int group, model::Pass pass, Stream& compute) override;
  void release(int, model::Pass, Stream&) override {}
  bool keeps() const override { return true; }
  void blocks_done(Stream&) override {}
  /// Nothing is trained.
  const model::GroupGradients& gradients(int group, Stream& compute) override;
  void give_back(int group, Stream& compute) override;

 private:
  model::ParameterSource& source_;
  std::vector<const model::GroupParameters*> groups_;
};

}  // namespace octet::generate
