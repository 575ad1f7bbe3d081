#include "../src/memory_tier/rank_part.h"

#include <filesystem>

#include "fuzz.h"
#include "octet/base/error.h"
#include "scratch.h"

namespace octet::fuzz {
namespace {

// Takes the bytes as a file in a host's memory.
void as_file(std::string_view bytes) {
  const memory_tier::PartMemory memory = memory_tier::PartMemory::open(scratch_file("part", bytes));
  if (const auto header = memory_tier::read_header(memory)) memory_tier::verify_values(memory, *header);
}

// Takes the bytes as a header with a valid hash.
void as_header(std::string_view bytes) {
  constexpr std::int64_t kMost = 1 << 20;
  const memory_tier::PartHeader header = memory_tier::unpacked(bytes, "memory");
  if (header.file_bytes > kMost) return;
  const std::string path = scratch_folder() + "/sealed";
  std::filesystem::remove(path);
  memory_tier::PartMemory memory = memory_tier::PartMemory::make(path, header.file_bytes);
  memory_tier::seal_part(memory, header);
  memory_tier::verify_values(memory, *memory_tier::read_header(memory));
}

}  // namespace

// Reads the part of one rank of a checkpoint in memory.
void memory_part(std::string_view bytes) {
  for (const auto function : {as_file, as_header}) {
    try {
      function(bytes);
    } catch (const Error&) {
    }
  }
}

}  // namespace octet::fuzz
