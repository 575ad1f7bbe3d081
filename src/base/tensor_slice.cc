#include "octet/base/tensor_slice.h"

#include "octet/base/error.h"

namespace octet {

std::int64_t element_count(const std::vector<std::int64_t>& shape, const std::string& name) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count)) {
      throw Error({.what = "the shape of a tensor is impossible",
                   .expected = "sizes of at least 0, with a product that fits 63 bits",
                   .found = std::to_string(extent) + " as one of its sizes",
                   .where = name,
                   .fix = "fetch or write the file again: its header is damaged",
                   .code = ExitCode::usage});
    }
  }
  return count;
}

void check_inside(const TensorSlice& slice) {
  constexpr const char* kOutside = "a slice lies outside its tensor";
  const std::int64_t all = element_count(slice.shape, slice.name);
  check(slice.begin >= 0 && slice.count >= 0 && slice.begin <= all && slice.count <= all - slice.begin,
        kOutside);
  check(slice.rows >= 1, "a slice has a run");
  if (slice.rows == 1) return;
  check(slice.count > 0 && slice.stride >= slice.count && slice.pitch >= slice.count,
        "runs of a slice do not overlap");
  std::int64_t further = 0;  // from the first run to the last one
  check(!__builtin_mul_overflow(slice.rows - 1, slice.stride, &further) &&
            further <= all - slice.begin - slice.count,
        kOutside);
}

namespace {

std::int64_t product(const std::vector<std::int64_t>& of, std::size_t from) {
  std::int64_t all = 1;
  for (std::size_t d = from; d < of.size(); ++d) all *= of[d];
  return all;
}

}  // namespace

// A run spans the last cut dimension and all dimensions after it. The runs of one slice step through the
// dimensions before it, as far as these are whole, and one further dimension.
std::vector<TensorSlice> block_of(const TensorSlice& tensor, const std::vector<std::int64_t>& starts,
                                  const std::vector<std::int64_t>& sizes, void* data) {
  const std::vector<std::int64_t>& shape = tensor.shape;
  check(starts.size() == shape.size() && sizes.size() == shape.size(), "a block has the tensor's dimensions");
  element_count(shape, tensor.name);
  std::size_t cut = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    check(starts[d] >= 0 && sizes[d] >= 0 && starts[d] <= shape[d] && sizes[d] <= shape[d] - starts[d],
          "a block lies inside its tensor");
    if (sizes[d] < shape[d]) cut = d;
  }
  if (product(sizes, 0) == 0) return {};
  TensorSlice part = tensor;
  part.data = data;
  part.count = product(sizes, cut);
  std::size_t outer = cut;  // dimensions before it need separate slices
  if (outer > 0) {
    --outer;
    part.rows = sizes[outer];
    part.stride = product(shape, cut);
    part.pitch = part.count;
    for (; outer > 0 && sizes[outer] == shape[outer]; --outer) part.rows *= sizes[outer - 1];
  }
  std::vector<TensorSlice> slices;
  std::vector<std::int64_t> at(outer, 0);
  for (bool more = true; more;) {
    part.begin = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      part.begin += (starts[d] + (d < outer ? at[d] : 0)) * product(shape, d + 1);
    }
    slices.push_back(part);
    part.data =
        static_cast<std::byte*>(part.data) + static_cast<std::size_t>(part.elements()) * size_of(part.dtype);
    more = false;
    for (std::size_t d = outer; d-- > 0 && !more;) {
      more = ++at[d] < sizes[d];
      if (!more) at[d] = 0;
    }
  }
  return slices;
}

}  // namespace octet
