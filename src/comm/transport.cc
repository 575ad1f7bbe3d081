#include "transport.h"

#include "octet/base/error.h"

namespace octet::comm {

const char* name_of(Kind kind) {
  constexpr const char* names[] = {"reduce_scatter", "all_gather", "all_reduce_max",
                                   "all_reduce_sum", "control",    "all_gather_values"};
  return names[static_cast<int>(kind)];
}

const char* name_of(Queue queue) {
  constexpr const char* names[] = {"gather", "reduce", "control", "end", "roll"};
  return names[static_cast<int>(queue)];
}

int tag_of(Kind kind, unsigned sequence) {
  return static_cast<int>(kind) << 12 | static_cast<int>(sequence & 0xFFFu);
}

std::string mismatch(int tag, std::size_t bytes, int found_tag, std::size_t found_bytes) {
  const auto describe = [](int t, std::size_t b) {
    return std::string(name_of(static_cast<Kind>(t >> 12))) + " #" + std::to_string(t & 0xFFF) + " with " +
           std::to_string(b) + " bytes";
  };
  return Error(
             {.what = "the ranks disagree about which collective comes next",
              .expected = describe(tag, bytes),
              .found = describe(found_tag, found_bytes),
              .fix =
                  "this is a defect of the program: all ranks must enqueue the same collectives in the same "
                  "order; compare the ranks' configuration and data"})
      .what();
}

}  // namespace octet::comm
