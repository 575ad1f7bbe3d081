#include "octet/weights/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <unordered_map>
#include <unordered_set>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/weights/convert.h"
#include "octet/weights/safetensors_header.h"

namespace octet::weights {
namespace {

constexpr std::int64_t kConverted = 1 << 16;  ///< elements converted at a time

}  // namespace

std::map<std::string, std::string> default_metadata() {
  return {{"format", "pt"}};
}

namespace {

/// The header of a file of these tensors, and the bytes of their values.
struct FileHeader {
  std::string text;
  std::int64_t values = 0;
};

void sort_by_width(std::vector<TensorHeader>& tensors) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorHeader& a, const TensorHeader& b) {
    return size_of(a.dtype) > size_of(b.dtype);
  });
}

FileHeader header_of(const std::vector<TensorHeader>& tensors,
                     const std::map<std::string, std::string>& metadata, const std::string& path) {
  // The text is built by hand, because inserting 100,000 keys into an ordered JSON object takes quadratic
  // time.
  const auto quoted = [](const std::string& text) {
    return Json(text).dump(-1, ' ', false, Json::error_handler_t::strict);
  };
  std::string header = "{";
  const auto separate = [&header] {
    if (header.size() > 1) header += ',';
  };
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (auto it = metadata.begin(); it != metadata.end(); ++it) {
      if (it != metadata.begin()) header += ',';
      header += quoted(it->first) + ":" + quoted(it->second);
    }
    header += '}';
  }
  std::int64_t at = 0;
  std::unordered_set<std::string> names;
  for (const auto& tensor : tensors) {
    if (!names.insert(tensor.name).second || tensor.name == "__metadata__") {
      throw Error({.what = "a tensor's name cannot be used twice",
                   .found = tensor.name,
                   .where = path,
                   .fix = "give one of the tensors another name",
                   .code = ExitCode::usage});
    }
    const std::int64_t bytes = byte_count(tensor);
    separate();
    header += quoted(tensor.name) + ":{\"dtype\":\"" + std::string(safetensors_name(tensor.dtype)) +
              "\",\"shape\":[";
    for (std::size_t i = 0; i < tensor.shape.size(); ++i)
      header += (i ? "," : "") + std::to_string(tensor.shape[i]);
    header += "],\"data_offsets\":[" + std::to_string(at) + ",";
    if (__builtin_add_overflow(at, bytes, &at) || at > INT64_MAX / 2)
      throw Error({.what = "the tensors are too large for one file",
                   .expected = "fewer than 2^62 bytes",
                   .found = "more, up to tensor '" + tensor.name + "'",
                   .where = path,
                   .fix = "write several files: a smaller --size",
                   .code = ExitCode::usage});
    header += std::to_string(at) + "]}";
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');
  if (header.size() > kMaxSafetensorsHeader)
    throw Error({.what = "too many tensors for one safetensors file",
                 .expected = "a header of at most " + std::to_string(kMaxSafetensorsHeader) + " bytes",
                 .found = std::to_string(header.size()) + " bytes",
                 .where = path,
                 .fix = "write several files: a smaller --size",
                 .code = ExitCode::usage});
  return {std::move(header), at};
}

std::int64_t bytes_of(const FileHeader& header) {
  return 8 + static_cast<std::int64_t>(header.text.size()) + header.values;
}

}  // namespace

