#include "cuda/delta/backward.cuh"
#include "kernels.h"

namespace octet::ops::cuda {
namespace {

template <typename T>
void run_backward(Stream& stream, const DeltaRuleBackwardArgs& a) {
  const cudaStream_t on = octet::cuda::native(stream);
  const DeltaWork<T> work = delta_work<T>(a.workspace, a.heads, a.qkv.rows);
  const DeltaVector vector{.qkv = packs(a.qkv),
                           .out = packs(a.d_out),
                           .d_qkv = packs(a.d_qkv),
                           .states = reinterpret_cast<std::uintptr_t>(a.states) % 16 == 0};
  prepare_chunks<T>(on, a.qkv, a.log_decay, a.beta, a.heads, a.documents, work, vector);
  states_backward<T>(on, a, work, vector);
  chunks_backward<T>(on, a, work, vector);
}

}  // namespace

void delta_rule_backward(Stream& stream, const DeltaRuleBackwardArgs& a) {
  if (a.qkv.rows == 0) return;
  with_type(a.qkv.dtype, [&](auto type) { run_backward<decltype(type)>(stream, a); });
}

}  // namespace octet::ops::cuda
