// libFuzzer's entry for one of the functions of fuzz.h, named by OCTET_FUZZ_FUNCTION.
#include <cstddef>
#include <cstdint>

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  octet::fuzz::OCTET_FUZZ_FUNCTION({reinterpret_cast<const char*>(data), size});
  return 0;
}
