// JSON of safetensors files and their indices as parser events, for untrusted input.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/json_problem.h"

namespace octet::weights {

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

}  // namespace octet::weights
