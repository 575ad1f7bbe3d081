#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "octet/model/architecture.h"
#include "octet/model/transformer.h"
#include "octet/precision/scaling.h"

namespace octet::plan {

/// What a GPU can do at best. The defaults are rates measured on an H200 with kernels that had it to
/// themselves; a whole step is slower, because it is limited by power.
struct Rates {
  double bf16 = 750e12;  ///< FLOP/s of large products
  double fp8 = 1350e12;
  double fp32 = 50e12;
  double attention_forward = 613e12;
  double attention_backward = 480e12;
  double bytes = 4.2e12;   ///< per second, to and from memory
  double host = 55e9;      ///< bytes per second to the host's memory and back, each way
  double launch = 3e-6;    ///< seconds that a kernel takes at least
  double fp8_more = 3e-6;  ///< seconds that an FP8 product takes beside its work, as small models show
  int multiprocessors = 132;
  const char* card = "an H200";                           ///< whose rates these are, for a sentence
  const char* host_link = "PCIe";                         ///< to the host's memory
  const char* host_source = "as measured over PCIe 5.0";  ///< of its rate
};

/// What a rank does in an optimizer step.
struct Work {
  model::Architecture architecture;
  precision::Recipe recipe;
  model::Recompute recompute = model::Recompute::none;
  bool transposes_at_use = false;  ///< FP8 weights are transposed in every micro-batch
  std::int64_t tokens = 0;         ///< of a micro-batch on a rank
  std::int64_t length = 0;         ///< of a sequence
  std::int64_t micro_batches = 1;
  double optimizer_bytes = 0;  ///< that a step's update reads and writes in a rank's device memory
  /// State in the host's memory, which an update reads and writes there; and of it, masters.
  double host_state_bytes = 0, host_master_bytes = 0;
};

struct TimeRow {
  std::string name;
  double seconds = 0;
};

/// A floor: no step can be faster, for nothing waits, every product runs at the rate of a large one but for
/// waves that do not fill the GPU, and messages are hidden.
struct Time {
  std::vector<TimeRow> rows;
  double seconds = 0;
  double recompute_seconds = 0;  ///< of these
  /// Of one micro-batch: its forward pass with the loss, and its backward pass with what is made again.
  double forward_seconds = 0, backward_seconds = 0;
};
Time time_of(const Work& work, const Rates& rates = {});
/// Bytes that an update reads over the link to the host: state once, which passes back beside it, and masters
/// again for each kernel that makes FP8 weights of them.
double bytes_from_host(const Work& work);

/// A link by which ranks send, and what it carries per second, each way.
struct Link {
  const char* name;
  double bytes_per_second;
  bool between_hosts;  ///< shared by all ranks of a host; else each rank has its own
};
/// From the fastest to the slowest: NVLink and PCIe inside a host; 3,200, 400, 100, 10 and 1 Gbit/s between
/// hosts.
std::span<const Link> links();
/// Seconds in which a rank sends `bytes` over a link that `ranks` ranks share, at best.
double message_seconds(double bytes, const Link& link, int ranks);

/// What one linear layer of a block gains and loses by FP8, in seconds a micro-batch and layer.
struct Fp8Balance {
  std::string name;  ///< "qkv"
  std::int64_t rows = 0, cols = 0;
  double gain = 0;  ///< its three products are shorter by
  /// Making FP8 copies of its input and its output's gradient takes, and its share of those of the weight.
  double cost = 0;
  bool pays() const { return gain > cost; }
};
/// For each linear layer; empty without an FP8 recipe.
std::vector<Fp8Balance> fp8_balance(const Work& work, const Rates& rates = {});
/// Where FP8 does not pay, and by which figures, as a sentence without full stop; empty when it pays
/// everywhere.
std::string fp8_warning(const Work& work, const Rates& rates = {});

}  // namespace octet::plan
