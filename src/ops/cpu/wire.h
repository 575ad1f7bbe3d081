// The CPU side of wires on the calling thread alone, over elements [begin, end) of all; begin is a multiple
// of kWireTile. The communication thread runs these directly; streams share the tiles out.
#pragma once

#include <cstdint>

#include "octet/ops/wire.h"

namespace octet::ops::cpu {

/// Elements that are worked on at a time: they stay in the first-level cache, so that a part is read once and
/// a result is written once.
inline constexpr std::int64_t kWireTile = 1024;

void encode_range(const EncodeArgs& args, std::int64_t begin, std::int64_t end);
void decode_range(const DecodeArgs& args, std::int64_t begin, std::int64_t end);
void sum_parts_range(const SumPartsArgs& args, std::int64_t begin, std::int64_t end);
void sum_tree_range(const SumTreeArgs& args, std::int64_t begin, std::int64_t end);
void combine_range(const CombineArgs& args, std::int64_t begin, std::int64_t end);

}  // namespace octet::ops::cpu
