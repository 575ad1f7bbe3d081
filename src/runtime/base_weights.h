// The weights of a model before adapters, from its folder or from a checkpoint instead.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "octet/base/tensor_slice.h"
#include "octet/runtime/trained_parameters.h"
#include "octet/weights/safetensors.h"

namespace octet::runtime {

class BaseWeights {
 public:
  /// Throws Error as WeightFolder does, unless the checkpoint holds every parameter.
  BaseWeights(const std::string& folder, const TrainedParameters& trained);

  /// Throws Error as WeightFolder::require_used, and (usage) for a parameter of the checkpoint that is not
  /// among `used`.
  void require_used(const std::set<std::string>& used, const std::string& prefix,
                    const std::vector<std::string>& unread) const;
  /// Fills a slice (host memory, f32) of a tensor with its shape. Throws Error for a missing tensor and
  /// another shape, and for bytes of the checkpoint that are damaged.
  void read(const TensorSlice& slice) const;
  /// Elements [begin, begin + count) of a tensor in row-major order.
  void read(const std::string& name, std::int64_t begin, std::int64_t count, float* out) const;
  /// The folder's own weights, for what only a run that begins asks for.
  const weights::WeightFolder& folder() const;

 private:
  bool from_checkpoint(const std::string& name) const;
  void round(std::int64_t count, float* values) const;

  TrainedParameters trained_;
  std::optional<weights::WeightFolder> folder_;
};

}  // namespace octet::runtime
