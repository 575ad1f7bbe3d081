// Sums over the ranks of a tensor group, after layers with split inputs.
#pragma once

#include <cstddef>
#include <memory>

#include "octet/comm/collectives.h"
#include "octet/device/device.h"
#include "octet/model/partial_sums.h"

namespace octet::generate {

/// If GPUs can access each other's memory, one kernel sums short messages directly. Otherwise a short message
/// takes one exchange: every rank gets all parts and adds them. A long message takes two: each rank adds one
/// slice, then all ranks gather the slices. All ways add in rank order, in fp32, and give the same bits.
class TensorSums final : public model::PartialSums {
 public:
  /// Largest part in bytes that is sent whole to all ranks.
  static constexpr std::size_t kOneShotBytes = std::size_t{256} << 10;

  /// `tensor` and `device` outlive this.
  TensorSums(comm::Collectives& tensor, Device& device);
  /// Reserves receive buffers for sums of up to [rows, cols]. Call before the first sum.
  void reserve(Arena& arena, std::int64_t rows, std::int64_t cols, DType dtype);
  /// Returns up to how many rows of `cols` values the sums are direct, so that passes with them can be
  /// recorded.
  std::int64_t direct_rows(std::int64_t cols, DType dtype) const;
  void reduce_partial(Stream& compute, const char* name, const ops::Matrix& values) override;
  bool adds(const ops::Matrix& values) const override;
  void reduce_and_add(Stream& compute, const char* name, const ops::Matrix& values,
                      const ops::ConstMatrix& addend, const ops::Matrix& to) override;

 private:
  void in_one_exchange(Stream& compute, const char* name, const ops::Matrix& values);
  void in_two(Stream& compute, const char* name, const ops::Matrix& values);

  comm::Collectives& tensor_;
  Device& device_;
  std::unique_ptr<Event> ready_, done_;
  std::byte* parts_ = nullptr;   ///< [ranks, a part] of a short message
  std::byte* slices_ = nullptr;  ///< a long message, padded to a multiple of the number of ranks
  std::size_t slices_bytes_ = 0;
};

}  // namespace octet::generate
