// The CPU side of encodings for transfer, on the calling thread only. Each function processes elements
// [begin, end); begin is a multiple of kWireTile. The communication thread calls the functions directly.
// Streams divide the tiles among threads.
#pragma once

#include <cstdint>

#include "octet/ops/wire.h"

namespace octet::ops::cpu {

/// Elements that are processed together. They stay in the first-level cache, so each part is read once and
/// each result is written once.
inline constexpr std::int64_t kWireTile = 1024;

void encode_range(const EncodeArgs& args, std::int64_t begin, std::int64_t end);
void decode_range(const DecodeArgs& args, std::int64_t begin, std::int64_t end);
void sum_parts_range(const SumPartsArgs& args, std::int64_t begin, std::int64_t end);
void sum_tree_range(const SumTreeArgs& args, std::int64_t begin, std::int64_t end);
void combine_range(const CombineArgs& args, std::int64_t begin, std::int64_t end);

}  // namespace octet::ops::cpu
