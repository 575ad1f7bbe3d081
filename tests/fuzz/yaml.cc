#include <cstdlib>

#include "fuzz.h"
#include "octet/base/error.h"
#include "octet/config/config.h"

namespace octet::fuzz {

void yaml(std::string_view bytes) {
  // A file of DeepSpeed's settings is read where it is named; nothing else is.
  if (bytes.find("deepspeed") != std::string_view::npos) return;
  try {
    const auto resolved =
        config::load_text(std::string(bytes), "config.yaml", {}, {.for_training = false, .environment = {}});
    // The printed text reads back as the same configuration.
    const auto again =
        config::load_text(resolved.to_yaml(), "again.yaml", {}, {.for_training = false, .environment = {}});
    if (config::resume_hash(again.config) != config::resume_hash(resolved.config)) std::abort();
  } catch (const Error&) {
  }
}

}  // namespace octet::fuzz
