#include "layers/group_builder.h"

#include <algorithm>

#include "octet/base/error.h"

namespace octet::model {

const float* VectorHandle::in(const GroupParameters& group) const {
  return declared_ ? static_cast<const float*>(group(place_.segment, place_.tensor).data) : nullptr;
}

float* VectorHandle::in(const GroupGradients& group) const {
  return declared_ ? static_cast<float*>(group.gradients[place_.segment][place_.tensor].data) : nullptr;
}

MatrixHandle::MatrixHandle(TensorPlace place, const TensorSpec& tensor)
    : place_(place),
      rows_(tensor.rows),
      cols_(tensor.cols),
      gradient_by_product_(tensor.gradient_by_product) {
  for (const NamedPart& part : tensor.parts) part_rows_.push_back(part.count / tensor.cols);
}

std::vector<std::int64_t> MatrixHandle::scaled_rows(bool each_part) const {
  return each_part && part_rows_.size() > 1 ? part_rows_ : std::vector<std::int64_t>();
}

GroupBuilder::GroupBuilder(std::string name, NamePrefixes prefixes,
                           std::initializer_list<ParameterKind> kinds, const Tuning& tuning)
    : prefixes_(std::move(prefixes)), tuning_(tuning), group_{.name = std::move(name), .segments = {}} {
  for (const ParameterKind kind : kinds) {
    const char* suffix = kind == ParameterKind::matrix ? " matrices" : " vectors";
    group_.segments.push_back(
        {.name = group_.name + suffix, .kind = kind, .trainable = trains_weights(), .tensors = {}});
  }
}

SegmentSpec& GroupBuilder::segment_of(ParameterKind kind) {
  const auto segment = std::ranges::find(group_.segments, kind, &SegmentSpec::kind);
  check(segment != group_.segments.end(), "a group has a segment for each tensor that is declared");
  return *segment;
}

TensorPlace GroupBuilder::add(SegmentSpec& segment, TensorSpec tensor) {
  segment.tensors.push_back(std::move(tensor));
  return {static_cast<std::size_t>(&segment - group_.segments.data()), segment.tensors.size() - 1};
}

bool GroupBuilder::trained_whole(const Part& part) const {
  const std::string name = prefixes_.hugging_face + part.name;
  return tuning_.adapters && tuning_.whole.contains(name.substr(0, name.rfind('.')));
}

const AdapterShape* GroupBuilder::adapter(const std::string& module) const {
  const auto found = tuning_.modules.find(prefixes_.hugging_face + module);
  return tuning_.adapters && found != tuning_.modules.end() ? &found->second : nullptr;
}

MatrixHandle GroupBuilder::adapter_matrix(const std::string& module, AdapterMatrix which, std::int64_t rows,
                                          std::int64_t cols) {
  const std::string name = group_.name + " adapters";
  if (group_.segments.back().name != name) group_.segments.push_back({.name = name, .tensors = {}});
  const std::string suffix = which == AdapterMatrix::a ? ".lora_A" : ".lora_B";
  TensorSpec t{.name = prefixes_.stored + module + suffix,
               .rows = rows,
               .cols = cols,
               .parts = {},
               .init = which == AdapterMatrix::a ? InitRule::uniform : InitRule::zeros,
               .gradient_by_product = true};
  t.parts.push_back({.name = kAdapterPrefix + prefixes_.hugging_face + module + suffix + ".weight",
                     .shape = {rows, cols},
                     .count = rows * cols});
  const TensorPlace place = add(group_.segments.back(), t);
  return {place, t};
}

MatrixHandle GroupBuilder::matrix(const std::string& name, std::int64_t cols, const std::vector<Part>& parts,
                                  const MatrixTraits& traits) {
  TensorSpec t{.name = prefixes_.stored + name,
               .cols = cols,
               .init = InitRule::normal,
               .init_std = static_cast<float>(traits.init_std),
               .fp8 = traits.fp8,
               .gradient_by_product = traits.gradient_by_product};
  SegmentSpec& segment = segment_of(ParameterKind::matrix);
  for (const Part& part : parts) {
    const bool whole = trained_whole(part);
    check(!whole || (parts.size() == 1 && segment.tensors.empty()),
          "what is trained whole beside adapters has a segment of its own");
    if (whole) segment.trainable = true;
    t.parts.push_back({.name = (whole ? kAdapterPrefix : "") + prefixes_.hugging_face + part.name,
                       .shape = {part.rows, cols},
                       .begin = t.rows * cols,
                       .count = part.rows * cols});
    t.rows += part.rows;
  }
  const TensorPlace place = add(segment, t);
  return {place, t};
}

VectorHandle GroupBuilder::vector(const std::string& name, const std::vector<Part>& parts, InitRule init) {
  TensorSpec t{.name = prefixes_.stored + name, .cols = 1, .init = init, .decay = false};
  for (const Part& part : parts) {
    t.parts.push_back({.name = prefixes_.hugging_face + part.name,
                       .shape = {part.rows},
                       .begin = t.rows,
                       .count = part.rows});
    t.rows += part.rows;
  }
  return VectorHandle(add(segment_of(ParameterKind::vector), std::move(t)));
}

GroupSpec GroupBuilder::finish() && {
  for (SegmentSpec& segment : group_.segments) {
    segment.fp8 = !segment.tensors.empty() && std::ranges::all_of(segment.tensors, &TensorSpec::fp8);
    for (TensorSpec& t : segment.tensors) {
      t.offset = (segment.used + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
      segment.used = t.offset + t.count();
    }
  }
  return std::move(group_);
}

}  // namespace octet::model
