#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/device/cpu.h"
#include "octet/ops/nf4.h"
#include "octet/weights/convert.h"
#include "octet/weights/safetensors.h"
#include "octet/weights/safetensors_header.h"

namespace octet::weights {
namespace {

constexpr std::string_view kState = ".quant_state.bitsandbytes__";
constexpr std::string_view kScaleInv = "_scale_inv";
/// Side of the squares with one scale in fine-grained FP8.
constexpr std::int64_t kSquare = 128;

/// Reports errors about a part of a quantised tensor.
struct About {
  const StoredTensor& tensor;
  [[noreturn]] void refuse(const std::string& what, const std::string& expected,
                           const std::string& found) const {
    throw Error({.what = what,
                 .expected = expected,
                 .found = found,
                 .where = tensor.file + ", tensor '" + tensor.name + "'",
                 .fix = "fetch the weights again, or take the unquantised model and set quantization_bit: 4",
                 .code = ExitCode::usage});
  }
};

DType torch_dtype(const std::string& name) {
  if (name == "bfloat16") return DType::bf16;
  return name == "float16" ? DType::f16 : DType::f32;
}

std::vector<std::int64_t> shape_of(const Json& state, const About& about) {
  std::vector<std::int64_t> shape;
  const auto found = state.find("shape");
  const bool list = found != state.end() && found->is_array() && !found->empty() &&
                    std::ranges::all_of(*found, [](const Json& n) { return n.is_number_unsigned(); });
  if (!list) {
    about.refuse("the shape of a quantised tensor cannot be read", "a list of whole numbers",
                 found == state.end() ? "none" : found->dump().substr(0, 80));
  }
  std::int64_t elements = 1;
  for (const Json& n : *found) {
    if (n.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) {
      about.refuse("the shape of a quantised tensor is impossible", "extents below 2^63", n.dump());
    }
    shape.push_back(n.get<std::int64_t>());
    if (__builtin_mul_overflow(elements, shape.back(), &elements)) {
      about.refuse("the shape of a quantised tensor is impossible", "less than 2^63 elements",
                   found->dump().substr(0, 80));
    }
  }
  return shape;
}

/// Requires that the value table of a tensor equals the NF4 table bit by bit, because codes are decoded with
/// that table.
void require_map(const About& about, std::span<const std::byte> bytes, const float* values, std::size_t count,
                 const std::string& which) {
  const bool same =
      bytes.size() == count * sizeof(float) && std::memcmp(bytes.data(), values, bytes.size()) == 0;
  if (!same) {
    about.refuse("the code table of a quantised tensor is not the table of " + which,
                 std::to_string(count) + " values, as in bitsandbytes", "others");
  }
}

void decode_nf4(const QuantisedTensor& q, std::int64_t begin, std::int64_t count, float* out) {
  // Decodes from the beginning of the block. Data in files may be unaligned.
  const std::int64_t block = begin / ops::kNf4Block, first = block * ops::kNf4Block;
  const std::int64_t last = ops::nf4_blocks(begin + count);
  const auto* codes = reinterpret_cast<const std::uint8_t*>(q.codes.bytes().data());
  std::vector<float> floats;
  ops::Nf4DecodeArgs args{.codes = codes, .begin = first, .count = begin + count - first};
  if (q.nested.tensor == nullptr) {
    floats.resize(static_cast<std::size_t>(last - block));
    std::memcpy(floats.data(), q.scales.bytes().data() + block * 4, floats.size() * sizeof(float));
    args.codes += first / 2;
    args.begin = 0;
    args.scales.plain = floats.data();
  } else {
    floats.resize(static_cast<std::size_t>(ops::nf4_scale_blocks(q.count)));
    std::memcpy(floats.data(), q.nested.bytes().data(), floats.size() * sizeof(float));
    args.scales = {.codes = reinterpret_cast<const std::uint8_t*>(q.scales.bytes().data()),
                   .nested = floats.data(),
                   .mean = &q.nested_offset};
  }
  std::vector<float> values;
  args.to = out;
  if (first != begin) {
    values.resize(static_cast<std::size_t>(args.count));
    args.to = values.data();
  }
  const std::unique_ptr<Device> host = make_cpu_device({.threads = cpu::op_threads()});
  const std::unique_ptr<Stream> stream = host->make_stream({.name = "decoding"});
  ops::nf4_decode(*stream, args);
  stream->synchronize();
  if (first != begin) std::copy_n(values.data() + (begin - first), count, out);
  require_mapped_files();
}

void decode_fp8(const QuantisedTensor& q, std::int64_t begin, std::int64_t count, float* out) {
  q.codes.file->read(q.header.name, begin, count, out);
  const std::int64_t cols = q.header.shape[1], squares = (cols + kSquare - 1) / kSquare;
  std::vector<float> scales(static_cast<std::size_t>(squares));
  std::int64_t row_of_scales = -1;
  for (std::int64_t i = begin; i < begin + count;) {
    const std::int64_t row = i / cols, column = i % cols;
    if (row / kSquare != row_of_scales) {
      row_of_scales = row / kSquare;
      q.scales.file->read(q.scales.tensor->name, row_of_scales * squares, squares, scales.data());
    }
    const std::int64_t n = std::min({kSquare - column % kSquare, cols - column, begin + count - i});
    const float scale = scales[static_cast<std::size_t>(column / kSquare)];
    for (std::int64_t k = 0; k < n; ++k) out[i - begin + k] *= scale;
    i += n;
  }
}

}  // namespace

void QuantisedTensors::add(const PlacedTensor& placed, const Find& find) {
  const std::string& name = placed.tensor->name;
  if (name.find(kState) != std::string::npos) add_nf4(placed, find);
  if (name.ends_with(kScaleInv)) add_fp8_blocks(placed, find);
}

const QuantisedTensor* QuantisedTensors::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

void QuantisedTensors::add_nf4(const PlacedTensor& placed, const Find& find) {
  const StoredTensor& described = *placed.tensor;
  const About about{described};
  const std::string name = described.name.substr(0, described.name.find(kState));
  const std::string kind = described.name.substr(described.name.find(kState) + kState.size());
  if (kind != "nf4") about.refuse("the 4-bit format of a quantised tensor is not supported", "nf4", kind);
  const auto text = placed.bytes();
  const Json state = parse_json({reinterpret_cast<const char*>(text.data()), text.size()},
                                described.file + ", tensor '" + described.name + "'");
  if (!state.is_object())
    about.refuse("the state of a quantised tensor is not an object", "{…}", "another value");
  const auto whole = [&](const char* key) {
    return json_int(state, key, 0, 0, INT64_MAX, described.file + ", tensor '" + described.name + "'");
  };
  if (whole("blocksize") != ops::kNf4Block) {
    about.refuse("the block size of a quantised tensor is not supported",
                 "blocksize: " + std::to_string(ops::kNf4Block), std::to_string(whole("blocksize")));
  }
  const auto part = [&](const std::string& suffix, bool needed) {
    const PlacedTensor found = find(name + suffix);
    if (found.tensor == nullptr && needed) {
      about.refuse("a quantised tensor lacks a part", "'" + name + suffix + "'", "no such tensor");
    }
    if (found.tensor != nullptr && !suffix.empty()) parts_.insert(found.tensor->name);
    return found;
  };
  parts_.insert(described.name);
  QuantisedTensor q{.format = QuantisedTensor::Format::nf4,
                    .header = {name, torch_dtype(json_string(state, "dtype", "float32", described.name)),
                               shape_of(state, about)},
                    .codes = part("", true),
                    .scales = part(".absmax", true),
                    .nested = part(".nested_absmax", false)};
  q.count = element_count(q.header.shape, name);
  const bool fits = std::ranges::all_of(q.header.shape, [](std::int64_t n) { return n > 0; });
  if (!fits) about.refuse("a quantised tensor is empty", "extents of at least 1", shape_text(q.header.shape));
  if (const PlacedTensor map = part(".quant_map", false); map.tensor != nullptr) {
    require_map({*map.tensor}, map.bytes(), ops::nf4_values(), 16, "NF4");
  }
  if (const PlacedTensor map = part(".nested_quant_map", false); map.tensor != nullptr) {
    require_map({*map.tensor}, map.bytes(), ops::nf4_scale_values(), 256, "scales in 8 bits");
  }
  const auto require_size = [&](const PlacedTensor& array, std::int64_t expected, DType dtype,
                                const std::string& what) {
    const auto found = static_cast<std::int64_t>(array.bytes().size());
    if (found != expected || (dtype != DType::u8 && array.tensor->dtype != dtype)) {
      About{*array.tensor}.refuse(
          what + " of a quantised tensor do not fit its shape " + shape_text(q.header.shape),
          std::to_string(expected) + " bytes", std::to_string(found) + " bytes");
    }
  };
  const std::int64_t blocks = ops::nf4_blocks(q.count);
  // Codes may have any storage dtype (bnb_4bit_quant_storage); only their bytes matter.
  require_size(q.codes, ops::nf4_code_bytes(q.count), DType::u8, "the codes");
  require_size(q.scales, q.nested.tensor == nullptr ? 4 * blocks : blocks,
               q.nested.tensor == nullptr ? DType::f32 : DType::u8, "the scales (absmax)");
  if (q.nested.tensor != nullptr) {
    require_size(q.nested, 4 * ops::nf4_scale_blocks(q.count), DType::f32, "the scales of scales");
    if (whole("nested_blocksize") != ops::kNf4ScaleBlock) {
      about.refuse("the block size of quantised scales is not supported",
                   "nested_blocksize: " + std::to_string(ops::kNf4ScaleBlock),
                   std::to_string(whole("nested_blocksize")));
    }
    const auto offset = state.find("nested_offset");
    if (offset == state.end() || !offset->is_number() || !std::isfinite(offset->get<double>())) {
      about.refuse("the mean of quantised scales is missing", "'nested_offset', a finite number",
                   offset == state.end() ? "none" : offset->dump());
    }
    q.nested_offset = static_cast<float>(offset->get<double>());
  }
  tensors_[name] = std::move(q);
}

void QuantisedTensors::add_fp8_blocks(const PlacedTensor& placed, const Find& find) {
  const StoredTensor& scales = *placed.tensor;
  const About about{scales};
  const std::string name = scales.name.substr(0, scales.name.size() - kScaleInv.size());
  const PlacedTensor placed_codes = find(name);
  const StoredTensor* codes = placed_codes.tensor;
  if (codes == nullptr || codes->dtype != DType::e4m3 || codes->shape.size() != 2) {
    about.refuse("FP8 scales have no tensor that they fit", "a matrix '" + name + "' in F8_E4M3",
                 codes == nullptr ? "no such tensor" : shape_text(codes->shape) + " of another dtype");
  }
  const auto squares = [](std::int64_t n) { return (n + kSquare - 1) / kSquare; };
  const std::vector<std::int64_t> expected{squares(codes->shape[0]), squares(codes->shape[1])};
  if (scales.shape != expected || !is_float(scales.dtype)) {
    about.refuse("scales do not fit their tensor of " + shape_text(codes->shape),
                 shape_text(expected) + ", one for each 128 x 128 elements", shape_text(scales.shape));
  }
  parts_.insert(scales.name);
  tensors_[name] = {.format = QuantisedTensor::Format::fp8_blocks,
                    .header = {name, DType::bf16, codes->shape},
                    .count = codes->count,
                    .codes = placed_codes,
                    .scales = placed};
}

void QuantisedTensors::read(const QuantisedTensor& tensor, std::int64_t begin, std::int64_t count,
                            float* out) {
  check(begin >= 0 && count >= 0 && begin <= tensor.count && count <= tensor.count - begin,
        "a range is inside its tensor");
  if (count == 0) return;
  if (tensor.format == QuantisedTensor::Format::nf4) return decode_nf4(tensor, begin, count, out);
  decode_fp8(tensor, begin, count, out);
}

void QuantisedTensors::read_stored(const TensorSlice& slice, const std::string& folder) const {
  const auto whole = [&](std::span<const std::byte> from) {
    check(slice.begin == 0 && from.size() == static_cast<std::size_t>(slice.count) * size_of(slice.dtype),
          "arrays of a quantised tensor are read whole");
    std::memcpy(slice.data, from.data(), from.size());
    require_mapped_files();
  };
  const QuantisedTensor* q = find(slice.name);
  if (q != nullptr && slice.dtype == DType::u8) return whole(q->codes.bytes());
  const std::size_t dot = slice.name.rfind('.');
  const std::string name = slice.name.substr(0, dot), array = slice.name.substr(dot);
  q = find(name);
  const bool nf4 = q != nullptr && q->format == QuantisedTensor::Format::nf4;
  const bool twice = nf4 && q->nested.tensor != nullptr;
  if (array == ".absmax" && nf4 && (slice.dtype == DType::u8) == twice) {
    return whole(q->scales.bytes());
  }
  if (array == ".nested_absmax" && twice) return whole(q->nested.bytes());
  if (array == ".nested_offset" && twice) {
    return whole(std::as_bytes(std::span(&q->nested_offset, 1)));
  }
  throw Error(
      {.what = "a tensor is quantised differently from the other tensors of the folder",
       .expected = "NF4, with double quantisation for all tensors or for none",
       .found = nf4 ? (twice ? "double quantisation" : "scales in fp32") : "no codes",
       .where = folder + ", tensor '" + name + "'",
       .fix = "save the quantised model again, or take the unquantised one and set quantization_bit: 4",
       .code = ExitCode::usage});
}

}  // namespace octet::weights
