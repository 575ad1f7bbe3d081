#include <algorithm>
#include <cmath>
#include <cstring>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/device/cpu.h"
#include "octet/ops/nf4.h"
#include "octet/weights/convert.h"
#include "octet/weights/safetensors.h"
#include "octet/weights/safetensors_header.h"

namespace octet::weights {

void WeightFolder::read(const TensorSlice& slice) const {
  check(slice.dtype == DType::f32, "weights are read as f32");
  expect(slice.name, slice.shape);
  check_inside(slice);
  each_run(slice, [&](std::int64_t begin, std::int64_t count, void* data) {
    read(slice.name, begin, count, static_cast<float*>(data));
  });
  // Drops the pages of all runs together, because each run may be too short for leave_pages().
  if (!slice.one_run() && quantised(slice.name) == nullptr && !of_experts_.contains(slice.name))
    file_of(slice.name).leave(slice.name, slice.begin, (slice.rows - 1) * slice.stride + slice.count);
}

bool WeightFolder::exists(const std::string& folder, const std::string& stem) {
  return path_exists(folder + "/" + stem + ".safetensors") ||
         path_exists(folder + "/" + stem + ".safetensors.index.json");
}

WeightFolder::WeightFolder(const std::string& folder, const std::string& stem) : folder_(folder) {
  const std::string whole = folder + "/" + stem + ".safetensors";
  if (path_exists(whole)) {
    files_.emplace_back(whole);
    for (const auto& tensor : files_[0].tensors()) file_by_tensor_[tensor.name] = 0;
    find_expert_parts();
    split_experts();
    find_quantised();
    return;
  }
  const std::string index = whole + ".index.json";
  if (!path_exists(index)) {
    throw Error({.what = "no weights found",
                 .expected = stem + ".safetensors or " + stem + ".safetensors.index.json",
                 .where = folder,
                 .fix = "check the path; weights in other formats (pytorch_model.bin) must be converted to "
                        "safetensors first",
                 .code = ExitCode::usage});
  }
  const auto weight_map = parse_weight_map(read_file(index), index);
  std::unordered_map<std::string, std::size_t> file_numbers;
  for (const auto& [tensor, file] : weight_map) {
    if (file_numbers.emplace(file, files_.size()).second) files_.emplace_back(folder + "/" + file);
  }
  std::unordered_map<std::string, std::size_t> stands_in;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    for (const auto& tensor : files_[i].tensors()) {
      const auto [it, fresh] = stands_in.emplace(tensor.name, i);
      if (!fresh) {
        throw Error({.what = "tensor '" + tensor.name + "' is in two shards",
                     .found = files_[it->second].path() + " and " + files_[i].path(),
                     .where = index,
                     .fix = "remove shards that belong to other weights",
                     .code = ExitCode::usage});
      }
    }
  }
  for (const auto& [tensor, file] : weight_map) {
    const std::size_t expected = file_numbers.at(file);
    const auto it = stands_in.find(tensor);
    if (it == stands_in.end() || it->second != expected) {
      throw Error({.what = "tensor '" + tensor + "' is not in the shard that the index names",
                   .expected = file,
                   .found = it == stands_in.end() ? "in no shard" : "in " + files_[it->second].path(),
                   .where = index,
                   .fix = "fetch or write the weights again",
                   .code = ExitCode::usage});
    }
    file_by_tensor_[tensor] = expected;
  }
  for (const auto& [tensor, file] : stands_in) {
    if (file_by_tensor_.count(tensor) == 0)
      log::warn(files_[file].path() + ": tensor '" + tensor + "' is not listed in " + index +
                " and is ignored");
  }
  find_expert_parts();
  split_experts();
  find_quantised();
}

void WeightFolder::split_experts() {
  for (SafetensorsFile& file : files_) {
    for (const auto& [stacked, parts] : file.split_experts(parts_)) {
      const auto it = file_by_tensor_.find(stacked);
      if (it == file_by_tensor_.end()) continue;  // not in the index
      const std::size_t number = it->second;
      file_by_tensor_.erase(it);
      for (const std::string& part : parts) file_by_tensor_[part] = number;
    }
  }
}

