#pragma once

#include "layers/group_builder.h"
#include "layers/pass.h"
#include "layers/work_list.h"

namespace octet::model {

/// A number that multiplies the stream after a block (Architecture::output_scales), or none. It is stored
/// with the weights and not trained.
class OutputScale {
 public:
  OutputScale(GroupBuilder& group, const Architecture& architecture);
  explicit operator bool() const { return static_cast<bool>(number_); }
  /// `back`: whether backward reaches it.
  std::vector<Operation> operations(std::int64_t tokens, bool back) const;
  /// Multiplies the stream, or its gradient, in place.
  void apply(const Call& call, const ops::Matrix& stream) const;

 private:
  std::int64_t width_;
  VectorHandle number_;
};

}  // namespace octet::model
