// Keys of precision, memory, sharding and communication.
#include "table.h"

namespace octet::config {
namespace {

void add_precision(Table& t) {
  t.group("Precision");
  t.used("bf16", &Config::bf16, "Compute in bfloat16, except for FP8 operands with fp8. false: fp32.")
      .decides_numbers();
  t.used("pure_bf16", &Config::pure_bf16,
         "bf16, with parameters, gradients and moments stored in bfloat16 (param_dtype, grad_dtype, "
         "optim_dtype).")
      .decides_numbers();
  t.used("fp8", &Config::fp8, "Compute the GEMMs of the linear layers of the blocks in FP8.")
      .decides_numbers();
  t.used("fp8_backend", &Config::fp8_backend,
         "Accepted for LLaMA-Factory: every value means the FP8 code of this program.")
      .one_of({"auto", "te", "torchao", "msamp", "native"});
  t.used("fp8_recipe", &Config::fp8_recipe,
         "Source of the scales. delayed: a history of amax. current: the tensor itself. block: 1 x 128 "
         "elements (weights: 128 x 128), all in E4M3.")
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
         "fused: q, k and v (gate and up) share a scale and one GEMM, fastest on GPUs. tensor: one scale "
         "each, more exact. auto: tensor with current scaling, fused with delayed.")
      .one_of({"auto", "fused", "tensor"})
      .decides_numbers();
  t.used("fp8_fast_accumulation", &Config::fp8_fast_accumulation,
         "FP8 GEMMs that keep about 14 bits of their partial sums on a GPU, faster than fp32 sums. forward: "
         "in the forward pass; all: also for gradients. Not with fp8_recipe: block.")
      .one_of({"forward", "all"})
      .decides_numbers();
  t.used("fp8_fallback", &Config::fp8_fallback,
         "If a GEMM cannot run in FP8 and runs decoded in bf16, which is slower. warn: one warning per kind "
         "and reason. error: the run ends. A run without any FP8 GEMM always ends.")
      .details("Reasons are sizes that are no multiple of 16, and blocks that the library refuses.")
      .one_of({"warn", "error"});
  t.used("fp8_statistics", &Config::fp8_statistics,
         "Statistics of FP8 casts in log rows (amax, scale, shares that were saturated or became zero): of "
         "every layer (layers), of the layer that lost most (worst), or none.")
      .one_of({"layers", "worst", "none"});
}

void add_storage(Table& t) {
  t.used("param_dtype", &Config::param_dtype,
         "Storage of master parameters of matrices; bf16 (with bf16: true) rounds stochastically at each "
         "update. Norms and biases are always fp32.")
      .details(
          "auto, also for grad_dtype and optim_dtype: fp32 if the run fits the device, with recomputation if "
          "recompute allows it. Otherwise bf16 in all three with bf16: true, else moments in int8. The start "
          "logs the choice, and a resumed run keeps it. Adapters, bench and probe use fp32. Gradients and "
          "moments of norms and biases are fp32 too.")
      .one_of({"auto", "fp32", "bf16"})
      .decides_numbers();
  t.used("grad_dtype", &Config::grad_dtype,
         "Storage of the gradients of matrices; bf16 needs param_dtype: bf16. deterministic: true also keeps "
         "their sums in fp32.")
      .one_of({"auto", "fp32", "bf16"})
      .decides_numbers();
  t.used("optim_dtype", &Config::optim_dtype,
         "Storage of the moments of matrices, stochastically rounded below fp32. int8: blocks of 128 bytes "
         "(8-bit floating point) with a scale.")
      .one_of({"auto", "fp32", "bf16", "int8"})
      .decides_numbers();
}

void add_sharding(Table& t) {
  t.group("Devices and communication");
  t.used("device", &Config::device, "Device of the computation; auto: a CUDA device if there is one.")
      .one_of({"auto", "cpu", "cuda"});
  t.used("use_cpu", &Config::use_cpu, "true means device: cpu.");
  t.used("zero_stage", &Config::zero_stage,
         "States that are sharded over the ranks: 0 none, 1 optimizer state, 2 also gradients, 3 also "
         "parameters.")
      .one_of({"0", "1", "2", "3"});
  t.used("zero_group_size", &Config::zero_group_size,
         "Ranks of a sharding group, at stages 1 to 3: auto, node (the ranks of a host) or a number. Every "
         "group holds a replica of the shards. null: all ranks form one group.")
      .details(
          "Gathers and sums of micro-batches run inside a group. Once per step, the sums of the groups are "
          "added. A number divides the number of ranks. node needs hosts with equal numbers of adjacent "
          "ranks. auto: the ranks of a host if the states fit, else the fewest hosts with which they fit, "
          "else all ranks. Groups change the order of sums, except with deterministic: strict. strict needs "
          "2, 4, 8, … micro-batches in a group and step, or a group of one or of all ranks.");
  t.used("expert_parallel_size", &Config::expert_parallel_size,
         "Ranks among which the experts of every mixture are split. Each rank trains its own micro-batches, "
         "and sends tokens to the ranks of their experts.")
      .details(
          "It divides the number of ranks and the number of experts. zero_stage shards experts over the "
          "ranks with the same experts, and everything else over all ranks.")
      .range(1, 1 << 20);
  t.used("overlap_comm", &Config::overlap_comm,
         "Overlap communication and computation. Results do not depend on it. Ranks with one core each on a "
         "shared node send while they wait, as with false.");
  t.used("gpu_transport", &Config::gpu_transport,
         "Carrier between GPUs: peer (direct copies inside a host), nccl, or host (pinned memory and MPI). "
         "auto: the fastest that works. Results are the same, unless NCCL also sums (gpu_sums).")
      .one_of({"auto", "peer", "nccl", "host"});
  t.used("gpu_sums", &Config::gpu_sums,
         "Sums of gradients between GPUs: ordered (kernels of this program, in rank order) or nccl "
         "(unspecified order; excludes deterministic: true and strict).")
      .details(
          "ordered gives bits that do not depend on the carrier. nccl sums on multiprocessors, rounds bf16 "
          "to bf16 at every rank, and takes uncompressed values only. auto: nccl for fp32 if NCCL carries "
          "all reductions and deterministic is false (on GPUs auto too), else ordered.")
      .one_of({"auto", "ordered", "nccl"});
  t.used("reduce_dtype", &Config::reduce_dtype,
         "Wire format of the gradients of matrices (fp8, int8: blocks of 128 with a scale); sums are in "
         "fp32. Vectors and small groups use fp32. Narrow formats are for slow networks.")
      .details("Between GPUs of one host with NVLink, messages of any format overlap the step.")
      .one_of({"fp32", "bf16", "fp8", "int8"})
      .decides_numbers();
  t.used("error_feedback", &Config::error_feedback,
         "Keep the rounding error of reduce_dtype on every rank (2 bytes per parameter at every stage) and "
         "add it to the next reduction. Checkpoints store it.")
      .details("Another number of ranks starts without the stored error.")
      .decides_numbers();
  t.used("gather_dtype", &Config::gather_dtype,
         "Wire format of the parameters of matrices at stages 1 to 3. compute: the format of the GEMMs. With "
         "bf16 and fp8 (blocks of 128 with a scale) all ranks compute with the sent values.")
      .one_of({"compute", "bf16", "fp8"})
      .decides_numbers();
  t.used("exchange_dtype", &Config::exchange_dtype,
         "Wire format of rows for experts of other ranks, and of their gradients (expert_parallel_size). "
         "compute: the compute dtype. fp8: E4M3 in blocks of 128 with a scale, half of the bytes of bf16.")
      .details(
          "Experts compute with the sent values, also a rank's own. Weights of rows are fp32. Results then "
          "differ from expert_parallel_size: 1.")
      .one_of({"compute", "bf16", "fp8"})
      .decides_numbers();
  t.used("exchange_rows_factor", &Config::exchange_rows_factor,
         "Rows of tokens for its experts that a rank has room for in a micro-batch, as a multiple of an even "
         "share (expert_parallel_size); null: room for every case.")
      .details("A micro-batch with more rows ends the run. A message names the factor that it needs.")
      .range(1, 1e6);
  t.used("hierarchical_comm", &Config::hierarchical_comm,
         "Sum inside a node in fp32 first, and send only these sums between nodes. auto: with several nodes "
         "of several ranks, for gathers and for reductions that are not fp32. true: always.")
      .details(
          "Sums between nodes use reduce_dtype. Gathered slices are sent to every node once. With one node "
          "nothing is compressed.")
      .one_of({"auto", "true", "false"})
      .decides_numbers();
  t.used("deterministic", &Config::deterministic,
         "true: the same bits at every stage, with or without overlap. strict: also with any number of "
         "ranks. auto: true on the CPU, false on CUDA.")
      .details(
          "strict needs the same global batch in the same micro-batches. Each rank then keeps whole "
          "gradients, one more for each doubling of its micro-batches. Answers that are sampled during "
          "training have the log-probabilities of training.")
      .one_of({"auto", "true", "false", "strict"})
      .decides_numbers();
  t.used("full_determinism", &Config::full_determinism,
         "true means deterministic: true: every run of the same configuration gives the same bits.");
  t.used("ddp_timeout", &Config::ddp_timeout, "Seconds after which a waiting rank gives up.").range(1, 1e12);
  t.used("deepspeed", &Config::deepspeed,
         "A DeepSpeed JSON (path or map); its keys are translated into these keys.");
}

void add_memory(Table& t) {
  t.group("Memory");
  t.used("recompute", &Config::recompute_requested,
         "Values that backward recomputes: none, norms (outputs of norms and of the gated activation), qkv "
         "(also queries, keys and values), full (a block except its input), or auto.")
      .details(
          "auto: the least that makes the run fit the device. null: gradient_checkpointing decides; if no "
          "key decides, none if the run fits the device, else auto.")
      .one_of({"none", "norms", "qkv", "full", "auto"});
  t.used("gradient_checkpointing", &Config::gradient_checkpointing, "true means recompute: full.");
  t.used("disable_gradient_checkpointing", &Config::disable_gradient_checkpointing,
         "true means recompute: none.");
  t.used("fp8_transposed_weights", &Config::fp8_transposed_weights,
         "Transposed FP8 weights for input gradients on a GPU. keep: once per step, one byte more per "
         "weight. at_use: block by block. auto: keep if it fits. The bits are the same.")
      .one_of({"keep", "at_use", "auto"});
  t.used("optim_state_cpu_offload", &Config::optim_state_cpu_offload,
         "Store moments, and masters of bf16 or FP8 weights, in pinned host memory. Each update copies them "
         "to the GPU and back, with the same bits. No effect on a CPU.")
      .details("An update takes as long as the bytes need on the link.");
}

}  // namespace

void add_machine_fields(Table& table) {
  add_precision(table);
  add_storage(table);
  add_sharding(table);
  add_memory(table);
}

}  // namespace octet::config
