#include "octet/ops/attention_sinks.h"

#include "checks.h"
#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {
namespace {

bool fits(const ConstMatrix& out, const Heads& heads) {
  return is_matrix(out) && heads.q_heads > 0 && heads.head_dim > 0 &&
         out.cols == heads.q_heads * heads.head_dim;
}

}  // namespace

void attention_sinks(Stream& stream, const AttentionSinksArgs& args) {
  check(fits(args.out, args.heads), "attention_sinks: out is [tokens, q_heads * head_dim] T");
  if (args.out.rows == 0) return;
  check(args.sinks != nullptr && args.lse != nullptr, "attention_sinks: there are sinks and an lse");
  OCTET_DISPATCH(stream, attention_sinks, args);
}

void attention_sinks_backward(Stream& stream, const AttentionSinksBackwardArgs& args) {
  check(fits(args.out, args.heads) && is_matrix(args.d_out) && same_form(args.out, args.d_out),
        "attention_sinks_backward: out and d_out are [tokens, q_heads * head_dim] T");
  if (args.out.rows == 0) return;
  check(args.sinks != nullptr && args.lse != nullptr && args.d_sinks != nullptr,
        "attention_sinks_backward: there are sinks, their gradient and an lse");
  check(args.workspace.bytes >= attention_sinks_workspace(stream.device(), args.heads, args.out.rows),
        "attention_sinks_backward: the workspace holds attention_sinks_workspace bytes");
  OCTET_DISPATCH(stream, attention_sinks_backward, args);
}

std::size_t attention_sinks_workspace(const Device& device, const Heads& heads, std::int64_t tokens) {
  if (device.stands_for() != DeviceKind::cuda) return 0;
  const std::int64_t parts = (tokens + kSinkTokens - 1) / kSinkTokens;
  return static_cast<std::size_t>(parts * heads.q_heads) * sizeof(double);
}

}  // namespace octet::ops
