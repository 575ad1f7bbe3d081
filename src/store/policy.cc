#include <cmath>
#include <string>

#include "octet/base/error.h"
#include "octet/store/options.h"

namespace octet::store {
namespace {

void check_storage(const Options& options) {
  const auto refuse = [](const char* what, const char* expected, const char* found, const char* where) {
    throw Error({.what = what,
                 .expected = expected,
                 .found = found,
                 .where = where,
                 .fix = std::string("change ") + where,
                 .code = ExitCode::usage});
  };
  const auto known = [](DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; };
  const Storage& s = options.storage;
  check(known(s.parameters) && known(s.gradients) && (known(s.moments) || s.moments == DType::u8),
        "states are stored in f32 or bf16, moments in 8 bits too");
  if (s.parameters == DType::bf16 && options.recipe.compute != DType::bf16) {
    refuse("parameters cannot be stored in bf16 where fp32 is computed with", "bf16: true", "bf16: false",
           "param_dtype");
  }
  if (s.gradients == DType::bf16 && s.parameters != DType::bf16) {
    refuse("gradients are stored in bf16 only where parameters are", "param_dtype: bf16", "param_dtype: fp32",
           "grad_dtype");
  }
}

void check_strict(const Options& options) {
  const auto refuse = [](const char* what, const char* where, const char* fix) {
    throw Error({.what = what, .where = where, .fix = fix, .code = ExitCode::usage});
  };
  if (options.wire != comm::Wire::f32) {
    refuse("a narrow wire rounds what each rank sends, so that bits depend on the number of ranks",
           "deterministic: strict with reduce_dtype", "set reduce_dtype: fp32, or deterministic: true");
  }
  if (options.recipe.kind == precision::RecipeKind::delayed) {
    refuse("delayed scaling learns from what the ranks computed before, so that bits depend on their number",
           "deterministic: strict with fp8_recipe", "set fp8_recipe: current, or deterministic: true");
  }
  if (options.gather_wire != comm::Wire::f32) {
    refuse("what is gathered in a narrow format is rounded, and a rank that is alone gathers nothing",
           "deterministic: strict with gather_dtype", "set gather_dtype: compute, or deterministic: true");
  }
  if (options.storage.gradients != DType::f32) {
    refuse(
        "gradients in bf16 are rounded before they are summed, in another order on another number of ranks",
        "deterministic: strict with grad_dtype", "set grad_dtype: fp32, or deterministic: true");
  }
  check(options.micro_batches >= 1, "a strict step has at least one micro-batch");
}

}  // namespace

Policy policy_of(const Options& options, int world) {
  if (options.stage < 0 || options.stage > 3) {
    throw Error({.what = "unknown ZeRO stage",
                 .expected = "0, 1, 2 or 3",
                 .found = std::to_string(options.stage),
                 .where = "zero_stage",
                 .fix = "set zero_stage to one of them",
                 .code = ExitCode::usage});
  }
  if (!std::isfinite(options.max_grad_norm) || options.max_grad_norm < 0) {
    throw Error({.what = "the limit of the gradient norm is not usable",
                 .expected = "a finite number of at least 0 (0: no clipping)",
                 .found = std::to_string(options.max_grad_norm),
                 .where = "max_grad_norm",
                 .fix = "correct max_grad_norm",
                 .code = ExitCode::usage});
  }
  if (options.strict) check_strict(options);
  optim::check_options(options.adamw);
  check_storage(options);
  const bool many = world > 1;
  const bool narrow = options.storage.gradients != DType::f32;
  return {.shard_state = many && options.stage >= 1,
          .shard_gradients = many && options.stage >= 2,
          .shard_parameters = many && options.stage >= 3,
          .reduce_each = !options.strict &&
                         ((many && options.stage >= 2) || (options.deterministic && (many || narrow))),
          .tree = options.strict};
}

namespace {

bool several_nodes_of_several(const comm::Place& place) {
  return place.nodes > 1 && place.nodes < place.size;
}

}  // namespace

bool gathers_by_node(const Options& options, const comm::Place& place) {
  return options.by_node != ByNode::off && several_nodes_of_several(place);
}

bool reduces_by_node(const Options& options, const comm::Place& place, comm::Wire wire) {
  if (options.by_node == ByNode::automatic) return wire != comm::Wire::f32 && several_nodes_of_several(place);
  return options.by_node == ByNode::on;
}

}  // namespace octet::store
