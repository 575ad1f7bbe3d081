// Whether this machine can train: ranks, cores, messages, disk, device, and a small FP8 step.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/strings.h"
#include "octet/comm/collectives.h"
#include "octet/comm/mesh.h"
#include "octet/device/cpu.h"
#include "octet/device/host_mirror.h"
#include "octet/model/shapes.h"
#include "octet/runtime/link_rates.h"
#include "octet/runtime/session.h"
#include "octet/setup/setup.h"
#include "octet/train/engine.h"
#include "options.h"

namespace octet::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Error failed(const std::string& what, const std::string& expected, const std::string& found) {
  return Error({.what = what, .expected = expected, .found = found});
}

std::string per_second(double bytes, double seconds) {
  return human_bytes(bytes / std::max(seconds, 1e-9)) + " a second";
}

// Each check is called by all ranks, says what it found, and throws when that will not do.

std::string check_ranks(runtime::Session& session) {
  const comm::Place& place = session.place();
  std::string text = std::to_string(place.size) + (place.size == 1 ? " rank" : " ranks") + " on " +
                     std::to_string(place.nodes) + (place.nodes == 1 ? " node" : " nodes");
  return text + (comm::launched_by_mpi() ? ", MPI with MPI_THREAD_FUNNELED or more" : ", without a launcher");
}

std::string check_cores(runtime::Session& session) {
  const std::int64_t threads = cpu::op_threads();
  const std::int64_t least = session.job().all_min(threads);
  const std::int64_t all = session.job().all_sum(threads);
  std::string text = std::to_string(all) + " threads in all, at least " + std::to_string(least) + " a rank";
  const long cores = ::sysconf(_SC_NPROCESSORS_ONLN);
  if (session.place().local_size > cores) text += "; more ranks than cores: they take turns";
  return text;
}

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
  const double seconds = seconds_since(start);
  device.copy_to_host(*stream_of_copies, host.data(), to, kCount * sizeof(float));
  stream_of_copies->synchronize();
  const float expected = static_cast<float>(size) * static_cast<float>(size + 1) / 2;
  for (std::int64_t i = 0; i < kCount; ++i) {
    const float found = host[static_cast<std::size_t>(i)];
    if (found == expected) continue;
    throw failed("ranks add up wrongly", std::to_string(expected), std::to_string(found));
  }
  return "sums agree, " + per_second(static_cast<double>(kCount) * sizeof(float) * (size - 1), seconds) +
         " from each rank";
}

// Choosing a carrier sent a pattern through every link of a host and took the time of a larger message.
std::string check_carrier(runtime::Session& session) {
  const std::vector<std::string> all = session.job().all_gather_bytes(session.data().carrier());
  std::string text;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty()) {
      throw failed("nothing carries the bytes of a rank", "a carrier", "none on rank " + std::to_string(r));
    }
    text += (r == 0 ? "rank " : "; rank ") + std::to_string(r) + " " + all[r];
  }
  const bool alike = std::ranges::all_of(all, [&](const std::string& one) { return one == all.front(); });
  return alike ? all.front() + " on every rank" : text;
}

/// A row for each rank, of what it sends every other one.
std::string table_of(const std::vector<double>& rates, int size) {
  std::string text = "\n           rank";
  const auto cell = [&](const std::string& word) {
    text += std::string(8 - std::min<std::size_t>(7, word.size()), ' ') + word;
  };
  for (int to = 0; to < size; ++to) cell(std::to_string(to));
  for (int from = 0; from < size; ++from) {
    std::array<char, 32> row{};
    std::snprintf(row.data(), row.size(), "\n           %4d", from);
    text += row.data();
    for (int to = 0; to < size; ++to) {
      std::array<char, 32> rate{};
      std::snprintf(rate.data(), rate.size(), "%.2f",
                    1e-9 * rates[static_cast<std::size_t>(from * size + to)]);
      cell(from == to ? "-" : rate.data());
    }
  }
  return text;
}

// Every carrier that there can be is tried, whichever one a run would take.
std::string check_links(runtime::Session& session) {
  comm::Job& job = session.job();
  Device& device = session.device();
  const bool gpus = device.kind() == DeviceKind::cuda;
  constexpr int kTries = 3;
  const std::size_t bytes = std::size_t{gpus ? 64u : 4u} << 20;
  std::string text = "GB/s between every two ranks, both ways at once, messages of " +
                     human_bytes(static_cast<double>(bytes));
  const auto rates_of = [&](comm::Collectives& collectives) {
    return table_of(runtime::pair_rates(collectives, device, bytes, kTries), collectives.size());
  };
  if (!gpus) return text + "\n           MPI" + rates_of(session.data());
  const comm::Mesh mesh(job.size());
  for (const char* transport : {"peer", "nccl", "host"}) {
    text += "\n           " + std::string(transport);
    try {
      const auto collectives =
          job.collectives(mesh.group("data", job.rank()), device, setup::carrier_of(transport));
      text += rates_of(*collectives);
    } catch (const Error& error) {  // agreed upon: all ranks have it
      text +=
          " does not work: " + (error.problem().found.empty() ? error.problem().what : error.problem().found);
    }
  }
  return text;
}