std::int64_t safetensors_bytes(std::vector<TensorHeader> tensors,
                               const std::map<std::string, std::string>& metadata) {
  sort_by_width(tensors);
  return bytes_of(header_of(tensors, metadata, "safetensors"));
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<TensorHeader> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(path), temporary_(path + ".tmp-" + std::to_string(::getpid())), tensors_(std::move(tensors)) {
  sort_by_width(tensors_);
  const FileHeader file = header_of(tensors_, metadata, path);
  for (const auto& tensor : tensors_) remaining_.push_back(byte_count(tensor));
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail("cannot create a file", errno);
  try {
    const int code = ::posix_fallocate(fd_, 0, bytes_of(file));
    if (code != 0 && code != EOPNOTSUPP && code != EINVAL) fail("cannot take disk space for a file", code);
    const std::uint64_t length = file.text.size();
    char prefix[8];
    for (int i = 0; i < 8; ++i) prefix[i] = static_cast<char>(length >> (8 * i));
    write(prefix, sizeof prefix);
    write(file.text.data(), file.text.size());
  } catch (...) {
    ::close(fd_);
    ::unlink(temporary_.c_str());
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ >= 0) ::close(fd_);
  if (!published_) ::unlink(temporary_.c_str());
}

void SafetensorsWriter::fail(const std::string& what, int code) const {
  throw Error({.what = what,
               .found = std::strerror(code),
               .where = path_,
               .fix = code == ENOSPC || code == EFBIG || code == EDQUOT
                          ? "free some disk space or write elsewhere"
                          : "check that the folder exists and can be written",
               .code = exit_code_of(code)});
}

void SafetensorsWriter::write(const void* bytes, std::size_t size) {
  const char* from = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t n = ::write(fd_, from, std::min<std::size_t>(size, 1u << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot write a file", errno);
    from += n;
    size -= static_cast<std::size_t>(n);
  }
}

void SafetensorsWriter::append_bytes(const void* bytes, std::size_t size) {
  while (turn_ < tensors_.size() && remaining_[turn_] == 0) ++turn_;
  if (size == 0) return;
  check(turn_ < tensors_.size() && static_cast<std::uint64_t>(remaining_[turn_]) >= size &&
            size % size_of(tensors_[turn_].dtype) == 0,
        "more bytes for a tensor than it has");
  write(bytes, size);
  remaining_[turn_] -= static_cast<std::int64_t>(size);
}

void SafetensorsWriter::append(const float* values, std::int64_t count) {
  while (turn_ < tensors_.size() && remaining_[turn_] == 0) ++turn_;
  if (count == 0) return;
  check(turn_ < tensors_.size() && is_float(tensors_[turn_].dtype), "floats for a tensor that takes none");
  const DType dtype = tensors_[turn_].dtype;
  if (dtype == DType::f32) return append_bytes(values, static_cast<std::size_t>(count) * sizeof(float));
  buffer_.resize(static_cast<std::size_t>(kConverted) * size_of(dtype));
  for (std::int64_t i = 0; i < count; i += kConverted) {
    const std::int64_t n = std::min(kConverted, count - i);
    from_float(dtype, values + i, n, buffer_.data());
    append_bytes(buffer_.data(), static_cast<std::size_t>(n) * size_of(dtype));
  }
}

void SafetensorsWriter::finish() {
  if (finished_) return;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (remaining_[i] != 0) {
      throw Error({.what = "a tensor was not written to its end",
                   .found = std::to_string(remaining_[i]) + " bytes missing",
                   .where = path_ + ", tensor '" + tensors_[i].name + "'"});
    }
  }
  if (::fsync(fd_) != 0) fail("cannot sync a file", errno);
  ::close(fd_);
  fd_ = -1;
  finished_ = true;
}

void SafetensorsWriter::publish() {
  finish();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    fail("cannot rename a finished file into place", errno);
  published_ = true;
  const auto parent = std::filesystem::path(path_).parent_path();
  sync_folder(parent.empty() ? "." : parent.string());
}

void write_safetensors(const std::string& path, const std::vector<TensorSlice>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<TensorHeader> headers;
  std::unordered_map<std::string, const TensorSlice*> by_name;
  for (const auto& tensor : tensors) {
    check(tensor.begin == 0 && tensor.count == element_count(tensor.shape, tensor.name),
          "write_safetensors takes whole tensors");
    headers.push_back({tensor.name, tensor.dtype, tensor.shape});
    by_name[tensor.name] = &tensor;
  }
  SafetensorsWriter writer(path, std::move(headers), metadata);
  for (const auto& header : writer.order()) {
    const TensorSlice& tensor = *by_name.at(header.name);
    writer.append_bytes(tensor.data, static_cast<std::size_t>(tensor.count) * size_of(tensor.dtype));
  }
  writer.publish();
}

ShardPlan plan_shards(const std::vector<TensorHeader>& tensors, std::int64_t max_bytes,
                      const std::string& stem) {
  ShardPlan plan;
  std::int64_t bytes = 0;
  for (const auto& tensor : tensors) {
    const std::int64_t size = byte_count(tensor);
    if (plan.tensors.empty() || (bytes > 0 && size > max_bytes - bytes)) {
      plan.tensors.emplace_back();
      bytes = 0;
    }
    plan.tensors.back().push_back(tensor);
    bytes += size;
    plan.total_bytes += size;
  }
  if (plan.tensors.empty()) plan.tensors.emplace_back();
  const std::size_t n = plan.tensors.size();
  for (std::size_t i = 0; i < n; ++i) {
    char number[64];
    std::snprintf(number, sizeof number, "-%05zu-of-%05zu", i + 1, n);
    plan.files.push_back(stem + (n == 1 ? "" : number) + ".safetensors");
  }
  return plan;
}

std::string index_json(const ShardPlan& plan) {
  std::map<std::string, std::string> by_tensor;
  for (std::size_t i = 0; i < plan.files.size(); ++i) {
    for (const auto& tensor : plan.tensors[i]) by_tensor[tensor.name] = plan.files[i];
  }
  nlohmann::json index;
  index["metadata"]["total_size"] = plan.total_bytes;
  index["weight_map"] = by_tensor;
  return index.dump(2) + "\n";
}

}  // namespace octet::weights
