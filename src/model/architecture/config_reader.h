// Reads keys of config.json by name and within bounds, and records which keys were read.
#pragma once

#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "families.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/short_text.h"

namespace octet::model {

// Bounds far above any real model and low enough that every product of sizes fits 63 bits.
inline constexpr std::int64_t kMaxVocabulary = std::int64_t{1} << 24;
inline constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxLayers = 4096;
inline constexpr std::int64_t kMaxHeads = 4096;
inline constexpr std::int64_t kMaxHeadDim = 4096;
inline constexpr std::int64_t kMaxPositions = std::int64_t{1} << 31;

[[noreturn]] inline void refuse(
    const std::string& what, const std::string& expected, const std::string& found, const std::string& where,
    const std::string& fix = "if the file was changed, fetch it again; else use another model") {
  throw Error({.what = what,
               .expected = expected,
               .found = found,
               .where = where,
               .fix = fix,
               .code = ExitCode::usage});
}

/// Reads keys and records which were read.
class Reader {
 public:
  Reader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const Json* find(const std::string& key) {
    seen_.insert(key);
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  std::int64_t size(const std::string& key, std::int64_t high) {
    if (find(key) == nullptr) {
      refuse("'" + key + "' is missing", "a whole number from 1 to " + std::to_string(high), "nothing",
             where_);
    }
    return json_int(object_, key, 0, 1, high, where_);
  }
  std::int64_t size(const std::string& key, std::int64_t fallback, std::int64_t high) {
    seen_.insert(key);
    return json_int(object_, key, fallback, 1, high, where_);
  }
  /// Reads a number within bounds. It, and values computed from it, stay finite and above 0 in fp32.
  double positive(const std::string& key, double fallback, double low = 1e-30, double high = 1e30) {
    seen_.insert(key);
    const double value = json_number(object_, key, fallback, where_);
    if (!(value >= low && value <= high)) {
      std::ostringstream range;
      range << "a number from " << low << " to " << high;
      refuse("'" + key + "' cannot be used", range.str(), short_json(*object_.find(key)), where_);
    }
    return value;
  }
  bool boolean(const std::string& key, bool fallback) {
    seen_.insert(key);
    return json_bool(object_, key, fallback, where_);
  }
  std::string text(const std::string& key, const std::string& fallback) {
    seen_.insert(key);
    return json_string(object_, key, fallback, where_);
  }
  const std::set<std::string>& seen() const { return seen_; }
  const Json& object() const { return object_; }
  const std::string& where() const { return where_; }

 private:
  const Json& object_;
  std::string where_;
  std::set<std::string> seen_;
};

/// Returns the rotary embeddings of a config. Most families have one. Families with another theta for
/// windowed layers have two: first for the full layers, then for the windowed layers.
std::vector<Rope> read_ropes(Reader& config, const Family& family);

}  // namespace octet::model