std::string check_disk(runtime::Session& session, const std::string& folder) {
  const std::string bytes(std::size_t{32} << 20, 'x');
  const std::string path =
      folder + "/.verify-rank" + std::to_string(session.place().rank) + "-" + std::to_string(::getpid());
  make_folders(folder);
  const auto start = Clock::now();
  write_file_atomically(path, bytes);
  const double seconds = seconds_since(start);
  const bool same = read_file(path) == bytes;
  std::filesystem::remove(path);
  if (!same) throw failed("a file does not hold what was written", "the same bytes", path);
  return folder + " takes " + per_second(static_cast<double>(bytes.size()), seconds) +
         " from each rank, synced";
}

std::string check_device(runtime::Session& session) {
  const MemoryInfo memory = session.device().memory();
  return session.device().description() + ", " + human_bytes(static_cast<double>(memory.free)) + " free";
}

/// Loss and gradient norm of one step of a small model.
struct SmallStep {
  double loss = 0, norm = 0;
  std::int64_t fp8_products = 0;
  std::string products;  ///< what ran in FP8
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
          .fp8_products = engine.audit().fp8_products(),
          .products = engine.audit().summary()};
}

// The CPU multiplies the values of FP8 exactly, so it is the yardstick for any device, and bf16 for it.
std::string check_step(runtime::Session& session) {
  const std::unique_ptr<Device> host = make_cpu_device({.threads = cpu::op_threads()});
  const SmallStep expected = small_step(*host, true), plain = small_step(*host, false);
  const SmallStep found = small_step(session.device(), true);
  const auto near = [](double a, double b, double relative) {
    return std::abs(a - b) <= relative * std::abs(b);
  };
  const auto text = [](const SmallStep& s) {
    return "loss " + std::to_string(s.loss) + ", gradient norm " + std::to_string(s.norm);
  };
  if (found.fp8_products == 0) throw failed("no GEMM ran in FP8", "GEMMs in FP8", "none");
  if (!near(found.loss, expected.loss, 2e-3) || !near(found.norm, expected.norm, 5e-2)) {
    throw failed("a small FP8 step differs from the CPU's", text(expected), text(found));
  }
  if (!near(found.loss, plain.loss, 2e-2) || !near(found.norm, plain.norm, 0.2)) {
    throw failed("a small FP8 step is far from one in bf16", text(plain), text(found));
  }
  return text(found) +
         (session.device().kind() == DeviceKind::cuda ? ", as on the CPU; " : ", near that of bf16; ") +
         found.products;
}

}  // namespace

int verify_command(const Arguments& arguments) {
  Options options(
      "verify",
      "Checks what a run needs of the machine: ranks, cores, messages, disk, device, and a small FP8 "
      "step against the CPU; under `mpirun -np N` or alone");
  options.example("trainer verify");
  options.example("launch/mpirun -np 8 build/bin/trainer verify");
  options.take_overrides();
  std::string folder = ".";
  options.app().add_option("--folder", folder, "where checkpoints would be written")->capture_default_str();
  if (!options.parse(arguments)) return 0;
  const config::Resolved resolved = config::load(options.overrides(), {.for_training = false});
  const setup::SessionWish wish = setup::session_wish(resolved.config);
  runtime::Session session(wish.device, nullptr, wish.carrier);
  return session.run([&] {
    using Check = std::function<std::string()>;
    std::vector<std::pair<const char*, Check>> checks{{"ranks", [&] { return check_ranks(session); }},
                                                      {"cores", [&] { return check_cores(session); }},
                                                      {"messages", [&] { return check_messages(session); }},
                                                      {"disk", [&] { return check_disk(session, folder); }},
                                                      {"device", [&] { return check_device(session); }},
                                                      {"FP8 step", [&] { return check_step(session); }}};
    if (session.place().size > 1) {
      checks.insert(checks.begin() + 3, {{"carrier", [&] { return check_carrier(session); }},
                                         {"links", [&] { return check_links(session); }}});
    }
    for (const auto& [name, check] : checks) {
      std::string found;
      const auto* run = &check;
      const std::string what = name;
      // A check with messages of its own fails on all ranks or on none before it waits for the others.
      if (what == "cores" || what == "messages" || what == "carrier" || what == "links") {
        found = (*run)();
        session.job().barrier();
      } else {
        session.job().together([&] { found = (*run)(); });
      }
      if (session.prints()) std::printf("%-10s %s\n", name, found.c_str());
    }
    return 0;
  });
}

}  // namespace octet::cli
