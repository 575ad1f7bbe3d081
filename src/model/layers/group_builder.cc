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

MatrixHandle::MatrixHandle(TensorPlace place, const TensorSpec& tensor, bool trained)
    : place_(place),
      rows_(tensor.rows),
      cols_(tensor.cols),
      gradient_by_gemm_(tensor.gradient_by_gemm),
      trained_(trained) {
  // The runs of experts are not columns of one output.
  if (tensor.scaled_rows > 0) return;
  for (const NamedPart& part : tensor.parts) part_rows_.push_back(part.count / tensor.cols);
}

std::vector<std::int64_t> MatrixHandle::scaled_rows(bool each_part) const {
  return each_part && part_rows_.size() > 1 ? part_rows_ : std::vector<std::int64_t>();
}

Part fused(const std::string& name, const std::vector<Part>& parts) {
  Part all{.name = name};
  for (const Part& part : parts) {
    all.rows += part.rows;
    all.runs.push_back({part.rows, part.split});
  }
  return all;
}

GroupBuilder::GroupBuilder(std::string name, NamePrefixes prefixes,
                           std::initializer_list<ParameterKind> kinds, const Tuning& tuning,
                           const Share& share)
    : prefixes_(std::move(prefixes)),
      tuning_(tuning),
      share_(share),
      group_{.name = std::move(name), .segments = {}} {
  for (const ParameterKind kind : kinds) {
    const char* suffix = kind == ParameterKind::matrix ? " matrices" : " vectors";
    group_.segments.push_back(
        {.name = group_.name + suffix, .kind = kind, .trainable = !tuning_.freezes(), .tensors = {}});
  }
}

SegmentSpec& GroupBuilder::segment_of(ParameterKind kind, bool trained) {
  const auto first = std::ranges::find(group_.segments, kind, &SegmentSpec::kind);
  check(first != group_.segments.end(), "a group has a segment for each tensor that is declared");
  if (first->tensors.empty()) first->trainable = trained;
  if (first->trainable == trained) return *first;
  return segment_named(first->name + (trained ? ", trained" : ", frozen"), kind, trained);
}

SegmentSpec& GroupBuilder::segment_named(const std::string& name, ParameterKind kind, bool trained) {
  const auto found = std::ranges::find(group_.segments, name, &SegmentSpec::name);
  if (found != group_.segments.end()) return *found;
  return group_.segments.emplace_back(
      SegmentSpec{.name = name, .kind = kind, .trainable = trained, .tensors = {}});
}

TensorPlace GroupBuilder::add(SegmentSpec& segment, TensorSpec tensor) {
  segment.tensors.push_back(std::move(tensor));
  return {static_cast<std::size_t>(&segment - group_.segments.data()), segment.tensors.size() - 1};
}

bool GroupBuilder::trains(const std::vector<Part>& parts) const {
  const auto trained = [&](const Part& part) { return tuning_.trains(prefixes_.hugging_face + part.name); };
  const bool any = std::ranges::any_of(parts, trained);
  check(!any || std::ranges::all_of(parts, trained), "a stored tensor is trained as a whole");
  return any;
}

const AdapterShape* GroupBuilder::adapter(const std::string& module) const {
  const auto found = tuning_.modules.find(prefixes_.hugging_face + module);
  return tuning_.adapters && found != tuning_.modules.end() ? &found->second : nullptr;
}

SegmentSpec& GroupBuilder::adapter_segment(const std::string& suffix, ParameterKind kind) {
  const bool split = of_experts_ && share_.splits_experts();
  SegmentSpec& segment = segment_named(group_.name + (split ? " experts'" : "") + suffix, kind, true);
  segment.split_experts = split;
  return segment;
}

MatrixHandle GroupBuilder::add_adapter(TensorSpec tensor) {
  tensor.gradient_by_gemm = true;
  const TensorPlace place = add(adapter_segment(" adapters", ParameterKind::matrix), tensor);
  return {place, tensor, true};
}

MatrixHandle GroupBuilder::adapter_inputs(const std::string& name, const std::vector<Part>& ranks,
                                          std::int64_t inputs) {
  TensorSpec t{
      .name = prefixes_.stored + name + ".lora_A", .cols = inputs, .parts = {}, .init = InitRule::uniform};
  for (const Part& part : ranks) {
    t.parts.push_back({.name = kAdapterPrefix + full_name(part.name) + ".lora_A.weight",
                       .shape = {part.rows, inputs},
                       .begin = t.rows * inputs,
                       .count = part.rows * inputs});
    t.rows += part.rows;
  }
  return add_adapter(std::move(t));
}

MatrixHandle GroupBuilder::adapter_outputs(const std::string& module, std::int64_t outputs,
                                           std::int64_t rank) {
  TensorSpec t{.name = prefixes_.stored + module + ".lora_B",
               .rows = outputs,
               .cols = rank,
               .parts = {},
               .init = InitRule::zeros,
               .rate = static_cast<float>(tuning_.output_rate)};
  t.parts.push_back({.name = kAdapterPrefix + full_name(module) + ".lora_B.weight",
                     .shape = {outputs, rank},
                     .count = outputs * rank});
  return add_adapter(std::move(t));
}

VectorHandle GroupBuilder::adapter_magnitude(const std::string& module, std::int64_t rows, double norm) {
  const std::string suffix = ".lora_magnitude_vector";
  // Weight decay applies to it like to matrices, as in trainers with PEFT.
  TensorSpec t{.name = prefixes_.stored + module + suffix,
               .rows = rows,
               .parts = {},
               .init = InitRule::row_norms,
               .init_std = static_cast<float>(norm),
               .rate = static_cast<float>(tuning_.output_rate)};
  t.parts.push_back({.name = kAdapterPrefix + full_name(module) + suffix, .shape = {rows}, .count = rows});
  return {add(adapter_segment(" magnitudes", ParameterKind::vector), std::move(t)), true};
}

