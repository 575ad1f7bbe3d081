#include "transport.h"

#include "octet/base/error.h"

namespace octet::comm {

std::string mismatch(int tag, std::size_t bytes, int found_tag, std::size_t found_bytes) {
  const auto describe = [](int t, std::size_t b) {
    return "message " + std::to_string(t) + " of " + std::to_string(b) + " bytes";
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