std::vector<StoredTensor> WeightFolder::tensors() const {
  std::vector<StoredTensor> all;
  for (const auto& file : files_) {
    for (const auto& tensor : file.tensors()) {
      if (file_by_tensor_.count(tensor.name) == 0 || parts_.contains(tensor.name)) continue;
      all.push_back(tensor);
      if (const QuantisedTensor* quantised = this->quantised(tensor.name)) {
        all.back().dtype = quantised->header.dtype;
        all.back().shape = quantised->header.shape;
        all.back().count = quantised->count;
      }
    }
  }
  for (const std::string& name : of_experts_in_order_) all.push_back(of_experts_.at(name).tensor);
  return all;
}

const StoredTensor* WeightFolder::find(const std::string& name) const {
  if (const auto part = of_experts_.find(name); part != of_experts_.end()) return &part->second.tensor;
  const auto it = file_by_tensor_.find(name);
  return it == file_by_tensor_.end() ? nullptr : files_[it->second].find(name);
}

const StoredTensor& WeightFolder::expect(const std::string& name,
                                         const std::vector<std::int64_t>& shape) const {
  const StoredTensor* const part = of_experts_.contains(name) ? find(name) : nullptr;
  const StoredTensor& tensor = part != nullptr ? *part : file_of(name).at(name);
  const QuantisedTensor* quantised = this->quantised(name);
  const std::vector<std::int64_t>& found = quantised == nullptr ? tensor.shape : quantised->header.shape;
  if (found != shape) {
    throw Error({.what = "tensor '" + name + "' has the wrong shape",
                 .expected = shape_text(shape),
                 .found = shape_text(found),
                 .where = tensor.file,
                 .fix = "check that the weights belong to the config.json in the same folder",
                 .code = ExitCode::usage});
  }
  return tensor;
}

void WeightFolder::require_used(const std::set<std::string>& used, const std::string& prefix,
                                const std::vector<std::string>& unread) const {
  std::size_t left_out = 0;
  std::string example;
  for (const StoredTensor& tensor : tensors()) {
    const std::string& name = tensor.name;
    if (used.contains(name) || name.ends_with("lm_head.weight") || name.ends_with("rotary_emb.inv_freq"))
      continue;
    const bool known =
        std::ranges::any_of(unread, [&](const std::string& begin) { return name.starts_with(begin); });
    if (!known && (name.starts_with(prefix) || name.starts_with("lm_head."))) {
      throw Error({.what = "tensor '" + name + "' has no place in the model that config.json describes",
                   .found = shape_text(tensor.shape),
                   .where = tensor.file,
                   .fix = "check that the weights belong to the config.json in the same folder, and check "
                          "its keys for layers and biases",
                   .code = ExitCode::usage});
    }
    if (left_out++ == 0) example = name;
  }
  if (left_out == 0) return;
  const std::string line = folder_ + ": " + std::to_string(left_out) +
                           " tensors are not part of the language model and are not read, as '" + example +
                           "'";
  // Only a multimodal model has another prefix. Its other parts are expected.
  if (prefix == "model.") return log::warn(line);
  log::info(line);
}

void WeightFolder::read_bytes(const std::string& name,
                              const std::function<void(std::span<const std::byte>)>& take) const {
  constexpr std::int64_t kPiece = 1 << 20;  // elements
  const SafetensorsFile& file = file_of(name);
  const StoredTensor& tensor = file.at(name);
  const std::size_t element = size_of(tensor.dtype);
  for (std::int64_t at = 0; at < tensor.count; at += kPiece) {
    const std::int64_t n = std::min(kPiece, tensor.count - at);
    take(file.bytes(tensor).subspan(static_cast<std::size_t>(at) * element,
                                    static_cast<std::size_t>(n) * element));
    require_mapped_files();
    file.leave(name, at, n);
  }
}

std::string WeightFolder::fingerprint() const {
  constexpr std::size_t kPart = 64 << 10;
  std::map<std::string, std::string> parts;  // sorted, so that the order does not depend on the files
  for (const SafetensorsFile& file : files_) {
    for (const StoredTensor& tensor : file.tensors()) {
      const auto bytes = file.bytes(tensor);
      const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      const std::string described = std::string(name_of(tensor.dtype)) + shape_text(tensor.shape);
      const std::vector<std::string_view> hashed{described, all.substr(0, kPart),
                                                 all.substr(all.size() - std::min(kPart, all.size()))};
      parts[tensor.name] = hash128_hex(std::span(hashed));
    }
  }
  std::string text;
  for (const auto& [name, hash] : parts) text += name + " " + hash + "\n";
  return hash128_hex(text);
}

