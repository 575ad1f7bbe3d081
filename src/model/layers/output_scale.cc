#include "layers/output_scale.h"

#include "octet/ops/elementwise.h"

namespace octet::model {

OutputScale::OutputScale(GroupBuilder& group, const Architecture& a) : width_(a.hidden) {
  if (a.output_scales) number_ = group.number("output_scale", "layer_scalar", 1.0, {1});
}

std::vector<Operation> OutputScale::operations(std::int64_t tokens, bool back) const {
  if (!number_) return {};
  const double values = 2 * static_cast<double>(tokens) * static_cast<double>(width_);
  std::vector<Operation> all = {moves(OperationKind::activation, values, {0, 0, 0, 0})};
  if (back) all.push_back(moves_back(OperationKind::activation, values));
  return all;
}

void OutputScale::apply(const Call& call, const ops::Matrix& stream) const {
  if (number_) ops::scale_by(call.stream, stream, number_.in(call.parameters));
}

}  // namespace octet::model
