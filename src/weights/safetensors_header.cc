#include "octet/weights/safetensors_header.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/tensor_slice.h"

namespace octet::weights {

// JSON of safetensors files and their indices as parser events, for untrusted input.

// Returns a name from a file, shortened for a message.
inline std::string shown(const std::string& name) {
  return name.size() <= 120 ? name : name.substr(0, 117) + "...";
}

[[noreturn]] inline void broken(const std::string& path, const std::string& tensor, const std::string& what,
                                const std::string& expected = "", const std::string& found = "") {
  throw Error({.what = what,
               .expected = expected,
               .found = found,
               .where = tensor.empty() ? path : path + ", tensor '" + shown(tensor) + "'",
               .fix = "the file is damaged or not a safetensors file: fetch or write it again",
               .code = ExitCode::usage});
}

// Handler for parser events of nlohmann::json. It builds no tree and does not recurse, so a header of 100 MB
// with a million keys takes time proportional to its size.
class Events {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = std::string;
  using binary_t = nlohmann::json::binary_t;

  explicit Events(std::string path) : path_(std::move(path)) {}
  virtual ~Events() = default;
  virtual bool null() { return other("null"); }
  virtual bool boolean(bool) { return other("a boolean"); }
  virtual bool number_integer(number_integer_t) { return other("a negative number"); }
  virtual bool number_unsigned(number_unsigned_t) { return other("a number"); }
  virtual bool number_float(number_float_t, const string_t& text) { return other("the number " + text); }
  virtual bool string(string_t&) { return other("a string"); }
  virtual bool binary(binary_t&) { return other("binary data"); }
  virtual bool start_object(std::size_t) { return other("an object"); }
  virtual bool start_array(std::size_t) { return other("a list"); }
  virtual bool key(string_t&) = 0;
  virtual bool end_object() = 0;
  virtual bool end_array() { return true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& e) {
    broken(path_, "", "not valid JSON", "", json_problem(e.what()));
  }

 protected:
  virtual bool other(const std::string& found) = 0;
  std::string path_;
};

namespace {

constexpr std::array<std::pair<DType, std::string_view>, 12> kNames{{{DType::f32, "F32"},
                                                                     {DType::f16, "F16"},
                                                                     {DType::bf16, "BF16"},
                                                                     {DType::f64, "F64"},
                                                                     {DType::i64, "I64"},
                                                                     {DType::i32, "I32"},
                                                                     {DType::i16, "I16"},
                                                                     {DType::i8, "I8"},
                                                                     {DType::u8, "U8"},
                                                                     {DType::boolean, "BOOL"},
                                                                     {DType::e4m3, "F8_E4M3"},
                                                                     {DType::e5m2, "F8_E5M2"}}};

std::optional<DType> dtype_of(std::string_view name) {
  for (const auto& [dtype, spelling] : kNames) {
    if (spelling == name) return dtype;
  }
  return std::nullopt;
}

class HeaderEvents : public Events {
 public:
  using Events::Events;
  SafetensorsHeader header;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;  ///< data_offsets of each tensor

  bool start_object(std::size_t) override {
    if (place_ == Place::outside) {
      place_ = Place::top;
    } else if (place_ == Place::value && name_ == "__metadata__") {
      place_ = Place::metadata;
    } else if (place_ == Place::value) {
      place_ = Place::tensor;
      tensor_ = StoredTensor{};
      tensor_.name = name_;
      offsets_.clear();
      fields_.clear();
    } else {
      return other("an object");
    }
    return true;
  }

