// Parser of the JSON header of a safetensors file, for untrusted bytes.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "octet/weights/safetensors.h"

namespace octet::weights {

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  ///< sorted by offset; offsets count from the start of the file
  std::map<std::string, std::string> metadata;
};

/// Largest header that the reference implementation reads.
inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;

/// Parses and checks the header of a whole file. Throws Error naming `path` and the tensor.
SafetensorsHeader parse_safetensors(std::string_view file, const std::string& path);

/// Returns the name of a dtype in safetensors files: "F32", "BF16", "F8_E4M3", …
std::string_view safetensors_name(DType dtype);

/// Returns the `weight_map` of an index file: tensor to file name, in file order. Throws Error for invalid
/// JSON, duplicates, and file names that are not plain.
std::vector<std::pair<std::string, std::string>> parse_weight_map(std::string_view text,
                                                                  const std::string& path);

}  // namespace octet::weights