const SafetensorsFile& WeightFolder::file_of(const std::string& name) const {
  const auto it = file_by_tensor_.find(name);
  if (it != file_by_tensor_.end()) return files_[it->second];
  std::vector<std::string> names;
  for (const auto& [known, file] : file_by_tensor_) names.push_back(known);
  for (const auto& [known, part] : of_experts_) names.push_back(known);
  no_such_tensor(name, folder_, names);
}

// Quantised tensors of a folder. Their parts are found and checked when the folder is opened, and decoded
// when they are read.

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

}  // namespace

void WeightFolder::find_quantised() {
  for (const SafetensorsFile& file : files_) {
    for (const StoredTensor& tensor : file.tensors()) {
      if (!file_by_tensor_.contains(tensor.name)) continue;
      if (tensor.name.find(kState) != std::string::npos) find_nf4(tensor);
      if (tensor.name.ends_with(kScaleInv)) find_fp8_blocks(tensor);
    }
  }
}

const QuantisedTensor* WeightFolder::quantised(const std::string& name) const {
  const auto found = quantised_.find(name);
  return found == quantised_.end() ? nullptr : &found->second;
}

void WeightFolder::find_nf4(const StoredTensor& described) {
  const About about{described};
  const std::string name = described.name.substr(0, described.name.find(kState));
  const std::string kind = described.name.substr(described.name.find(kState) + kState.size());
  if (kind != "nf4") about.refuse("the 4-bit format of a quantised tensor is not supported", "nf4", kind);
  const auto text = bytes(described);
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
    const StoredTensor* found = find(name + suffix);
    if (found == nullptr && needed) {
      about.refuse("a quantised tensor lacks a part", "'" + name + suffix + "'", "no such tensor");
    }
    if (found != nullptr && !suffix.empty()) parts_.insert(found->name);
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
  if (const StoredTensor* map = part(".quant_map", false)) {
    require_map({*map}, bytes(*map), ops::nf4_values(), 16, "NF4");
  }
  if (const StoredTensor* map = part(".nested_quant_map", false)) {
    require_map({*map}, bytes(*map), ops::nf4_scale_values(), 256, "scales in 8 bits");
  }
  const auto require_size = [&](const StoredTensor& array, std::int64_t expected, DType dtype,
                                const std::string& what) {
    const auto found = static_cast<std::int64_t>(bytes(array).size());
    if (found != expected || (dtype != DType::u8 && array.dtype != dtype)) {
      About{array}.refuse(what + " of a quantised tensor do not fit its shape " + shape_text(q.header.shape),
                          std::to_string(expected) + " bytes", std::to_string(found) + " bytes");
    }
  };
  const std::int64_t blocks = ops::nf4_blocks(q.count);
  // Codes may have any storage dtype (bnb_4bit_quant_storage); only their bytes matter.
  require_size(*q.codes, ops::nf4_code_bytes(q.count), DType::u8, "the codes");
  require_size(*q.scales, q.nested == nullptr ? 4 * blocks : blocks,
               q.nested == nullptr ? DType::f32 : DType::u8, "the scales (absmax)");
  if (q.nested != nullptr) {
    require_size(*q.nested, 4 * ops::nf4_scale_blocks(q.count), DType::f32, "the scales of scales");
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
  quantised_[name] = std::move(q);
}

void WeightFolder::find_fp8_blocks(const StoredTensor& scales) {
  const About about{scales};
  const std::string name = scales.name.substr(0, scales.name.size() - kScaleInv.size());
  const StoredTensor* codes = find(name);
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
  quantised_[name] = {.format = QuantisedTensor::Format::fp8_blocks,
                      .header = {name, DType::bf16, codes->shape},
                      .count = codes->count,
                      .codes = codes,
                      .scales = &scales};
}

void WeightFolder::read(const std::string& name, std::int64_t begin, std::int64_t count, float* out) const {
  if (const auto found = of_experts_.find(name); found != of_experts_.end()) {
    const ExpertPart& part = found->second.part;
    const StoredTensor& stacked = file_of(part.stacked).at(part.stacked);
    const bool scaled = part.form == ExpertPart::Form::mxfp4;
    read_part(part, stacked.dtype, bytes(stacked),
              scaled ? bytes(file_of(part.scales).at(part.scales)) : std::span<const std::byte>(), begin,
              count, out);
    return require_mapped_files();
  }
  const QuantisedTensor* tensor = quantised(name);
  if (tensor == nullptr) return file_of(name).read(name, begin, count, out);
  check(begin >= 0 && count >= 0 && begin <= tensor->count && count <= tensor->count - begin,
        "a range is inside its tensor");
  if (count == 0) return;
  if (tensor->format == QuantisedTensor::Format::nf4) return decode_nf4(*tensor, begin, count, out);
  decode_fp8(*tensor, begin, count, out);
}

void WeightFolder::decode_nf4(const QuantisedTensor& q, std::int64_t begin, std::int64_t count,
                              float* out) const {
  // Decodes from the beginning of the block. Data in files may be unaligned.
  const std::int64_t block = begin / ops::kNf4Block, first = block * ops::kNf4Block;
  const std::int64_t last = ops::nf4_blocks(begin + count);
  const auto* codes = reinterpret_cast<const std::uint8_t*>(bytes(*q.codes).data());
  std::vector<float> floats;
  ops::Nf4DecodeArgs args{.codes = codes, .begin = first, .count = begin + count - first};
  if (q.nested == nullptr) {
    floats.resize(static_cast<std::size_t>(last - block));
    std::memcpy(floats.data(), bytes(*q.scales).data() + block * 4, floats.size() * sizeof(float));
    args.codes += first / 2;
    args.begin = 0;
    args.scales.plain = floats.data();
  } else {
    floats.resize(static_cast<std::size_t>(ops::nf4_scale_blocks(q.count)));
    std::memcpy(floats.data(), bytes(*q.nested).data(), floats.size() * sizeof(float));
    args.scales = {.codes = reinterpret_cast<const std::uint8_t*>(bytes(*q.scales).data()),
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

void WeightFolder::decode_fp8(const QuantisedTensor& q, std::int64_t begin, std::int64_t count,
                              float* out) const {
  file_of(q.header.name).read(q.header.name, begin, count, out);
  const std::int64_t cols = q.header.shape[1], squares = (cols + kSquare - 1) / kSquare;
  std::vector<float> scales(static_cast<std::size_t>(squares));
  std::int64_t row_of_scales = -1;
  for (std::int64_t i = begin; i < begin + count;) {
    const std::int64_t row = i / cols, column = i % cols;
    if (row / kSquare != row_of_scales) {
      row_of_scales = row / kSquare;
      file_of(q.scales->name).read(q.scales->name, row_of_scales * squares, squares, scales.data());
    }
    const std::int64_t n = std::min({kSquare - column % kSquare, cols - column, begin + count - i});
    const float scale = scales[static_cast<std::size_t>(column / kSquare)];
    for (std::int64_t k = 0; k < n; ++k) out[i - begin + k] *= scale;
    i += n;
  }
}

void WeightFolder::read_stored(const TensorSlice& slice) const {
  const auto whole = [&](std::span<const std::byte> from) {
    check(slice.begin == 0 && from.size() == static_cast<std::size_t>(slice.count) * size_of(slice.dtype),
          "arrays of a quantised tensor are read whole");
    std::memcpy(slice.data, from.data(), from.size());
    require_mapped_files();
  };
  const QuantisedTensor* q = quantised(slice.name);
  if (q != nullptr && slice.dtype == DType::u8) return whole(bytes(*q->codes));
  const std::size_t dot = slice.name.rfind('.');
  const std::string name = slice.name.substr(0, dot), array = slice.name.substr(dot);
  q = quantised(name);
  const bool nf4 = q != nullptr && q->format == QuantisedTensor::Format::nf4;
  const StoredTensor* scales = nf4 ? q->scales : nullptr;
  const bool twice = nf4 && q->nested != nullptr;
  if (array == ".absmax" && scales != nullptr && (slice.dtype == DType::u8) == twice) {
    return whole(bytes(*scales));
  }
  if (array == ".nested_absmax" && twice) return whole(bytes(*q->nested));
  if (array == ".nested_offset" && twice) {
    return whole(std::as_bytes(std::span(&q->nested_offset, 1)));
  }
  throw Error(
      {.what = "a tensor is quantised differently from the other tensors of the folder",
       .expected = "NF4, with double quantisation for all tensors or for none",
       .found = nf4 ? (twice ? "double quantisation" : "scales in fp32") : "no codes",
       .where = folder_ + ", tensor '" + name + "'",
       .fix = "save the quantised model again, or take the unquantised one and set quantization_bit: 4",
       .code = ExitCode::usage});
}

}  // namespace octet::weights
