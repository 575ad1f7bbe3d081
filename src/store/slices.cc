#include "slices.h"

#include <algorithm>

namespace octet::store {

namespace {

/// Appends slices of a part that is cut out of its tensor. `whole` has the name, dtype and shape of the
/// tensor; its `data` points to element `begin` of the part. Rows with cut columns form one strided slice.
void append_cut(const model::NamedPart& part, TensorSlice whole, std::int64_t begin, std::int64_t count,
                std::vector<TensorSlice>& slices) {
  const auto& [rows, cols] = *part.cut;
  while (count > 0) {
    TensorSlice& slice = slices.emplace_back(whole);
    const std::int64_t row = begin / cols.count, col = begin % cols.count;
    slice.begin = (rows.begin + row) * cols.of + cols.begin + col;
    if (cols.whole()) {
      slice.count = count;
    } else if (col == 0 && count >= cols.count) {
      slice.count = slice.pitch = cols.count;
      slice.rows = count / cols.count;
      slice.stride = cols.of;
    } else {
      slice.count = std::min(count, cols.count - col);
    }
    const std::int64_t taken = slice.elements();
    begin += taken;
    count -= taken;
    if (whole.data != nullptr)
      whole.data =
          static_cast<std::byte*>(whole.data) + static_cast<std::size_t>(taken) * size_of(whole.dtype);
  }
}

}  // namespace

void append_slices(const model::SegmentSpec& spec, const SliceRange& range, const std::string& prefix,
                   std::vector<TensorSlice>& slices) {
  for (const model::TensorSpec& tensor : spec.tensors) {
    for (const model::NamedPart& part : tensor.parts) {
      const std::int64_t start = tensor.offset + part.begin;
      const std::int64_t from = std::max(start, range.begin);
      const std::int64_t to = std::min(start + part.count, range.begin + range.count);
      if (from >= to) continue;
      TensorSlice slice{.name = prefix + part.name,
                        .dtype = range.data.dtype,
                        .shape = part.shape,
                        .begin = from - start,
                        .count = to - from,
                        .data = range.data.from(from - range.begin).data};
      if (part.cut) {
        append_cut(part, std::move(slice), from - start, to - from, slices);
      } else {
        slices.push_back(std::move(slice));
      }
    }
  }
}

namespace {

/// Appends the elements of one kind of state that `choice` selects.
void append_state(const Segment& s, const Array& data, const SliceChoice& choice, const std::string& prefix,
                  std::vector<TensorSlice>& slices) {
  if (!data) return;
  if (choice.whole) {
    return append_slices(*s.spec, {.begin = 0, .count = s.padded, .data = {nullptr, data.dtype}}, prefix,
                         slices);
  }
  const std::int64_t begin = choice.own_only ? s.own : s.state_begin;
  append_slices(*s.spec,
                {.begin = begin,
                 .count = choice.own_only ? s.slice : s.state_count,
                 .data = data.from(begin - s.state_begin)},
                prefix, slices);
}

void append_scales(const Segment& s, float* scales, const SliceChoice& choice, const std::string& prefix,
                   std::vector<TensorSlice>& slices) {
  if (scales == nullptr) return;
  const std::int64_t begin = choice.whole ? 0 : choice.own_only ? s.own : s.state_begin;
  const std::int64_t count = choice.whole ? s.padded : choice.own_only ? s.slice : s.state_count;
  for (const TensorRun& run : runs_within(*s.spec, begin, count)) {
    const model::TensorSpec& tensor = s.spec->tensors[run.tensor];
    const std::int64_t first =
        begin + run.begin;  // in the segment; a multiple of kMomentBlock, like all boundaries here
    slices.push_back({.name = prefix + tensor.name,
                      .dtype = DType::f32,
                      .shape = {Segment::blocks(tensor.in_all > 0 ? tensor.in_all : tensor.count())},
                      .begin = (tensor.before + first - tensor.offset) / ops::kMomentBlock,
                      .count = Segment::blocks(run.count),
                      .data = choice.whole ? nullptr : scales + (first - s.state_begin) / ops::kMomentBlock});
  }
}

/// Every rank has its own residuals for all elements: row r of a tensor belongs to rank r.
void append_residuals(Segments& segments, std::vector<TensorSlice>& slices) {
  segments.each([&](Segment& s) {
    if (s.residual == nullptr) return;
    const std::size_t first = slices.size();
    append_slices(*s.spec, {.begin = 0, .count = s.padded, .data = {s.residual, DType::bf16}}, "residuals/",
                  slices);
    for (std::size_t i = first; i < slices.size(); ++i) {
      slices[i].begin = s.rank * slices[i].count;
      slices[i].shape.insert(slices[i].shape.begin(), s.world);
    }
  });
}

}  // namespace

std::vector<TensorSlice> parameter_slices(const Segment& segment) {
  std::vector<TensorSlice> slices;
  append_state(segment, segment.master, {}, "", slices);
  return slices;
}

std::vector<TensorSlice> state_slices(Segments& segments, const SliceChoice& choice) {
  std::vector<TensorSlice> slices;
  const auto add = [&](auto member, const std::string& prefix) {
    segments.each([&](Segment& s) { append_state(s, s.*member, choice, prefix, slices); });
  };
  add(&Segment::master, "");
  if (choice.moments) {
    add(&Segment::exp_avg, "exp_avg/");
    add(&Segment::exp_avg_sq, "exp_avg_sq/");
    segments.each([&](Segment& s) {
      append_scales(s, s.exp_avg_scale, choice, "exp_avg_scale/", slices);
      append_scales(s, s.exp_avg_sq_scale, choice, "exp_avg_sq_scale/", slices);
    });
    append_residuals(segments, slices);
  }
  return slices;
}

std::vector<TensorSlice> sum_slices(Segments& segments) {
  std::vector<TensorSlice> slices;
  segments.each([&](Segment& s) {
    if (!s.sum) return;
    append_slices(*s.spec, {.begin = s.own, .count = s.slice, .data = s.sum}, "", slices);
  });
  return slices;
}

}  // namespace octet::store
