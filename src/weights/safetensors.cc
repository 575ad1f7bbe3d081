#include "octet/weights/safetensors.h"

#include <sys/mman.h>
#include <unistd.h>

#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "octet/weights/convert.h"
#include "octet/weights/safetensors_header.h"

namespace octet::weights {
void no_such_tensor(const std::string& name, const std::string& where,
                    const std::vector<std::string>& names) {
  const std::string near = nearest_name(name, names);
  throw Error({.what = "tensor '" + name + "' is missing",
               .found = std::to_string(names.size()) + " other tensors" +
                        (near.empty() ? "" : ", the nearest is '" + near + "'"),
               .where = where,
               .fix = "check that the weights belong to the config.json in the same folder",
               .code = ExitCode::usage});
}

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

std::map<std::string, std::vector<std::string>> SafetensorsFile::split_experts(
    const std::set<std::string>& except) {
  std::map<std::string, std::vector<std::string>> split;
  std::vector<StoredTensor> all;
  for (StoredTensor& tensor : tensors_) {
    std::vector<StoredTensor> parts =
        except.contains(tensor.name) ? std::vector<StoredTensor>() : experts_in(tensor);
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

}  // namespace octet::weights
