#include "pass_plan.h"

#include <cstring>
#include <type_traits>

#include "octet/base/error.h"

namespace octet::generate {
namespace {

template <typename T>
void put(std::string& bytes, const std::vector<T>& values) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::uint64_t count = values.size();
  bytes.append(reinterpret_cast<const char*>(&count), sizeof count);
  bytes.append(reinterpret_cast<const char*>(values.data()), count * sizeof(T));
}

class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}
  template <typename T>
  std::vector<T> take() {
    std::uint64_t count = 0;
    copy(&count, sizeof count);
    if (count > (bytes_.size() - at_) / sizeof(T)) fail();
    std::vector<T> values(count);
    copy(values.data(), count * sizeof(T));
    return values;
  }
  void end() const {
    if (at_ != bytes_.size()) fail();
  }

 private:
  void copy(void* to, std::size_t count) {
    if (count > bytes_.size() - at_) fail();
    if (count > 0) std::memcpy(to, bytes_.data() + at_, count);
    at_ += count;
  }
  [[noreturn]] void fail() const {
    throw Error({.what = "the plan of a pass cannot be read",
                 .found = std::to_string(bytes_.size()) + " bytes",
                 .fix = "start the same program on all hosts"});
  }

  const std::string& bytes_;
  std::size_t at_ = 0;
};

}  // namespace

std::string packed(const PassPlan& plan) {
  std::string bytes;
  put(bytes, plan.copies);
  put(bytes, plan.changes);
  put(bytes, plan.tokens.ids);
  put(bytes, plan.tokens.slots);
  put(bytes, plan.tokens.positions);
  put(bytes, plan.tokens.rows);
  put(bytes, std::vector<std::int64_t>{plan.tokens.alone, plan.wanted.best ? 1 : 0,
                                       plan.wanted.normalizers ? 1 : 0});
  put(bytes, std::vector<char>(plan.wanted.logits.begin(), plan.wanted.logits.end()));
  return bytes;
}

PassPlan unpacked(const std::string& bytes) {
  Reader reader(bytes);
  PassPlan plan;
  plan.copies = reader.take<PageCopy>();
  plan.changes = reader.take<PageChange>();
  plan.tokens.ids = reader.take<std::int32_t>();
  plan.tokens.slots = reader.take<std::int32_t>();
  plan.tokens.positions = reader.take<std::int32_t>();
  plan.tokens.rows = reader.take<std::int32_t>();
  const auto numbers = reader.take<std::int64_t>();
  const auto logits = reader.take<char>();
  reader.end();
  check(numbers.size() == 3, "a plan has exactly three numbers");
  plan.tokens.alone = numbers[0];
  plan.wanted = {.best = numbers[1] != 0,
                 .normalizers = numbers[2] != 0,
                 .listed = {},
                 .logits = {logits.begin(), logits.end()}};
  return plan;
}

}  // namespace octet::generate
