#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/weights/convert.h"
#include "octet/weights/expert_stacks.h"
#include "octet/weights/safetensors.h"
#include "octet/weights/safetensors_header.h"

namespace octet::weights {
namespace {

[[noreturn]] void refuse_experts(const StoredTensor& tensor, const std::string& what,
                                 const std::string& expected, const std::string& found) {
  throw Error({.what = what,
               .expected = expected,
               .found = found,
               .where = tensor.file + ", tensor '" + tensor.name + "'",
               .fix = "fetch all files of the weights again",
               .code = ExitCode::usage});
}

}  // namespace

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
      if (file_by_tensor_.count(tensor.name) == 0 || is_part(tensor.name)) continue;
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

void WeightFolder::find_quantised() {
  const auto place = [this](const std::string& name) {
    const StoredTensor* tensor = find(name);
    return tensor == nullptr ? PlacedTensor() : PlacedTensor{tensor, &file_of(name)};
  };
  for (const SafetensorsFile& file : files_) {
    for (const StoredTensor& tensor : file.tensors()) {
      if (file_by_tensor_.contains(tensor.name)) quantised_.add({&tensor, &file}, place);
    }
  }
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
  QuantisedTensors::read(*tensor, begin, count, out);
}

// Stacked experts (octet/weights/expert_stacks.h).

void WeightFolder::find_expert_parts() {
  std::vector<std::string> biases, plain;
  for (const SafetensorsFile& file : files_) {
    for (const StoredTensor& tensor : file.tensors()) {
      const bool listed = file_by_tensor_.contains(tensor.name);
      if (listed && tensor.name.ends_with(".experts.gate_up_proj_bias")) biases.push_back(tensor.name);
      if (listed && tensor.name.ends_with(".experts.down_proj_bias")) biases.push_back(tensor.name);
      if (listed && tensor.name.ends_with(".experts.gate_up_proj") && find(tensor.name + "_bias") == nullptr)
        plain.push_back(tensor.name);
    }
  }
  for (const std::string& bias : biases) find_expert_parts(bias);
  for (const std::string& gate_up : plain) find_plain_experts(gate_up);
}

void WeightFolder::add_expert_part(const std::string& name, const StoredTensor& from, DType dtype,
                                   ExpertPart part) {
  if (file_by_tensor_.contains(name)) {
    throw Error({.what = "tensor '" + name + "' occurs twice",
                 .expected = "experts as single tensors, or stacked",
                 .found = "also a part of '" + from.name + "'",
                 .where = from.file,
                 .fix = "remove one of the two from the file",
                 .code = ExitCode::usage});
  }
  OfExpert one{.tensor = from, .part = std::move(part)};
  one.tensor.name = name;
  one.tensor.dtype = dtype;
  one.tensor.shape = {one.part.rows};
  if (one.part.form != ExpertPart::Form::bias) one.tensor.shape.push_back(one.part.cols);
  one.tensor.count = one.part.rows * one.part.cols;
  of_experts_in_order_.push_back(name);
  of_experts_.emplace(name, std::move(one));
}

void WeightFolder::find_plain_experts(const std::string& gate_up) {
  const std::string front = gate_up.substr(0, gate_up.rfind('.') + 1);
  const StoredTensor* const first = find(gate_up);
  const StoredTensor* const down = find(front + "down_proj");
  if (down == nullptr || !is_float(first->dtype) || !is_float(down->dtype)) return;
  const ExpertLayout layout = layout_of_stacks(first->shape, down->shape);
  if (layout == ExpertLayout::separate) return;
  expert_layout_ = layout;
  if (layout == ExpertLayout::outputs_first) return;
  const std::int64_t experts = first->shape[0], hidden = first->shape[1], width = down->shape[1];
  parts_.insert({first->name, down->name});
  for (std::int64_t e = 0; e < experts; ++e) {
    const auto add = [&](const char* module, const StoredTensor& from, ExpertPart part) {
      part.stacked = from.name;
      part.expert = e;
      add_expert_part(front + std::to_string(e) + "." + module + ".weight", from, from.dtype, part);
    };
    add("gate_proj", *first, {.rows = width, .cols = hidden, .columns = 2 * width});
    add("up_proj", *first, {.first = width, .rows = width, .cols = hidden, .columns = 2 * width});
    add("down_proj", *down, {.rows = hidden, .cols = width, .columns = hidden});
  }
}

void WeightFolder::find_expert_parts(const std::string& bias) {
  const StoredTensor& biases = *find(bias);
  const std::string name = bias.substr(0, bias.rfind("_bias"));
  const bool joined = name.ends_with("gate_up_proj");
  if (biases.shape.size() != 2 || biases.count == 0 || !is_float(biases.dtype) ||
      (joined && biases.shape[1] % 2 != 0)) {
    refuse_experts(biases, "the biases of experts cannot be read",
                   joined ? "[experts, 2 * width]" : "[experts, outputs]", shape_text(biases.shape));
  }
  expert_layout_ = ExpertLayout::interleaved;
  const std::int64_t experts = biases.shape[0], outputs = biases.shape[1];
  const StoredTensor* matrix = find(name);
  const StoredTensor* codes = find(name + "_blocks");
  const StoredTensor* scales = find(name + "_scales");
  const std::string both = "'" + name + "', or '" + name + "_blocks' and '" + name + "_scales' (MXFP4)";
  if (matrix != nullptr && codes != nullptr)
    refuse_experts(*codes, "the matrices of experts occur twice", both, "'" + name + "' and its codes");
  if (matrix == nullptr && (codes == nullptr || scales == nullptr)) {
    refuse_experts(biases, "the matrices of experts are incomplete", both,
                   codes != nullptr    ? "no '" + name + "_scales'"
                   : scales != nullptr ? "no '" + name + "_blocks'"
                                       : "neither");
  }
  std::int64_t inputs = 0;
  if (matrix != nullptr) {
    if (matrix->shape.size() != 3 || matrix->shape[0] != experts || matrix->shape[2] != outputs ||
        !is_float(matrix->dtype)) {
      refuse_experts(*matrix, "the matrices of experts do not fit their biases " + shape_text(biases.shape),
                     "[" + std::to_string(experts) + ", inputs, " + std::to_string(outputs) + "]",
                     shape_text(matrix->shape));
    }
    inputs = matrix->shape[1];
  } else {
    const std::vector<std::int64_t> groups = codes->shape.size() == 4
                                                 ? std::vector(codes->shape.begin(), codes->shape.end() - 1)
                                                 : std::vector<std::int64_t>();
    if (groups.empty() || groups[0] != experts || groups[1] != outputs || codes->shape[3] != 16 ||
        codes->dtype != DType::u8) {
      refuse_experts(*codes, "the MXFP4 codes of experts do not fit their biases " + shape_text(biases.shape),
                     "U8 [" + std::to_string(experts) + ", " + std::to_string(outputs) + ", inputs / 32, 16]",
                     shape_text(codes->shape));
    }
    if (scales->shape != groups || scales->dtype != DType::u8) {
      refuse_experts(*scales,
                     "the MXFP4 scales of experts do not fit their codes " + shape_text(codes->shape),
                     "U8 " + shape_text(groups), shape_text(scales->shape));
    }
    inputs = 32 * groups[2];
  }
  const StoredTensor& stacked = matrix != nullptr ? *matrix : *codes;
  parts_.insert({bias, stacked.name});
  if (matrix == nullptr) parts_.insert(scales->name);
  const std::string front = name.substr(0, name.rfind('.') + 1);
  const std::vector<std::string> modules =
      joined ? std::vector<std::string>{"gate_proj", "up_proj"} : std::vector<std::string>{"down_proj"};
  const std::int64_t step = std::ssize(modules);
  for (std::int64_t e = 0; e < experts; ++e) {
    for (std::int64_t m = 0; m < step; ++m) {
      const std::string module = front + std::to_string(e) + "." + modules[static_cast<std::size_t>(m)];
      ExpertPart part{.form = matrix != nullptr ? ExpertPart::Form::matrix : ExpertPart::Form::mxfp4,
                      .stacked = stacked.name,
                      .scales = matrix != nullptr ? "" : scales->name,
                      .expert = e,
                      .first = m,
                      .step = step,
                      .rows = outputs / step,
                      .cols = inputs,
                      .columns = outputs};
      add_expert_part(module + ".weight", stacked, matrix != nullptr ? matrix->dtype : DType::bf16, part);
      part.form = ExpertPart::Form::bias;
      part.stacked = bias;
      part.cols = 1;
      add_expert_part(module + ".bias", biases, biases.dtype, part);
    }
  }
}

}  // namespace octet::weights
