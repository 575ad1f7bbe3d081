#include "octet/ops/wire.h"

#include <algorithm>

#include "cpu/wire_ranges.h"
#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {
namespace {

bool is_values(DType t) {
  return t == DType::f32 || t == DType::bf16;
}
bool on_boundary(const void* at, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
}
// Returns whether an address is valid and aligned for encoded values: factors of blocks are fp32.
bool may_lie(const void* at, Wire wire) {
  return at != nullptr && on_boundary(at, wire == Wire::bf16 ? 2 : 4);
}
bool may_lie(const void* at, DType dtype) {
  return at != nullptr && on_boundary(at, size_of(dtype));
}

void check_encode(const EncodeArgs& a) {
  check(a.wire != Wire::f32, "encode_values: an f32 wire is not encoded");
  check(is_values(a.dtype), "encode_values: values that are encoded are f32 or bf16");
  check(a.count >= 0, "encode_values: count is not negative");
  if (a.count == 0) return;
  check(may_lie(a.from, a.dtype), "encode_values: from is needed, on its elements' boundary");
  check(may_lie(a.to, a.wire), "encode_values: to is needed, on a 4-byte boundary");
  check(on_boundary(a.residual, 2), "encode_values: the residual is bf16");
}

void check_decode(const DecodeArgs& a) {
  check(a.wire != Wire::f32, "decode_values: an f32 wire is not decoded");
  check(is_values(a.dtype), "decode_values: values are decoded to f32 or bf16");
  check(a.count >= 0, "decode_values: count is not negative");
  if (a.count == 0) return;
  check(may_lie(a.part, a.wire), "decode_values: part is needed, on a 4-byte boundary");
  check(may_lie(a.to, a.dtype), "decode_values: to is needed, on its elements' boundary");
}

void check_sum(const SumPartsArgs& a) {
  check(is_values(a.to_dtype), "sum_parts: sums are f32 or bf16");
  check(!a.parts.empty(), "sum_parts: there is at least one part");
  check(a.count >= 0, "sum_parts: count is not negative");
  if (a.count == 0) return;
  check(may_lie(a.to, a.to_dtype), "sum_parts: to is needed, on its elements' boundary");
  for (const void* part : a.parts) {
    check(may_lie(part, a.wire), "sum_parts: each part is needed, on a 4-byte boundary");
    check(part != a.to || travels_as_it_lies(a.wire, a.to_dtype),
          "sum_parts: only a part that lies in its dtype may be `to`");
  }
}

void check_tree(const SumTreeArgs& a) {
  check(!a.addends.empty() && a.addends.size() == a.merges.size(), "sum_tree: every addend has its merges");
  std::int64_t height = 0;
  for (const int merges : a.merges) {
    height += 1 - merges;
    check(merges >= 0 && height >= 1, "sum_tree: only sums on the stack are added");
  }
  check(height == 1, "sum_tree: one sum is left");
  check(a.count >= 0, "sum_tree: count is not negative");
  if (a.count == 0) return;
  check(may_lie(a.to, DType::f32), "sum_tree: to is needed, on a 4-byte boundary");
  for (const float* addend : a.addends) {
    check(may_lie(addend, DType::f32), "sum_tree: each addend is needed, on a 4-byte boundary");
  }
}

void check_combine(const CombineArgs& a) {
  check(!a.parts.empty(), "combine_parts: there is at least one part");
  check(a.count >= 0, "combine_parts: count is not negative");
  if (a.count == 0) return;
  const DType dtype = a.how == Combine::max_f32 ? DType::f32 : DType::f64;
  check(may_lie(a.to, dtype), "combine_parts: to is needed, on its elements' boundary");
  for (const void* part : a.parts) {
    check(may_lie(part, dtype), "combine_parts: each part is needed, on its elements' boundary");
  }
}

void check_most(std::size_t parts, const char* message) {
  check(parts <= kMostParts, message);
}

}  // namespace

std::size_t wire_bytes(Wire wire, std::int64_t count) {
  const auto n = static_cast<std::size_t>(count);
  switch (wire) {
    case Wire::f32:
      return n * sizeof(float);
    case Wire::bf16:
      return n * sizeof(std::uint16_t);
    default:
      return n + static_cast<std::size_t>(wire_blocks(count)) * sizeof(float);
  }
}

void encode_values(const EncodeArgs& args) {
  check_encode(args);
  cpu::encode_range(args, 0, args.count);
}

void encode_values(Stream& stream, const EncodeArgs& args) {
  check_encode(args);
  OCTET_DISPATCH(stream, encode_values, args);
}

void decode_values(const DecodeArgs& args) {
  check_decode(args);
  cpu::decode_range(args, 0, args.count);
}

void decode_values(Stream& stream, const DecodeArgs& args) {
  check_decode(args);
  OCTET_DISPATCH(stream, decode_values, args);
}

void sum_parts(const SumPartsArgs& args) {
  check_sum(args);
  cpu::sum_parts_range(args, 0, args.count);
}

void sum_parts(Stream& stream, const SumPartsArgs& args) {
  check_sum(args);
  check_most(args.parts.size(), "sum_parts: a stream sums at most kMostParts parts");
  SumPartsWork work{args, {args.parts.begin(), args.parts.end()}};
  work.args.parts = {};
  OCTET_DISPATCH(stream, sum_parts, work);
}

void sum_tree(const SumTreeArgs& args) {
  check_tree(args);
  cpu::sum_tree_range(args, 0, args.count);
}

void sum_tree(Stream& stream, const SumTreeArgs& args) {
  check_tree(args);
  check_most(args.addends.size(), "sum_tree: a stream sums at most kMostParts addends");
  SumTreeWork work{
      args, {args.addends.begin(), args.addends.end()}, {args.merges.begin(), args.merges.end()}};
  work.args.addends = {};
  work.args.merges = {};
  OCTET_DISPATCH(stream, sum_tree, work);
}

void combine_parts(const CombineArgs& args) {
  check_combine(args);
  cpu::combine_range(args, 0, args.count);
}

void combine_parts(Stream& stream, const CombineArgs& args) {
  check_combine(args);
  check_most(args.parts.size(), "combine_parts: a stream combines at most kMostParts parts");
  CombineWork work{args, {args.parts.begin(), args.parts.end()}};
  work.args.parts = {};
  OCTET_DISPATCH(stream, combine_parts, work);
}

}  // namespace octet::ops
