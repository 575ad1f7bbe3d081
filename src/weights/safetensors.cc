#include "octet/weights/safetensors.h"

#include <sys/mman.h>
#include <unistd.h>

#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/weights/convert.h"
#include "octet/weights/safetensors_header.h"

namespace octet::weights {
namespace {

[[noreturn]] void no_such_tensor(const std::string& name, const std::string& where,
                                 const std::vector<std::string>& names) {
  const std::string near = nearest_name(name, names);
  throw Error({.what = "tensor '" + name + "' is missing",
               .found = std::to_string(names.size()) + " other tensors" +
                        (near.empty() ? "" : ", the nearest is '" + near + "'"),
               .where = where,
               .fix = "check that the weights belong to the config.json in the same folder",
               .code = ExitCode::usage});
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  SafetensorsHeader header = parse_safetensors(file_.text(), path);
  tensors_ = std::move(header.tensors);
  metadata_ = std::move(header.metadata);
  for (std::size_t i = 0; i < tensors_.size(); ++i) by_name_[tensors_[i].name] = i;
}

namespace {

/// The end of a stacked tensor's name, and the matrices of one expert in it, in order.
struct StackedExperts {
  std::string_view end;
  std::vector<std::string_view> parts;
};

const std::vector<StackedExperts>& stacked_experts() {
  static const std::vector<StackedExperts> table = {{".experts.gate_up_proj", {"gate_proj", "up_proj"}},
                                                    {".experts.down_proj", {"down_proj"}}};
  return table;
}

/// Returns the matrices in a tensor of stacked experts, or none if it is another tensor.
std::vector<StoredTensor> experts_in(const StoredTensor& tensor) {
  std::vector<StoredTensor> found;
  for (const StackedExperts& stacked : stacked_experts()) {
    const auto parts = static_cast<std::int64_t>(stacked.parts.size());
    if (!tensor.name.ends_with(stacked.end) || tensor.shape.size() != 3 || tensor.count == 0 ||
        tensor.shape[1] % parts != 0)
      continue;
    StoredTensor one = tensor;
    one.shape = {tensor.shape[1] / parts, tensor.shape[2]};
    one.count = one.shape[0] * one.shape[1];
    const std::string front = tensor.name.substr(0, tensor.name.rfind('.') + 1);
    for (std::int64_t e = 0; e < tensor.shape[0]; ++e) {
      for (const std::string_view part : stacked.parts) {
        one.name = front + std::to_string(e) + "." + std::string(part) + ".weight";
        found.push_back(one);
        one.offset += one.count * static_cast<std::int64_t>(size_of(tensor.dtype));
      }
    }
  }
  return found;
}

}  // namespace

std::map<std::string, std::vector<std::string>> SafetensorsFile::split_experts() {
  std::map<std::string, std::vector<std::string>> split;
  std::vector<StoredTensor> all;
  for (StoredTensor& tensor : tensors_) {
    std::vector<StoredTensor> parts = experts_in(tensor);
    for (StoredTensor& part : parts) {
      if (find(part.name) != nullptr) {
        throw Error({.what = "tensor '" + part.name + "' occurs twice",
                     .expected = "experts as single tensors, or stacked",
                     .found = "also a part of '" + tensor.name + "'",
                     .where = path(),
                     .fix = "remove one of the two from the file",
                     .code = ExitCode::usage});
      }
      split[tensor.name].push_back(part.name);
      all.push_back(std::move(part));
    }
    if (parts.empty()) all.push_back(std::move(tensor));
  }
  tensors_ = std::move(all);
  by_name_.clear();
  for (std::size_t i = 0; i < tensors_.size(); ++i) by_name_[tensors_[i].name] = i;
  return split;
}

const StoredTensor* SafetensorsFile::find(const std::string& name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

const StoredTensor& SafetensorsFile::at(const std::string& name) const {
  if (const StoredTensor* tensor = find(name)) return *tensor;
  std::vector<std::string> names;
  for (const auto& tensor : tensors_) names.push_back(tensor.name);
  no_such_tensor(name, path(), names);
}

std::span<const std::byte> SafetensorsFile::bytes(const StoredTensor& tensor) const {
  return file_.bytes().subspan(static_cast<std::size_t>(tensor.offset),
                               static_cast<std::size_t>(tensor.count) * size_of(tensor.dtype));
}

namespace {

// Returns the first byte of elements [begin, begin + count), after a check of range and kind of dtype.
const std::byte* range(const SafetensorsFile& file, const StoredTensor& tensor, std::int64_t begin,
                       std::int64_t count, bool as_float) {
  const std::string where = file.path() + ", tensor '" + tensor.name + "'";
  if (begin < 0 || count < 0 || begin > tensor.count || count > tensor.count - begin) {
    throw Error({.what = "a range is outside its tensor",
                 .expected = "within [0, " + std::to_string(tensor.count) + ")",
                 .found = std::to_string(count) + " elements from " + std::to_string(begin),
                 .where = where});
  }
  if (is_float(tensor.dtype) != as_float) {
    throw Error(
        {.what = "dtype of a tensor cannot be used here",
         .expected = as_float ? "F32, F16, BF16, F64, F8_E4M3 or F8_E5M2" : "an integer dtype or BOOL",
         .found = std::string(safetensors_name(tensor.dtype)),
         .where = where,
         .fix = as_float ? "convert weights that are quantised to integers to a float dtype first"
                         : "write the tensor in one of these dtypes",
         .code = ExitCode::usage});
  }
  return file.bytes(tensor).data() + static_cast<std::size_t>(begin) * size_of(tensor.dtype);
}

// Drops the pages inside a run of a mapped file from this process. They stay in the page cache for the next
// reader. Otherwise the resident memory of a process that reads a model in pieces would grow to the file
// size.
void leave_pages(const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kWorthIt = std::size_t{1} << 20;
  if (bytes < kWorthIt) return;
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<std::uintptr_t>(from) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(from) + bytes) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace

void SafetensorsFile::read(const std::string& name, std::int64_t begin, std::int64_t count,
                           float* out) const {
  const StoredTensor& tensor = at(name);
  const std::byte* const from = range(*this, tensor, begin, count, true);
  to_float(tensor.dtype, from, count, out);
  require_mapped_files();
  leave_pages(from, static_cast<std::size_t>(count) * size_of(tensor.dtype));
}

void SafetensorsFile::leave(const std::string& name, std::int64_t begin, std::int64_t count) const {
  const StoredTensor& tensor = at(name);
  check(begin >= 0 && count >= 0 && begin <= tensor.count - count, "elements are inside their tensor");
  const std::size_t element = size_of(tensor.dtype);
  leave_pages(bytes(tensor).data() + static_cast<std::size_t>(begin) * element,
              static_cast<std::size_t>(count) * element);
}

void SafetensorsFile::read(const std::string& name, std::int64_t begin, std::int64_t count, Bf16* out) const {
  const StoredTensor& tensor = at(name);
  to_bf16(tensor.dtype, range(*this, tensor, begin, count, true), count, out);
  require_mapped_files();
}

void SafetensorsFile::read(const std::string& name, std::int64_t begin, std::int64_t count,
                           std::int64_t* out) const {
  const StoredTensor& tensor = at(name);
  to_int64(tensor.dtype, range(*this, tensor, begin, count, false), count, out);
  require_mapped_files();
}

void WeightFolder::read(const TensorSlice& slice) const {
  check(slice.dtype == DType::f32, "weights are read as f32");
  expect(slice.name, slice.shape);
  check_inside(slice);
  each_run(slice, [&](std::int64_t begin, std::int64_t count, void* data) {
    read(slice.name, begin, count, static_cast<float*>(data));
  });
  // Drops the pages of all runs together, because each run may be too short for leave_pages().
  if (!slice.one_run() && quantised(slice.name) == nullptr)
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
  split_experts();
  find_quantised();
}

void WeightFolder::split_experts() {
  for (SafetensorsFile& file : files_) {
    for (const auto& [stacked, parts] : file.split_experts()) {
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
  return all;
}

const StoredTensor* WeightFolder::find(const std::string& name) const {
  const auto it = file_by_tensor_.find(name);
  return it == file_by_tensor_.end() ? nullptr : files_[it->second].find(name);
}

const StoredTensor& WeightFolder::expect(const std::string& name,
                                         const std::vector<std::int64_t>& shape) const {
  const StoredTensor& tensor = file_of(name).at(name);
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
  if (left_out > 0) {
    log::warn(folder_ + ": " + std::to_string(left_out) +
              " tensors are not part of the language model and are left out, as '" + example + "'");
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
  no_such_tensor(name, folder_, names);
}

}  // namespace octet::weights