  bool key(string_t& name) override {
    if (place_ == Place::top) {
      if (!names_.insert(name).second) broken(path_, name, "a tensor is declared twice");
      name_ = name;
      place_ = Place::value;
      return true;
    }
    if (place_ == Place::metadata) {
      if (header.metadata.count(name) != 0) broken(path_, "", "metadata names '" + shown(name) + "' twice");
      field_ = name;
      return true;
    }
    if (name != "dtype" && name != "shape" && name != "data_offsets") {
      broken(path_, name_, "unknown field in a tensor's entry", "dtype, shape and data_offsets", shown(name));
    }
    if (std::find(fields_.begin(), fields_.end(), name) != fields_.end())
      broken(path_, name_, "field '" + name + "' occurs twice in a tensor's entry");
    fields_.push_back(name);
    field_ = name;
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata) {
      header.metadata[field_] = value;
      return true;
    }
    if (place_ != Place::tensor || field_ != "dtype") return other("a string");
    const auto dtype = dtype_of(value);
    if (!dtype) {
      broken(path_, name_, "dtype of a tensor is not known",
             "F32, F16, BF16, F64, I64, I32, I16, I8, U8, BOOL, F8_E4M3 or F8_E5M2", shown(value));
    }
    tensor_.dtype = *dtype;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::tensor || field_ == "dtype") return other("a list");
    place_ = field_ == "shape" ? Place::shape : Place::offsets;
    return true;
  }

  bool end_array() override {
    place_ = Place::tensor;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::shape) {
      if (value > static_cast<std::uint64_t>(INT64_MAX) || tensor_.shape.size() >= 64)
        broken(path_, name_, "shape of a tensor is impossible", "at most 64 extents below 2^63",
               std::to_string(value));
      tensor_.shape.push_back(static_cast<std::int64_t>(value));
    } else if (place_ == Place::offsets && offsets_.size() < 2) {
      offsets_.push_back(value);
    } else {
      return other("a number");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor) {
      if (fields_.size() != 3 || offsets_.size() != 2) {
        broken(path_, name_, "a tensor's entry is incomplete", "dtype, shape and data_offsets [begin, end]");
      }
      header.tensors.push_back(std::move(tensor_));
      ranges.emplace_back(offsets_[0], offsets_[1]);
    }
    place_ = place_ == Place::top ? Place::outside : Place::top;
    return true;
  }

 protected:
  bool other(const std::string& found) override {
    broken(path_, place_ == Place::outside ? "" : name_, "the header does not have the form of safetensors",
           R"({name: {"dtype": string, "shape": [whole numbers], "data_offsets": [begin, end]}})", found);
  }

 private:
  enum class Place { outside, top, value, metadata, tensor, shape, offsets };
  Place place_ = Place::outside;
  std::string name_, field_;
  StoredTensor tensor_;
  std::vector<std::uint64_t> offsets_;
  std::vector<std::string> fields_;
  std::unordered_set<std::string> names_;
};

}  // namespace

std::string_view safetensors_name(DType dtype) {
  for (const auto& [known, name] : kNames) {
    if (known == dtype) return name;
  }
  check(false, "a dtype without a safetensors name");
  return "";
}

