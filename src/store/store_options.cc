#include "octet/store/store_options.h"

#include <cmath>

#include "octet/base/error.h"

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

}  // namespace

Policy policy_of(const Options& options, int world) {
  check(options.stage >= 0 && options.stage <= 3, "the ZeRO stage is 0, 1, 2 or 3");
  check(std::isfinite(options.max_grad_norm) && options.max_grad_norm >= 0,
        "the limit of the gradient norm is finite, and 0 for none");
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

bool gathers_hierarchically(const Options& options, const comm::Place& place) {
  return options.hierarchical != Hierarchical::off && several_nodes_of_several(place);
}

bool reduces_hierarchically(const Options& options, const comm::Place& place, comm::Wire wire) {
  if (options.hierarchical == Hierarchical::automatic)
    return wire != comm::Wire::f32 && several_nodes_of_several(place);
  return options.hierarchical == Hierarchical::on;
}

}  // namespace octet::store
