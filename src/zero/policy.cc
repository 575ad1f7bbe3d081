#include <cmath>
#include <string>

#include "octet/base/error.h"
#include "octet/zero/options.h"

namespace octet::zero {

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
  optim::check_options(options.adamw);
  const bool many = world > 1;
  return {.shard_state = many && options.stage >= 1,
          .shard_gradients = many && options.stage >= 2,
          .shard_parameters = many && options.stage >= 3,
          .reduce_each = many && (options.deterministic || options.stage >= 2)};
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

}  // namespace octet::zero
