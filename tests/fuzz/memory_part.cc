#include "../src/checkpoint/memory/memory_part.h"

#include <filesystem>

#include "fuzz.h"
#include "octet/base/error.h"
#include "scratch.h"

namespace octet::fuzz {
namespace {

// Takes the bytes as a file in a host's memory.
void as_file(std::string_view bytes) {
  const checkpoint::PartMemory memory = checkpoint::PartMemory::open(scratch_file("part", bytes));
  if (const auto header = checkpoint::read_header(memory)) checkpoint::verify_values(memory, *header);
}

// Takes the bytes as a header with a valid hash.
void as_header(std::string_view bytes) {
  constexpr std::int64_t kMost = 1 << 20;
  const checkpoint::PartHeader header = checkpoint::unpacked(bytes, "memory");
  if (header.file_bytes > kMost) return;
  const std::string path = scratch_folder() + "/sealed";
  std::filesystem::remove(path);
  checkpoint::PartMemory memory = checkpoint::PartMemory::make(path, header.file_bytes);
  checkpoint::seal_part(memory, header);
  checkpoint::verify_values(memory, *checkpoint::read_header(memory));
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
