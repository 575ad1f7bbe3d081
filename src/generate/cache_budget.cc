#include "octet/generate/cache_budget.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "octet/comm/mesh.h"

namespace octet::generate {
namespace {

comm::Place place_of(int rank, int size) {
  comm::Place place{.rank = rank, .size = size, .local_rank = rank, .local_size = size};
  place.node_of.assign(static_cast<std::size_t>(size), 0);
  return place;
}

}  // namespace

PlannedRank::PlannedRank(DeviceKind stands_for, int rank, int tensor_size, int stages)
    : device_(make_dry_device({.stands_for = stands_for})) {
  if (tensor_size * stages > 1) {
    job_ = comm::make_dry_job(place_of(rank, tensor_size * stages));
    team_ = std::make_unique<Team>(*job_, *device_, tensor_size, stages);
    return;
  }
  job_ = comm::make_self_job();
  data_ = job_->collectives(comm::Mesh(1).group("data", 0), *device_, comm::Carrier::automatic);
}

std::unique_ptr<Decoder> PlannedRank::decoder(const DecoderOptions& options) const {
  if (team_) return std::make_unique<Decoder>(*device_, *team_, options);
  return std::make_unique<Decoder>(*device_, *job_, *data_, options);
}

std::size_t PlannedRank::staging_bytes() const {
  if (!team_) return 0;
  const DeviceKind kind = device_->stands_for();
  const model::Share& share = team_->share();
  // The staging buffers of the session, which always exist, and the buffers of the team.
  return comm::staging_bytes(job_->size(), kind) + team_staging_bytes(share.tensor_size, share.stages, kind);
}

int first_rank_of_stage(int stage, int tensor_size, int stages) {
  return (stages - 1 - stage) * tensor_size;
}

namespace {

/// Returns the bytes of a decoder on a GPU without the pages of its cache, libraries included.
std::size_t bytes_beside(DecoderOptions options) {
  const model::Share share = std::exchange(options.architecture.share, {});
  const int rank = first_rank_of_stage(share.stage, share.tensor_size, share.stages) + share.tensor_rank;
  const PlannedRank planned(kGpuKind, rank, share.tensor_size, share.stages);
  options.architecture.share = share;
  options.cache_bytes = least_cache_bytes(options);
  options.architecture.share = {};
  const std::unique_ptr<Decoder> decoder = planned.decoder(options);
  std::size_t cache = 0;
  for (const Reservation& r : decoder->arena().reservations()) {
    if (r.name == "KV cache") cache += r.bytes;
  }
  return decoder->arena().bytes() - cache + traits_of(kGpuKind).library_bytes;
}

}  // namespace

std::int64_t batched_tokens(std::optional<std::int64_t> asked, DeviceKind kind, std::int64_t batch) {
  return asked.value_or(std::max<std::int64_t>(traits_of(kind).busy_tokens, 2 * batch));
}

void require_share(double share, const std::string& name) {
  if (share > 0 && share <= 1) return;
  throw Error({.what = name + " is a share of a GPU's memory",
               .expected = "a number above 0, at most 1",
               .found = std::to_string(share),
               .where = "command line",
               .fix = "give a share in this range, or leave " + name + " out",
               .code = ExitCode::usage});
}

std::size_t cache_bytes_of_share(std::optional<double> asked, const DecoderOptions& decoder,
                                 std::size_t free) {
  const double share = asked.value_or(kGpuMemoryUtilization);
  const auto budget = static_cast<std::size_t>(share * static_cast<double>(free));
  const std::size_t beside = bytes_beside(decoder), least = least_cache_bytes(decoder);
  if (budget < beside + least) {
    char used[96];
    std::snprintf(used, sizeof(used), "%s, --gpu-memory-utilization %.4g of %s that are free",
                  human_bytes(budget).c_str(), share, human_bytes(free).c_str());
    throw Error({.what = "the GPU does not hold the model and the KV cache of one sequence of " +
                         with_commas(decoder.capacity) + " tokens",
                 .expected = "at least " + human_bytes(beside + least) + ", " + human_bytes(least) +
                             " of them for the cache",
                 .found = used,
                 .fix = "lower --max-length, --batch or --max-num-batched-tokens, narrow --dtype or "
                        "--kv-cache-dtype, raise "
                        "--gpu-memory-utilization, or end other programs on this GPU",
                 .code = ExitCode::usage});
  }
  const std::size_t left = budget - beside;
  return asked ? left : std::min(left, full_cache_bytes(decoder));
}

std::size_t cache_bytes(const CacheWish& wish, const DecoderOptions& decoder, const Device& device) {
  if (wish.bytes) return *wish.bytes;
  if (device.traits().counts_as_gpu) return cache_bytes_of_share(wish.share, decoder, device.memory().free);
  if (wish.share) {
    throw Error(
        {.what = "--gpu-memory-utilization is a share of a GPU's memory, but this command computes on a CPU",
         .expected = "--kv-cache-bytes BYTES",
         .found = "--gpu-memory-utilization",
         .where = "command line",
         .fix = "give --kv-cache-bytes instead",
         .code = ExitCode::usage});
  }
  return full_cache_bytes(decoder);
}

}  // namespace octet::generate
