#include "../src/supervise/supervisor_output.h"

#include <cstdlib>

#include "fuzz.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "scratch.h"

namespace octet::fuzz {

// Takes the bytes as the record of earlier incidents and adds one: the bytes stay, and a new line follows.
void incidents(std::string_view bytes) {
  const std::string path = scratch_file("incidents.jsonl", bytes);
  try {
    supervise::Incidents record(scratch_folder());
    record.add({{"what", std::string(bytes.substr(0, 100))}});
    const std::string text = read_file(path);
    if (!text.starts_with(bytes) || text.back() != '\n') std::abort();
    const std::size_t line = text.rfind('\n', text.size() - 2) + 1;
    if (!parse_json(text.substr(line), path).contains("what")) std::abort();
  } catch (const Error&) {
  }
}

}  // namespace octet::fuzz
