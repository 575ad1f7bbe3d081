// Declares Json for headers. A source that reads or makes a value includes octet/base/json.h, which is slow
// to compile.
#pragma once

#include <concepts>
#include <memory>
#include <nlohmann/json_fwd.hpp>

namespace octet {

/// Keeps the order of keys, so that a file that is written back looks like the file that was read.
using Json = nlohmann::ordered_json;

/// One JSON value as the member of a class. It is null by default and after a move from it; copies are deep.
class JsonMember {
 public:
  JsonMember();
  /// Takes a Json alone: a list in braces could become an array where an object is meant.
  template <std::same_as<Json> T>
  JsonMember(T value) : JsonMember(&value) {}
  JsonMember(const JsonMember& other);
  JsonMember(JsonMember&& other) noexcept;
  JsonMember& operator=(const JsonMember& other);
  JsonMember& operator=(JsonMember&& other) noexcept;
  ~JsonMember();

  /// Not thread-safe on a value that was moved from.
  const Json& operator*() const;
  Json& operator*();
  const Json* operator->() const { return &**this; }
  Json* operator->() { return &**this; }

 private:
  explicit JsonMember(Json* moved_from);

  std::unique_ptr<Json> value_;  ///< empty: null
};

}  // namespace octet
