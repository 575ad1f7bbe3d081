#include "octet/store/placement.h"

#include <algorithm>
#include <cmath>

#include "octet/base/error.h"
#include "segments.h"

namespace octet::store {
namespace {

// The configuration reader reports incompatible options to users (src/config/rules.cc). These checks cover
// the assumptions of the store's code.
void check_storage(const Options& options) {
  const auto known = [](DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; };
  const Storage& s = options.storage;
  check(known(s.parameters) && known(s.gradients) && (known(s.moments) || s.moments == DType::u8),
        "states are stored in f32 or bf16, moments in 8 bits too");
  check(s.parameters != DType::bf16 || options.recipe.compute == DType::bf16,
        "parameters in bf16 need bf16 as compute dtype");
  check(s.gradients != DType::bf16 || s.parameters == DType::bf16,
        "gradients are stored in bf16 where parameters are");
}

void check_strict(const Options& options) {
  check(options.wire == comm::Wire::f32 && options.gather_wire == comm::Wire::f32 &&
            options.storage.gradients == DType::f32 && options.recipe.kind != precision::RecipeKind::delayed,
        "strict bits need fp32 wires and gradients, and no delayed scales");
  check(options.micro_batches >= 1, "a strict step has at least one micro-batch");
}

/// Checks the assumptions about sharding groups. src/config/rules.cc and runtime report them to users.
void check_groups(const Options& options, int world) {
  if (options.group == 0) return;
  check(options.group > 0 && world % options.group == 0, "a sharding group divides the ranks");
  check(options.stage > 0, "groups shard state, and stage 0 shards none");
  check(!options.error_feedback, "sharding groups keep no rounding errors");
  check(keeps_order(options, options.group, world),
        "the gradients of a group form a node of the strict tree");
}

}  // namespace

bool keeps_order(const Options& options, std::int64_t ranks, int world) {
  const std::int64_t leaves = ranks * options.micro_batches;
  return !options.strict || ranks == 1 || ranks == world || (leaves & (leaves - 1)) == 0;
}

int shards_of(const Options& options, int world) {
  if (options.group == 0) return world;
  check(options.group > 0 && world % options.group == 0, "a sharding group divides the ranks");
  return options.group;
}

bool has_replicas(const Options& options, int world) {
  const int shards = shards_of(options, world);
  return shards > 1 && shards < world;
}

comm::Mesh group_mesh(const Options& options, int world) {
  const int shards = shards_of(options, world);
  return {world, {{.name = kReplicaAxis, .size = world / shards}, {.name = kShardAxis, .size = shards}}};
}

Policy policy_of(const Options& options, int world) {
  check(options.stage >= 0 && options.stage <= 3, "the ZeRO stage is 0, 1, 2 or 3");
  check_groups(options, world);
  check(std::isfinite(options.max_grad_norm) && options.max_grad_norm >= 0,
        "the limit of the gradient norm is finite, and 0 for none");
  if (options.strict) check_strict(options);
  optim::check_options(options.adamw);
  check_storage(options);
  const bool many = world > 1;
  const bool narrow = options.storage.gradients != DType::f32;
  const int stage = shards_of(options, world) > 1 ? options.stage : 0;
  return {.shard_state = stage >= 1,
          .shard_gradients = stage >= 2,
          .shard_parameters = stage >= 3,
          .reduce_each = !options.strict && (stage >= 2 || (options.deterministic && (many || narrow))),
          .tree = options.strict};
}

namespace {

bool several_nodes_of_several(const comm::Place& place) {
  return place.nodes > 1 && place.nodes < place.size;
}

}  // namespace

bool gathers_hierarchically(const Options& options, const comm::Place& place) {
  return options.hierarchical != Hierarchical::off && several_nodes_of_several(place);
}

bool reduces_hierarchically(const Options& options, const comm::Place& place, comm::Wire wire) {
  if (options.hierarchical == Hierarchical::automatic)
    return wire != comm::Wire::f32 && several_nodes_of_several(place);
  return options.hierarchical == Hierarchical::on;
}

bool reduces_group_hierarchically(const Options& options, const comm::Place& place, comm::Wire wire) {
  if (options.hierarchical == Hierarchical::automatic && wire != comm::Wire::f32) return true;
  return reduces_hierarchically(options, place, wire);
}

namespace {

Format format_of(const model::SegmentSpec& spec, const precision::Recipe& recipe) {
  if (spec.kind == model::ParameterKind::vector) return Format::f32;
  // Weights with block scaling are cast to FP8 when they are read.
  if (spec.fp8 && recipe.fp8() && !recipe.blocks()) return Format::fp8;
  return recipe.compute == DType::bf16 ? Format::bf16 : Format::f32;
}

DType dtype_of(Format format, const precision::Recipe& recipe) {
  if (format == Format::fp8) return recipe.forward_format;
  return format == Format::bf16 ? DType::bf16 : DType::f32;
}

const char* name_of(Format format) {
  constexpr const char* kNames[] = {"fp32", "bf16", "FP8", "NF4"};
  return kNames[static_cast<int>(format)];
}

[[noreturn]] void refuse(const std::string& what, const std::string& expected, const std::string& found,
                         const std::string& where) {
  throw Error({.what = what,
               .expected = expected,
               .found = found,
               .where = where,
               .fix = "leave it out",
               .code = ExitCode::usage});
}

/// Whether the weight files have codes of at least one tensor of the segment.
bool quantised(const model::SegmentSpec& spec, const Nf4Weights& how) {
  return std::ranges::any_of(spec.tensors, [&](const model::TensorSpec& tensor) {
    return std::ranges::any_of(
        tensor.parts, [&](const model::NamedPart& part) { return !how.unquantised.contains(part.name); });
  });
}

/// Returns the storage format of fixed weights that GEMMs read in `row.format`.
Format fixed_format(const model::SegmentSpec& spec, const Placement& row, const FixedWeights& fixed) {
  if (spec.kind == model::ParameterKind::vector || !fixed.format || *fixed.format == row.format) {
    return row.format;
  }
  if (*fixed.format == Format::nf4) return spec.fp8 && quantised(spec, fixed.nf4) ? Format::nf4 : row.format;
  refuse("weights that are decoded before their GEMMs are built only in NF4",
         std::string(name_of(row.format)) + ", which GEMMs read, or NF4", name_of(*fixed.format), spec.name);
}

/// Scales of 8-bit moments must not cover experts of two ranks.
void require_whole_blocks(const model::SegmentSpec& spec) {
  for (const model::TensorSpec& tensor : spec.tensors) {
    if (tensor.in_all == 0 || tensor.count() % model::kTensorAlignment == 0) continue;
    throw Error(
        {.what = "8-bit moments of experts that are split among ranks need whole blocks",
         .expected = "a multiple of " + std::to_string(model::kTensorAlignment) + " elements on each rank",
         .found = std::to_string(tensor.count()),
         .where = tensor.name,
         .fix = "set optim_dtype: fp32 or bf16, or expert_parallel_size: 1",
         .code = ExitCode::usage});
  }
}

}  // namespace

Placements placements_of(const model::ParameterLayout& layout, const Options& options, int world,
                         int same_experts) {
  const Policy policy = policy_of(options, world);
  check(!options.recipe.rows() || (!options.training && options.fixed.format != Format::nf4),
        "scales of rows are only for generation with weights in FP8");
  Placements table;
  for (const model::GroupSpec& group : layout.groups) {
    auto& rows = table.emplace_back();
    for (const model::SegmentSpec& spec : group.segments) {
      Placement& row = rows.emplace_back();
      const bool shared = !spec.split_experts || same_experts > 1;
      const auto cut = [shared](bool yes) { return yes && shared ? Axis::data : Axis::none; };
      row.role = !options.training ? Role::inference : spec.trainable ? Role::trained : Role::frozen;
      row.format = format_of(spec, options.recipe);
      row.weights = dtype_of(row.format, options.recipe);
      row.axis = cut(policy.shard_parameters);
      if (!row.trained()) {
        row.format = fixed_format(spec, row, options.fixed);
        continue;
      }
      row.state_axis = cut(policy.shard_state);
      row.gradient_axis = cut(policy.shard_gradients);
      row.state_home = options.state_home;
      // Vectors keep the fp32 defaults.
      if (spec.kind == model::ParameterKind::vector) continue;
      row.master = options.storage.parameters;
      row.gradient = options.storage.gradients;
      row.moments = options.storage.moments;
      if (row.moments == DType::u8) require_whole_blocks(spec);
    }
  }
  return table;
}

}  // namespace octet::store