SafetensorsHeader parse_safetensors(std::string_view file, const std::string& path) {
  const std::string size = std::to_string(file.size()) + " bytes";
  if (file.size() < 8)
    broken(path, "", "the file is too short for a safetensors header", "at least 8 bytes", size);
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i)
    length = length << 8 | static_cast<unsigned char>(file[static_cast<std::size_t>(i)]);
  if (length > kMaxSafetensorsHeader || length > file.size() - 8) {
    broken(path, "", "the length of the header is impossible",
           "at most " + std::to_string(kMaxSafetensorsHeader) + " and inside the file of " + size,
           std::to_string(length) + " bytes");
  }
  const std::string_view text = file.substr(8, length);
  if (text.empty() || text[0] != '{') broken(path, "", "the header does not start with '{'");
  HeaderEvents events(path);
  nlohmann::json::sax_parse(text.begin(), text.end(), &events);

  const std::uint64_t data = 8 + length;
  const std::uint64_t data_size = file.size() - data;
  auto& tensors = events.header.tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto& tensor = tensors[i];
    const auto [begin, end] = events.ranges[i];
    const std::string range = "[" + std::to_string(begin) + ", " + std::to_string(end) + "]";
    if (begin > end || end > data_size) {
      broken(path, tensor.name, "data_offsets are outside the file",
             "0 <= begin <= end <= " + std::to_string(data_size), range);
    }
    tensor.count = element_count(tensor.shape, path + ", tensor '" + shown(tensor.name) + "'");
    std::uint64_t bytes = 0;
    if (__builtin_mul_overflow(static_cast<std::uint64_t>(tensor.count), size_of(tensor.dtype), &bytes) ||
        bytes != end - begin) {
      broken(path, tensor.name, "shape and byte range of a tensor disagree",
             shape_text(tensor.shape) + " of " + std::string(safetensors_name(tensor.dtype)),
             std::to_string(end - begin) + " bytes");
    }
    tensor.offset = static_cast<std::int64_t>(data + begin);
    tensor.file = path;
  }
  // An empty tensor has the same offset as the next tensor, so it must be sorted before it.
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::pair(a.offset, a.count) < std::pair(b.offset, b.count);
  });
  std::uint64_t at = data;
  for (const auto& tensor : tensors) {
    if (static_cast<std::uint64_t>(tensor.offset) != at) {
      broken(path, tensor.name, "byte ranges of the tensors overlap or leave a gap",
             "begin at " + std::to_string(at - data),
             std::to_string(static_cast<std::uint64_t>(tensor.offset) - data));
    }
    at += static_cast<std::uint64_t>(tensor.count) * size_of(tensor.dtype);
  }
  if (at != file.size()) {
    broken(path, "", "the tensors do not cover the file", std::to_string(at) + " bytes", size);
  }
  return std::move(events.header);
}

namespace {

// Collects the strings of weight_map and ignores all other members.
class IndexEvents : public Events {
 public:
  using Events::Events;
  std::vector<std::pair<std::string, std::string>> map;
  bool found = false;

  bool null() override { return skip(); }
  bool boolean(bool) override { return skip(); }
  bool number_integer(number_integer_t) override { return skip(); }
  bool number_unsigned(number_unsigned_t) override { return skip(); }
  bool number_float(number_float_t, const string_t&) override { return skip(); }
  bool start_object(std::size_t) override {
    if (depth_ == 1 && name_ == "weight_map") {
      if (std::exchange(found, true)) broken(path_, "", "weight_map occurs twice");
      inside_ = true;
    } else if (inside_) {
      return other("an object");
    }
    ++depth_;
    return true;
  }
  bool end_object() override {
    if (--depth_ == 1) inside_ = false;
    return true;
  }
  bool start_array(std::size_t) override {
    if (inside_ || depth_ == 0) return other("a list");
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (inside_ && !names_.insert(name).second) broken(path_, name, "the index lists a tensor twice");
    if (inside_ || depth_ == 1) name_ = name;
    return true;
  }
  bool string(string_t& value) override {
    if (!inside_) return skip();
    if (value.empty() || value == "." || value == ".." ||
        value.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      broken(path_, name_, "the index names a file outside its folder", "a plain file name", shown(value));
    }
    map.emplace_back(name_, value);
    return true;
  }

 protected:
  bool other(const std::string& what) override {
    broken(path_, "", "the index does not have the form of a safetensors index",
           R"({"metadata": {...}, "weight_map": {tensor: file name}})", what);
  }

 private:
  bool skip() { return inside_ || depth_ == 0 ? other("a value that is not a string") : true; }
  int depth_ = 0;
  bool inside_ = false;
  std::string name_;
  std::unordered_set<std::string> names_;
};

}  // namespace

std::vector<std::pair<std::string, std::string>> parse_weight_map(std::string_view text,
                                                                  const std::string& path) {
  IndexEvents events(path);
  nlohmann::json::sax_parse(text.begin(), text.end(), &events);
  if (!events.found || events.map.empty())
    broken(path, "", "the index lists no tensors", R"({"weight_map": {tensor: file name}})");
  return std::move(events.map);
}

}  // namespace octet::weights
