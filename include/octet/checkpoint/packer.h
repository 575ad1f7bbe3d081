// Serialisation of numbers and texts into one string, for messages between ranks of one run.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "octet/base/error.h"
#include "octet/weights/tensor_header.h"

namespace octet::checkpoint {

class Packer {
 public:
  Packer& number(std::int64_t value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    text_.append(bytes, sizeof value);
    return *this;
  }
  Packer& text(std::string_view value) {
    number(static_cast<std::int64_t>(value.size()));
    text_.append(value);
    return *this;
  }
  Packer& header(const weights::TensorHeader& tensor) {
    text(tensor.name).number(static_cast<std::int64_t>(tensor.dtype));
    number(static_cast<std::int64_t>(tensor.shape.size()));
    for (const std::int64_t extent : tensor.shape) number(extent);
    return *this;
  }
  const std::string& packed() const { return text_; }

 private:
  std::string text_;
};

class Unpacker {
 public:
  explicit Unpacker(std::string_view text) : rest_(text) {}
  bool done() const { return rest_.empty(); }
  std::int64_t number() {
    std::int64_t value = 0;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text() {
    const auto size = static_cast<std::size_t>(number());
    return std::string(take(size));
  }
  weights::TensorHeader header() {
    weights::TensorHeader tensor;
    tensor.name = text();
    tensor.dtype = static_cast<DType>(number());
    for (std::int64_t n = number(); n > 0; --n) tensor.shape.push_back(number());
    return tensor;
  }

 private:
  std::string_view take(std::size_t size) {
    check(size <= rest_.size(), "a message between ranks is whole");
    const std::string_view piece = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return piece;
  }
  std::string_view rest_;
};

}  // namespace octet::checkpoint
