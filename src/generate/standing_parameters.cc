#include "standing_parameters.h"

#include "octet/base/error.h"

namespace octet::generate {

StandingParameters::StandingParameters(model::ParameterSource& source)
    : source_(source), groups_(source.layout().groups.size()) {}

void StandingParameters::forget(Stream& compute) {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i] != nullptr) source_.release(static_cast<int>(i), model::Pass::forward, compute);
    groups_[i] = nullptr;
  }
}

const model::GroupParameters& StandingParameters::acquire(int group, model::Pass pass, Stream& compute) {
  const model::GroupParameters*& held = groups_[static_cast<std::size_t>(group)];
  if (held == nullptr) held = &source_.acquire(group, pass, compute);
  return *held;
}

const model::GroupGradients& StandingParameters::gradients(int group, Stream& compute) {
  check(false, "parameters that stay on the device are not trained");
  return source_.gradients(group, compute);
}

void StandingParameters::give_back(int, Stream&) {
  check(false, "parameters that stay on the device are not trained");
}

}  // namespace octet::generate
