#include "layers/latent.h"

#include <algorithm>

#include "layers/work_list.h"
#include "octet/device/profile.h"

namespace octet::model {

Latent::Latent(GroupBuilder& group, const Architecture& a, const std::string& name, const std::string& module,
               std::int64_t first, const LinearShape& up)
    : first_(first), norm_(group, name, module, up.inputs, a, false), up_(group, up) {
  norm_.set_eps(a.latent.norm_eps);
}

void Latent::set_passes_on(bool passes_on) {
  norm_.set_passes_on(passes_on);
  up_.set_passes_on(norm_.runs_back());
}

void Latent::reserve(BlockBuffers& buffers, const Common& common) {
  norm_.reserve(buffers);
  up_.reserve(buffers, common);
}

std::size_t Latent::workspace(const Device& device, const Common& common) const {
  return std::max(up_.workspace(device, common),
                  common.options.training ? norm_.workspace(device, common) : 0);
}

std::vector<Operation> Latent::operations(std::int64_t tokens, const Repeats& again) const {
  Repeats of_norm = again;
  // Backward also repeats the norm alone, for the input of the GEMM.
  if (runs_back()) {
    ++of_norm[1];
    ++of_norm[2];
  }
  std::vector<Operation> all = norm_.operations(tokens, of_norm);
  append(all, up_.operations(tokens, again));
  return all;
}

void Latent::normalise(const Call& call, const ops::Matrix& all) {
  norm_.forward(call, {.residual = columns(all)}, up_.input().wanted(call, WriteOrder::rows));
  up_.input().written(call, WriteOrder::rows);
}

void Latent::forward(const Call& call, const ops::Matrix& all, const ops::Matrix& out) {
  normalise(call, all);
  up_.forward(call, out);
}

void Latent::backward(const Call& call, const ops::Matrix& all, const ops::Matrix& d_out,
                      const ops::Matrix& d_all) {
  if (!runs_back()) return;
  const auto d_operands = up_.gradient_values_written(call, d_out);
  if (call.common.remakes_inputs()) {
    const ProfileLabel label(call.stream, "recompute");
    normalise(call.again(Readers::backward), all);
  }
  const ops::Matrix d_normed = narrowed(call.common.scratch.wide, call.tokens, up_.weight().cols());
  up_.backward(call, d_out, d_operands, d_normed);
  if (!norm_.runs_back()) return;
  norm_.backward(call, {.dy = d_normed, .x = columns(all), .dx = columns(d_all), .accumulate = false});
}

}  // namespace octet::model
