#include "octet/base/build.h"

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstring>

namespace octet {
namespace {

// Found in the notes of the program itself, the first of the loaded objects.
int take_build_id(dl_phdr_info* object, std::size_t, void* out) {
  auto& id = *static_cast<std::string*>(out);
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const auto& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const auto* at = reinterpret_cast<const char*>(object->dlpi_addr + segment.p_vaddr);
    const char* end = at + segment.p_memsz;
    while (end - at >= static_cast<std::ptrdiff_t>(sizeof(ElfW(Nhdr)))) {
      ElfW(Nhdr) note{};
      std::memcpy(&note, at, sizeof note);
      const auto padded = [](std::size_t bytes) { return (bytes + 3) / 4 * 4; };
      const char* name = at + sizeof note;
      const char* bytes = name + padded(note.n_namesz);
      at = bytes + padded(note.n_descsz);
      if (at > end) break;
      if (note.n_type != NT_GNU_BUILD_ID || note.n_namesz != 4 || std::memcmp(name, "GNU", 4) != 0) continue;
      constexpr const char* kDigits = "0123456789abcdef";
      for (std::size_t b = 0; b < note.n_descsz; ++b) {
        const auto value = static_cast<unsigned char>(bytes[b]);
        id += {kDigits[value >> 4], kDigits[value & 15]};
      }
      return 1;
    }
  }
  return 1;
}

}  // namespace

std::string program_version() {
  return OCTET_VERSION;
}

std::string build_id() {
  std::string id;
  ::dl_iterate_phdr(take_build_id, &id);
  return id;
}

}  // namespace octet
