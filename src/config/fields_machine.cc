// Keys of precision, memory, sharding and communication.
#include "table.h"

namespace octet::config {
namespace {

void add_precision(Table& t) {
  t.group("Precision");
  t.used("bf16", &Config::bf16,
         "Compute in bfloat16. With fp8 it is the format of all that is not an FP8 operand; false is fp32.")
      .decides_numbers();
  t.used("pure_bf16", &Config::pure_bf16,
         "bf16, and parameters, gradients and moments stored in bfloat16 (param_dtype, grad_dtype, "
         "optim_dtype).")
      .decides_numbers();
  t.used("fp8", &Config::fp8, "Multiply the linear layers of the blocks in FP8.").decides_numbers();
  t.used("fp8_backend", &Config::fp8_backend,
         "Accepted for LLaMA-Factory's sake: every value means the FP8 core of this program.")
      .one_of({"auto", "te", "torchao", "msamp", "native"});
  t.used("fp8_recipe", &Config::fp8_recipe,
         "How scales are found: delayed from a history of maxima, current from the tensor itself, block from "
         "1 x 128 elements (weights: 128 x 128) with E4M3 throughout.")
      .one_of({"delayed", "current", "block"})
      .decides_numbers();
  t.used("fp8_format", &Config::fp8_format,
         "hybrid: E4M3 forward and E5M2 for gradients; e4m3: E4M3 everywhere.")
      .one_of({"hybrid", "e4m3"})
      .decides_numbers();
  t.used("fp8_amax_history_len", &Config::fp8_amax_history_len, "Length of the history of delayed scaling.")
      .range(1, 65536)
      .decides_numbers();
  t.used("fp8_amax_compute_algo", &Config::fp8_amax_compute_algo,
         "Which value of the history sets the scale.")
      .one_of({"max", "most_recent"})
      .decides_numbers();
  t.used("fp8_margin", &Config::fp8_margin, "Delayed scales leave this many powers of two of head-room.")
      .range(0, 15)
      .decides_numbers();
  t.used("fp8_scale_granularity", &Config::fp8_scale_granularity,
         "Whether q, k and v (gate and up) share one scale (fused: one GEMM, fastest on GPUs) or keep a "
         "scale "
         "each (tensor: more exact); auto is tensor with current scaling and fused with delayed.")
      .one_of({"auto", "fused", "tensor"})
      .decides_numbers();
  t.used("fp8_fast_accumulation", &Config::fp8_fast_accumulation,
         "Which FP8 GEMMs keep about 14 bits of their partial sums on a GPU, which is faster than sums in "
         "fp32. forward: those of the forward pass; all: those of gradients too. Not with fp8_recipe: block.")
      .one_of({"forward", "all"})
      .decides_numbers();
  t.used(
       "fp8_fallback", &Config::fp8_fallback,
       "What becomes of a run where a GEMM that fp8: true asks for is not multiplied in FP8 (sizes that "
       "are "
       "no multiple of 16, blocks that the library refuses) but decoded into bf16, which is slower. warn: it "
       "is "
       "told once for each kind and reason; error: the run ends. A run in which no GEMM is in FP8 ends in "
       "any case.")
      .one_of({"warn", "error"});
  t.used("fp8_statistics", &Config::fp8_statistics,
         "What rows of the log tell of the casts to FP8 (amax, scale, shares of values that were saturated "
         "and "
         "that became zero): layers, of every layer; worst, of the layer that lost most; none.")
      .one_of({"layers", "worst", "none"});
}

void add_storage(Table& t) {
  t.used(
       "param_dtype", &Config::param_dtype,
       "Storage of the master parameters of matrices; bf16 (with bf16: true) rounds stochastically at each "
       "update. Norms and biases, their gradients and moments are always fp32. auto, here and in the next "
       "two "
       "keys: fp32 if the run fits the device, with recomputation if recompute leaves that open; else, with "
       "bf16: true, bf16 in all three; else moments in int8. What was taken is told at the start and stays "
       "when the run is resumed; adapters, bench and "
       "probe "
       "take fp32.")
      .one_of({"auto", "fp32", "bf16"})
      .decides_numbers();
  t.used("grad_dtype", &Config::grad_dtype,
         "Storage of the gradients of matrices; bf16 needs param_dtype: bf16. With deterministic: true their "
         "sums are kept in fp32 beside them.")
      .one_of({"auto", "fp32", "bf16"})
      .decides_numbers();
  t.used("optim_dtype", &Config::optim_dtype,
         "Storage of the optimizer's moments of matrices, stochastically rounded below fp32; int8: blocks of "
         "128 bytes (of floating point) with a scale.")
      .one_of({"auto", "fp32", "bf16", "int8"})
      .decides_numbers();
}

void add_sharding(Table& t) {
  t.group("Devices and communication");
  t.used("device", &Config::device, "Where the program computes; auto takes a CUDA device when there is one.")
      .one_of({"auto", "cpu", "cuda"});
  t.used("use_cpu", &Config::use_cpu, "true means device: cpu.");
  t.used("zero_stage", &Config::zero_stage,
         "What the ranks share out: 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters.")
      .one_of({"0", "1", "2", "3"});
  t.used("overlap_comm", &Config::overlap_comm,
         "Communicate while computing; the results do not depend on it. Ranks that share a node and have one "
         "core each send their messages while they wait, as with false: their cores have nothing to hide "
         "them behind.");
  t.used(
       "gpu_transport", &Config::gpu_transport,
       "Who carries bytes between GPUs: peer (copies into each other's memory, inside a host), nccl, or host "
       "(pinned memory and MPI, anywhere). auto takes the fastest that works; the results are the same, "
       "unless NCCL sums as well (gpu_sums).")
      .one_of({"auto", "peer", "nccl", "host"});
  t.used("gpu_sums", &Config::gpu_sums,
         "Who sums gradients between GPUs: ordered (kernels of this program, in rank order, so that the bits "
         "depend on nobody who carries), or nccl (NCCL, in an order of its own and on multiprocessors; bf16 "
         "is rounded to bf16 at every rank; only what travels as it lies). nccl excludes deterministic: true "
         "and "
         "strict. auto: nccl for fp32 where NCCL carries all reductions and deterministic is false (on GPUs: "
         "auto too), else ordered.")
      .one_of({"auto", "ordered", "nccl"});
  t.used(
       "reduce_dtype", &Config::reduce_dtype,
       "What gradients of matrices travel as (fp8, int8: blocks of 128 with a scale); they are summed in "
       "fp32 whatever it is. Vectors and small groups travel in fp32. Narrow formats are for slow networks: "
       "between GPUs of one host that NVLink joins messages hide behind the step anyway.")
      .one_of({"fp32", "bf16", "fp8", "int8"})
      .decides_numbers();
  t.used("error_feedback", &Config::error_feedback,
         "Keep on every rank what reduce_dtype lost of its gradients (2 bytes per parameter, whole at every "
         "stage) and add it to the next reduction. Checkpoints hold it; another number of ranks begins "
         "again without.")
      .decides_numbers();
  t.used("gather_dtype", &Config::gather_dtype,
         "What parameters of matrices travel as at stages 1 to 3; compute is the format that the matrix "
         "GEMMs read. bf16 and fp8 (blocks of 128 with a scale) matter where that is wider: all ranks then "
         "compute with the values that travelled.")
      .one_of({"compute", "bf16", "fp8"})
      .decides_numbers();
  t.used(
       "hierarchical_comm", &Config::hierarchical_comm,
       "Sum inside a node first, in fp32, and send only these sums between nodes, as reduce_dtype says; send "
       "gathered slices to every node once. auto: among several nodes of several ranks, for gathers and for "
       "reductions that are not fp32. true: for all. One node: then nothing is compressed.")
      .one_of({"auto", "true", "false"})
      .decides_numbers();
  t.used("deterministic", &Config::deterministic,
         "true: the same bits at every stage, with overlap or without; auto is true on the CPU and false on "
         "CUDA. strict: also on any number of ranks that share the same global batch in the same "
         "micro-batches; a rank then keeps whole gradients, one more for each doubling of its micro-batches. "
         "Answers that are sampled beside the model then have the log-probabilities that training computes.")
      .one_of({"auto", "true", "false", "strict"})
      .decides_numbers();
  t.used("full_determinism", &Config::full_determinism,
         "true means deterministic: true: every run of the same configuration gives the same bits.");
  t.used("ddp_timeout", &Config::ddp_timeout, "Seconds after which a rank that waits for others gives up.")
      .range(1, 1e12);
  t.used("deepspeed", &Config::deepspeed,
         "A DeepSpeed JSON (path or map); its keys are translated into these.");
}

void add_memory(Table& t) {
  t.group("Memory");
  t.used(
       "recompute", &Config::recompute_requested,
       "What backward computes again instead of keeping it: nothing; norms: outputs of norms and of the "
       "gated "
       "activation; qkv: queries, keys and values too; full: all of a block but its input; auto: the least "
       "that makes the run fit the device's memory. null: as gradient_checkpointing says; if no key says it, "
       "none if the run then fits the device's memory, else auto.")
      .one_of({"none", "norms", "qkv", "full", "auto"});
  t.used("gradient_checkpointing", &Config::gradient_checkpointing, "true means recompute: full.");
  t.used("disable_gradient_checkpointing", &Config::disable_gradient_checkpointing,
         "true means recompute: none.");
  t.used(
       "fp8_transposed_weights", &Config::fp8_transposed_weights,
       "FP8 weights as their input gradients read them on a GPU. keep: made once per step, one byte more per "
       "weight; at_use: made before each use, for one block at a time; auto: kept if the run then fits the "
       "device's memory. The bits are the same.")
      .one_of({"keep", "at_use", "auto"});
  t.used(
      "optim_state_cpu_offload", &Config::optim_state_cpu_offload,
      "Keep the optimizer's state (moments, and masters beside bf16 or FP8 weights) in the host's pinned "
      "memory; an update brings it to the GPU and back, which takes as long as the bytes pass the link, and "
      "gives the same bits. On a CPU it lies there anyway.");
}

}  // namespace

void add_machine_fields(Table& table) {
  add_precision(table);
  add_storage(table);
  add_sharding(table);
  add_memory(table);
}

}  // namespace octet::config
