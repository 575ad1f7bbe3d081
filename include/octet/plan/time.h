#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "octet/model/architecture.h"
#include "octet/model/transformer.h"
#include "octet/precision/scaling.h"

namespace octet::plan {

/// The best rates of a GPU. The defaults were measured on an H200 with single kernels. A whole step is
/// slower, because the power limit slows it.
struct Rates {
  double bf16 = 750e12;  ///< FLOP/s of large GEMMs
  double fp8 = 1350e12;
  double fp32 = 50e12;
  double attention_forward = 613e12;
  double attention_backward = 480e12;
  double bytes = 4.2e12;   ///< per second, to and from memory
  double host = 55e9;      ///< bytes per second to the host's memory and back, each way
  double launch = 3e-6;    ///< seconds that a kernel takes at least
  double fp8_more = 3e-6;  ///< additional seconds per FP8 GEMM, measured on small models
  int multiprocessors = 132;
  const char* card = "an H200";    ///< name of the card with these rates, for a sentence
  const char* host_link = "PCIe";  ///< name of the link to host memory
  const char* host_source = "as measured over PCIe 5.0";  ///< origin of `host`
};

/// The work of a rank in an optimizer step.
struct Work {
  model::Architecture architecture;
  precision::Recipe recipe;
  model::Recompute recompute = model::Recompute::none;
  bool transposes_at_use = false;  ///< FP8 weights are transposed in every micro-batch
  std::int64_t tokens = 0;         ///< of a micro-batch on a rank
  std::int64_t length = 0;         ///< of a sequence
  std::int64_t micro_batches = 1;
  double optimizer_bytes = 0;  ///< bytes that an update reads and writes in a rank's device memory
  /// Bytes of state in host memory, which an update reads and writes, and the part of them that are masters.
  double host_state_bytes = 0, host_master_bytes = 0;
};

struct TimeRow {
  std::string name;
  double seconds = 0;
};

/// A lower bound of the time of a step. No kernel waits, and messages overlap with compute. Every GEMM runs
/// at the rate of a large GEMM, except if its last wave of tiles does not fill the GPU.
struct Time {
  std::vector<TimeRow> rows;
  double seconds = 0;
  double recompute_seconds = 0;  ///< part of `seconds`
  /// One micro-batch: its forward pass with the loss, and its backward pass with recomputation.
  double forward_seconds = 0, backward_seconds = 0;
};
Time time_of(const Work& work, const Rates& rates = {});
/// Returns the bytes that an update reads over the link to the host. It reads the state once, and the masters
/// again for each kernel that makes FP8 weights from them. Writing back overlaps with the reads.
double bytes_from_host(const Work& work);

/// A link between ranks, and its bytes per second in each direction.
struct Link {
  const char* name;
  double bytes_per_second;
  bool between_hosts;  ///< shared by all ranks of a host; else each rank has its own
};
/// Returns the links, fastest first: NVLink and PCIe inside a host; 3,200, 400, 100, 10 and 1 Gbit/s between
/// hosts.
std::span<const Link> links();
/// Returns the least seconds in which a rank sends `bytes` over a link that `ranks` ranks share.
double message_seconds(double bytes, const Link& link, int ranks);

/// The gain and cost of FP8 for one linear layer of a block, in seconds per micro-batch and layer.
struct Fp8Balance {
  std::string name;  ///< "qkv"
  std::int64_t rows = 0, cols = 0;
  double gain = 0;  ///< time that FP8 saves in its three GEMMs
  /// Time for the FP8 copies of the input and the output gradient, and its share of the copies of the weight.
  double cost = 0;
  bool pays() const { return gain > cost; }
};
/// Returns the balance of each linear layer; empty without an FP8 recipe.
std::vector<Fp8Balance> fp8_balance(const Work& work, const Rates& rates = {});
/// Returns the layers in which FP8 does not pay, with figures, as a sentence without full stop. Empty if FP8
/// pays in all layers.
std::string fp8_warning(const Work& work, const Rates& rates = {});

/// Bytes that a rank sends over one kind of link in a step, by the computation that can hide them.
struct Sending {
  double sums = 0;                         ///< of gradients, during backward passes
  double backward = 0;                     ///< parameters, during all backward passes
  double forward = 0;                      ///< parameters, during forward passes
  double alone = 0;                        ///< while nothing is computed
  int sum_passes = 1, forward_passes = 1;  ///< passes of the step that send sums, and parameters
};

/// Estimates the seconds of a step in which messages are in flight and nothing is computed. Assumptions:
/// every message has the best rate of its link, is sent in equal parts during the passes of its kind, and a
/// pass takes its least time. A real pass takes longer and hides more. A real link is slower and hides less.
double exposed_seconds(const Sending& sending, const Time& time, std::int64_t micro_batches, const Link& link,
                       int ranks);

}  // namespace octet::plan
