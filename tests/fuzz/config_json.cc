#include "fuzz.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/model/architecture.h"

namespace octet::fuzz {

void config_json(std::string_view bytes) {
  try {
    model::read_architecture(parse_json(bytes, "config.json"), "config.json");
  } catch (const Error&) {
  }
}

}  // namespace octet::fuzz
