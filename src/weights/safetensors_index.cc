#include <string_view>
#include <unordered_set>
#include <utility>

#include "json_events.h"
#include "octet/base/json.h"
#include "octet/weights/safetensors_header.h"

namespace octet::weights {
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
