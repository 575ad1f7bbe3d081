#include <cstdlib>
#include <filesystem>

#include "fuzz.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/checkpoint/checkpoint.h"
#include "scratch.h"

namespace octet::fuzz {

// Takes the bytes as a manifest with a valid hash, in a folder with a data file of 4 KiB.
void manifest(std::string_view bytes) {
  const std::string folder = scratch_folder() + "/checkpoint-1";
  std::filesystem::create_directories(folder);
  const std::string body(bytes);
  scratch_file("checkpoint-1/manifest.json", "{\"hash\":\"" + hash128_hex(body) + "\",\n" + body);
  std::string data;
  for (int i = 0; i < 4096; ++i) data += static_cast<char>('a' + i % 23);
  scratch_file("checkpoint-1/checkpoint.h5", data);
  try {
    const checkpoint::Checkpoint opened(folder);
    opened.verify();
  } catch (const Error&) {
  }
}

}  // namespace octet::fuzz
