// `trainer schema`: prints the keys of a configuration for editors.
#include <cstdio>

#include "octet/config/key_table.h"
#include "options.h"

namespace octet::cli {

int schema_command(const Arguments& arguments) {
  Options options(
      "schema",
      "Prints a JSON Schema of the configuration: types, ranges, choices, defaults and meanings of "
      "all keys. An editor with a YAML language server completes and checks keys with it");
  options.example("trainer schema > config.schema.json");
  if (!options.parse(arguments)) return 0;
  std::printf("%s", config::json_schema().c_str());
  return 0;
}

}  // namespace octet::cli
