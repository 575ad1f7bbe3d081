#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>

#include "octet/base/strings.h"
#include "octet/base/timing.h"
#include "octet/comm/collectives.h"
#include "octet/comm/libraries.h"
#include "octet/comm/mesh.h"
#include "octet/device/cpu.h"
#include "octet/device/gpus.h"
#include "octet/model/shapes.h"
#include "octet/runtime/rank_facts.h"
#include "octet/setup/setup.h"
#include "octet/train/engine.h"
#include "verify_checks.h"

namespace octet::verify {

// Checks of the messages between ranks.

std::string check_messages(runtime::Session& session) {
  comm::Collectives& data = session.data();
  if (data.size() == 1) return "none are needed";
  Device& device = session.device();
  constexpr std::int64_t kCount = 1 << 20;
  const int size = data.size();
  Arena arena(device);
  auto* from = arena.reserve_as<float>("verify", static_cast<std::size_t>(kCount * size));
  auto* to = arena.reserve_as<float>("verify", kCount);
  std::vector<float> host(static_cast<std::size_t>(kCount * size), static_cast<float>(data.rank() + 1));
  Stream& stream = data.reduce_stream();
  const auto stream_of_copies = device.make_stream({.name = "verify"});
  device.copy_to_device(*stream_of_copies, from, host.data(), host.size() * sizeof(float));
  stream_of_copies->synchronize();
  session.job().barrier();
  const auto start = Clock::now();
  data.reduce_scatter(stream, {.name = "verify", .from = from, .to = to, .count = kCount});
  stream.synchronize();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  device.copy_to_host(*stream_of_copies, host.data(), to, kCount * sizeof(float));
  stream_of_copies->synchronize();
  const float expected = static_cast<float>(size) * static_cast<float>(size + 1) / 2;
  session.job().together([&] {
    const auto wrong = std::ranges::find_if(host.begin(), host.begin() + kCount,
                                            [expected](float found) { return found != expected; });
    if (wrong == host.begin() + kCount) return;
    throw failed("a sum over the ranks is wrong", std::to_string(expected), std::to_string(*wrong),
                 "set gpu_transport=host to use another carrier, and check the network");
  });
  return "sums agree, " + per_second(static_cast<double>(kCount) * sizeof(float) * (size - 1), seconds) +
         " from each rank";
}

// Returns the transport that the session chose for each rank. To choose it, the session sent a pattern over
// every link of a host and timed a larger message.
std::string check_carrier(runtime::Session& session) {
  const std::vector<std::string> all = session.job().all_gather_bytes(session.data().carrier());
  std::string text;
  session.job().together([&] {
    const auto none = std::ranges::find(all, "");
    if (none == all.end() || session.place().rank != 0) return;
    throw failed("no carrier works for the messages between ranks", "a working carrier",
                 "none on rank " + std::to_string(none - all.begin()), "leave gpu_transport at auto");
  });
  for (std::size_t r = 0; r < all.size(); ++r) {
    text += (r == 0 ? "rank " : "; rank ") + std::to_string(r) + " " + all[r];
  }
  const bool alike = std::ranges::all_of(all, [&](const std::string& one) { return one == all.front(); });
  return alike ? all.front() + " on every rank" : text;
}

namespace {

/// Returns a table of rates in GB/s: a row per sender, a column per receiver.
std::string table_of(const std::vector<double>& rates, int size) {
  std::string text = "\n              rank";
  const auto cell = [&](const std::string& word) {
    text += std::string(8 - std::min<std::size_t>(7, word.size()), ' ') + word;
  };
  for (int to = 0; to < size; ++to) cell(std::to_string(to));
  for (int from = 0; from < size; ++from) {
    std::array<char, 32> row{};
    std::snprintf(row.data(), row.size(), "\n              %4d", from);
    text += row.data();
    for (int to = 0; to < size; ++to) {
      std::array<char, 32> rate{};
      std::snprintf(rate.data(), rate.size(), "%.2f",
                    1e-9 * rates[static_cast<std::size_t>(from) * static_cast<std::size_t>(size) +
                                 static_cast<std::size_t>(to)]);
      cell(from == to ? "-" : rate.data());
    }
  }
  return text;
}

}  // namespace

std::string links_text(const std::string& head, const std::vector<LinkTrial>& trials) {
  std::string text = head, broken, reasons;
  for (const LinkTrial& trial : trials) {
    text += "\n              " + trial.carrier;
    text += trial.trouble.empty()
                ? trial.rates
                : (trial.expected ? " does not work: " : " cannot be used with these GPUs: ") + trial.trouble;
    if (trial.trouble.empty() || !trial.expected) continue;
    broken += (broken.empty() ? "" : ", ") + trial.carrier;
    reasons += (reasons.empty() ? "" : "; ") + trial.carrier + ": " + trial.trouble;
  }
  if (broken.empty()) return text;
  throw failed("a carrier between the GPUs does not work: " + broken,
               "every carrier for such a machine delivers bytes unchanged", reasons,
               "trainer gpu-info shows how the GPUs are connected, and NCCL_DEBUG=INFO shows what NCCL does. "
               "Until this is fixed, set gpu_transport to a carrier that works (host always works)");
}

namespace {

// Whether peer access should work: all GPUs are in one host and the driver allows access between them.
bool peers_are_expected(runtime::Session& session) {
  const std::vector<GpuPair> pairs = gpu_pairs();
  const bool here = std::ranges::all_of(pairs, &GpuPair::peer_access);
  return session.job().all_min(here ? 1 : 0) == 1 && session.place().nodes == 1;
}

}  // namespace

// Measures every transport that the machine could use, not only the transport that a run would choose.
std::string check_links(runtime::Session& session) {
  comm::Job& job = session.job();
  Device& device = session.device();
  const bool gpus = device.traits().has_transports;
  constexpr int kTries = 3;
  const std::size_t bytes = std::size_t{gpus ? 64u : 4u} << 20;
  const std::string head = "GB/s between every two ranks, in both directions at once, messages of " +
                           human_bytes(static_cast<double>(bytes));
  const auto rates_of = [&](comm::Collectives& collectives) {
    return table_of(runtime::pair_rates(collectives, device, bytes, kTries), collectives.size());
  };
  if (!gpus) return links_text(head, {{.carrier = "MPI", .rates = rates_of(session.data())}});
  const comm::Mesh mesh(job.size());
  const bool peers = peers_are_expected(session);
  std::vector<LinkTrial> trials;
  for (const char* transport : {"peer", "nccl", "host"}) {
    LinkTrial& trial = trials.emplace_back();
    trial.carrier = transport;
    trial.expected = peers || trial.carrier != "peer";
    std::unique_ptr<comm::Collectives> collectives;
    try {
      collectives = job.collectives(mesh.group("data", job.rank()), device, setup::carrier_of(transport));
    } catch (const comm::RanksLost&) {
      throw;
    } catch (const Error& error) {  // agreed: all ranks have it
      const Problem& problem = error.problem();
      trial.trouble = problem.found.empty() ? problem.what : problem.found;
      continue;
    }
    trial.rates = rates_of(*collectives);
  }
  std::string text;
  job.together([&] { text = links_text(head, trials); });
  return text;
}

std::string check_nccl(runtime::Session& session) {
  std::string found;
  session.job().together([&] {
    try {
      found = comm::nccl_description();
    } catch (const Error& error) {
      if (session.place().size > 1) throw;
      found = "not found, but one GPU does not need it (" +
              (error.problem().found.empty() ? error.problem().what : error.problem().found) + ")";
    }
  });
  return found;
}

// Checks a training step of a small model.

namespace {

constexpr const char* kReport =
    "look at the device (dmesg, nvidia-smi), and report it with trainer --version";

/// Loss and gradient norm of one step of a small model.
struct SmallStep {
  double loss = 0, norm = 0;
  std::int64_t fp8_gemms = 0;
  std::string gemms;  ///< the GEMMs that ran in FP8
};

SmallStep small_step(Device& device, bool fp8) {
  constexpr std::int64_t kLength = 128;
  const auto job = comm::make_self_job();
  const auto data = job->collectives(comm::Mesh(1).group("data", 0), device, comm::Carrier::automatic);
  runtime::InstanceOptions options;
  options.architecture = model::find_shape("tiny");
  options.store.recipe.compute = DType::bf16;
  if (fp8) options.store.recipe.kind = precision::RecipeKind::current;
  options.transformer.max_tokens = options.transformer.max_length = kLength;
  train::Engine engine(device, *job, *data, options);
  engine.initialise(1);
  runtime::HostBatch batch;
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < kLength; ++i) ids.push_back(i * 31 % 4096);
  batch.cu_seqlens.push_back(0);
  runtime::add_document(batch, ids, ids);
  engine.begin(1);
  engine.micro_batch(batch);
  const store::StepResult step = engine.finish(1e-4);
  return {.loss = step.loss_sum / static_cast<double>(step.label_tokens),
          .norm = step.grad_norm,
          .fp8_gemms = engine.audit().fp8_gemms(),
          .gemms = engine.audit().summary()};
}

// The CPU multiplies FP8 values exactly, so it is the reference for any device. The CPU itself is compared
// with bf16.
std::string compare_steps(runtime::Session& session) {
  const std::unique_ptr<Device> host = make_cpu_device({.threads = cpu::op_threads()});
  const SmallStep expected = small_step(*host, true), plain = small_step(*host, false);
  const SmallStep found = small_step(session.device(), true);
  const auto near = [](double a, double b, double relative) {
    return std::abs(a - b) <= relative * std::abs(b);
  };
  const auto text = [](const SmallStep& s) {
    return "loss " + std::to_string(s.loss) + ", gradient norm " + std::to_string(s.norm);
  };
  if (found.fp8_gemms == 0) throw failed("no GEMM ran in FP8", "GEMMs in FP8", "none", kReport);
  if (!near(found.loss, expected.loss, 2e-3) || !near(found.norm, expected.norm, 5e-2)) {
    throw failed("a small FP8 step differs from the CPU's", text(expected), text(found), kReport);
  }
  if (!near(found.loss, plain.loss, 2e-2) || !near(found.norm, plain.norm, 0.2)) {
    throw failed("a small FP8 step is far from one in bf16", text(plain), text(found), kReport);
  }
  return text(found) +
         (session.device().traits().emulates_fp8 ? ", near that of bf16; " : ", as on the CPU; ") +
         found.gemms;
}

}  // namespace

std::string check_step(runtime::Session& session) {
  std::string found;
  session.job().together([&] { found = compare_steps(session); });
  return found;
}

}  // namespace octet::verify