void GroupBuilder::append(TensorSpec& tensor, const Part& part, const std::string& name, std::int64_t cols,
                          const SplitRule& columns) const {
  if (!part.runs.empty() && share_.tensor_size > 1) {
    std::int64_t first = 0;
    for (const Part::Run& run : part.runs) {
      Piece rows = piece_of(run.split, run.rows, share_);
      rows.begin += first;
      rows.of = part.rows;
      first += run.rows;
      tensor.parts.push_back({.name = name,
                              .shape = {part.rows, cols},
                              .begin = tensor.rows * tensor.cols,
                              .count = rows.count * tensor.cols,
                              .cut = PartCut{.rows = rows, .cols = piece_of(columns, cols, share_)}});
      tensor.rows += rows.count;
    }
    return;
  }
  const PartCut cut{.rows = piece_of(part.split, part.rows, share_), .cols = piece_of(columns, cols, share_)};
  tensor.parts.push_back({.name = name,
                          .shape = {part.rows, cols},
                          .begin = tensor.rows * tensor.cols,
                          .count = cut.rows.count * tensor.cols});
  if (!cut.rows.whole() || !cut.cols.whole()) tensor.parts.back().cut = cut;
  tensor.rows += cut.rows.count;
}

MatrixHandle GroupBuilder::matrix(const std::string& name, std::int64_t cols, const std::vector<Part>& parts,
                                  const MatrixTraits& traits) {
  TensorSpec t{.name = prefixes_.stored + name,
               .cols = piece_of(traits.columns, cols, share_).count,
               .init = InitRule::normal,
               .init_std = static_cast<float>(traits.init_std),
               .fp8 = traits.fp8,
               .gradient_by_gemm = traits.gradient_by_gemm};
  const bool trained = trains(parts);
  // With adapters, modules that are trained in full have PEFT's names.
  const std::string prefix = trained && tuning_.adapters ? kAdapterPrefix : "";
  for (const Part& part : parts)
    append(t, part, prefix + prefixes_.hugging_face + part.name, cols, traits.columns);
  const bool split = traits.experts > 0 && share_.splits_experts();
  if (traits.experts > 0) t.scaled_rows = t.rows / traits.experts;
  if (split) {
    t.before = share_.expert_rank * t.count();
    t.in_all = share_.expert_size * t.count();
  }
  SegmentSpec& segment = traits.expert ? segment_named(group_.name + (traits.fp8 ? " experts" : " router"),
                                                       ParameterKind::matrix, trained)
                                       : segment_of(ParameterKind::matrix, trained);
  segment.expert = traits.expert;
  segment.split_experts = split;
  const TensorPlace place = add(segment, t);
  return {place, t, trained};
}

TensorSpec GroupBuilder::vector_of(const std::string& name, const std::vector<Part>& parts, InitRule init,
                                   const std::string& prefix) const {
  TensorSpec t{.name = prefixes_.stored + name, .cols = 1, .init = init, .decay = false};
  for (const Part& part : parts) {
    const std::size_t before = t.parts.size();
    append(t, part, prefix + prefixes_.hugging_face + part.name, 1, {});
    const std::vector<std::int64_t> shape = part.shape.empty() ? std::vector{part.rows} : part.shape;
    for (std::size_t i = before; i < t.parts.size(); ++i) t.parts[i].shape = shape;
    // Weight decay applies to convolutions, which have several dimensions in files.
    t.decay = t.decay || shape.size() > 1;
  }
  return t;
}

VectorHandle GroupBuilder::vector(const std::string& name, const std::vector<Part>& parts, InitRule init,
                                  std::int64_t experts, double init_std) {
  const bool trained = trains(parts);
  TensorSpec t = vector_of(name, parts, init, trained && tuning_.adapters ? kAdapterPrefix : "");
  t.init_std = static_cast<float>(init_std);
  if (experts == 0) return {add(segment_of(ParameterKind::vector, trained), std::move(t)), trained};
  SegmentSpec& segment = segment_named(group_.name + " expert biases", ParameterKind::vector, trained);
  segment.split_experts = share_.splits_experts();
  if (segment.split_experts) {
    t.before = share_.expert_rank * t.count();
    t.in_all = share_.expert_size * t.count();
  }
  return {add(segment, std::move(t)), trained};
}

VectorHandle GroupBuilder::constant(const std::string& name, const std::vector<Part>& parts) {
  return add_constant(vector_of(name, parts, InitRule::zeros), parts);
}

VectorHandle GroupBuilder::number(const std::string& name, const std::string& module, double initial,
                                  const std::vector<std::int64_t>& shape) {
  const std::vector<Part> parts = {{module, 1}};
  TensorSpec t = vector_of(name, parts, InitRule::value);
  t.parts.front().shape = shape;
  t.init_std = static_cast<float>(initial);
  return add_constant(std::move(t), parts);
}

VectorHandle GroupBuilder::add_constant(TensorSpec t, const std::vector<Part>& parts) {
  // A trained segment has a gradient for it, which stays 0.
  t.rate = 0;
  const bool among_trained = !tuning_.adapters && trains(parts);
  return {add(segment_of(ParameterKind::vector, among_trained), std::move(t)), false};
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
