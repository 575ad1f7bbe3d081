#include "octet/bench/benches.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/random.h"
#include "octet/base/timing.h"
#include "octet/checkpoint/save.h"
#include "octet/comm/serialize.h"
#include "octet/config/derive.h"
#include "octet/device/host_copies.h"
#include "octet/generate/team.h"
#include "octet/model/shapes.h"
#include "octet/setup/model_options.h"
#include "octet/setup/run_options.h"

namespace octet::bench {
namespace {

void require_possible(const runtime::Session& session, const DecodeBench& bench,
                      const precision::Recipe& recipe) {
  const int ranks = bench.tensor_parallel_size * bench.pipeline_parallel_size;
  if (session.place().size != ranks) {
    throw Error({.what = "the number of ranks does not fit the split of the model",
                 .expected = ranks == 1
                                 ? "trainer bench --decode without mpirun"
                                 : std::to_string(ranks) + " ranks (mpirun -np), "
                                                           "tensor_parallel_size x pipeline_parallel_size",
                 .found = std::to_string(session.place().size) + " ranks",
                 .fix = "start as many ranks as the model is split into; more ranks would be replicas",
                 .code = ExitCode::usage});
  }
  if (recipe.kind == precision::RecipeKind::delayed) {
    throw Error(
        {.what = "decoding cannot use delayed scaling: it has no scales from training",
         .expected =
             "fp8: true alone (scales of tokens and outputs), fp8_recipe current or block, or fp8: false",
         .where = "fp8_recipe",
         .fix = "set fp8_recipe=block, or leave it out",
         .code = ExitCode::usage});
  }
}

/// Returns the recipe of the configuration. If fp8_recipe is not set, FP8 uses the recipe of `trainer
/// generate --dtype fp8`.
precision::Recipe decoding_recipe(const config::Resolved& resolved) {
  precision::Recipe recipe = setup::recipe_of(resolved.config);
  if (recipe.fp8() && !resolved.is_set("fp8_recipe")) recipe.kind = precision::RecipeKind::rows;
  return recipe;
}

/// "FP8 rows in bf16, cache in FP8".
std::string decoding_words(const config::Config& config, const precision::Recipe& recipe, bool fp8_cache) {
  std::string words = precision_words(config) + (setup::is_strict(config) ? ", strict" : "");
  if (recipe.rows()) words = std::string("FP8 rows in ") + (recipe.compute == DType::bf16 ? "bf16" : "fp32");
  return words + (fp8_cache ? ", cache in FP8" : "");
}

/// Throws Error (usage) for keys that this benchmark would ignore.
void require_plain_weights(const config::Config& config) {
  const auto refuse = [](const std::string& key, const std::string& found) {
    throw Error(
        {.what = "decoding is measured only with whole weights, in the compute dtype or in FP8",
         .expected = key + " not set",
         .found = key + "=" + found,
         .where = key,
         .fix = "leave it out; trainer generate decodes with adapters, after adding them to the weights",
         .code = ExitCode::usage});
  };
  if (config.finetuning_type != "full") refuse("finetuning_type", config.finetuning_type);
  if (config.quantization_bit) refuse("quantization_bit", std::to_string(*config.quantization_bit));
}

}  // namespace

std::string precision_words(const config::Config& config) {
  std::string base = config::computes_in_bf16(config) ? "bf16" : "fp32";
  if (!config.fp8) return base;
  return "FP8 " + config.fp8_recipe + " in " + base +
         (setup::recipe_of(config).fast_gradients ? ", fp8_fast_accumulation: all" : "");
}

void bench_decoding(runtime::Session& session, const config::Resolved& resolved, const DecodeBench& bench,
                    const std::function<void(const DecodeResult&)>& tell) {
  const auto start = std::chrono::steady_clock::now();
  const config::Config& config = resolved.config;
  const precision::Recipe recipe = decoding_recipe(resolved);
  model::Architecture architecture;
  session.job().together([&] {
    require_possible(session, bench, recipe);
    require_plain_weights(config);
    model::require_splits(architecture = model::find_shape(bench.model), bench.tensor_parallel_size,
                          bench.pipeline_parallel_size);
  });
  const int ranks = bench.tensor_parallel_size * bench.pipeline_parallel_size;
  std::unique_ptr<generate::Team> team;
  if (ranks > 1) {
    team = std::make_unique<generate::Team>(session.job(), session.device(), bench.tensor_parallel_size,
                                            bench.pipeline_parallel_size);
    architecture.share = team->share();
  }
  const generate::DecoderOptions options = generate::bench_decoder(bench.options, architecture, recipe);
  const auto decoder =
      team ? std::make_unique<generate::Decoder>(session.device(), *team, options)
           : std::make_unique<generate::Decoder>(session.device(), session.job(), session.data(), options);
  decoder->initialise(bench.options.seed);
  const double setup_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const auto measure = [&] {
    DecodeResult result{.measured = generate::bench(*decoder, bench.options),
                        .precision = decoding_words(config, recipe, bench.options.fp8_cache)};
    result.measured.setup_seconds = setup_seconds;
    tell(result);
  };
  team ? static_cast<void>(generate::lead_or_follow(*team, *decoder, measure)) : measure();
}

namespace {

namespace fs = std::filesystem;
constexpr std::size_t kBlock = std::size_t{16} << 20;  ///< bytes of one write() to a plain file
constexpr std::int64_t kTensor = 16 << 20;             ///< elements of a tensor, over all ranks

[[noreturn]] void throw_disk_error(const std::string& what, const std::string& path) {
  throw Error({.what = what,
               .found = std::strerror(errno),
               .where = path,
               .fix = "set output_dir to a folder with enough free space",
               .code = ExitCode::storage});
}

/// The values that this rank saves. They are in device memory, as in a run.
class State {
 public:
  State(Device& device, const comm::Place& place, std::int64_t bytes) : arena_(device) {
    const std::int64_t unit = 1024 * place.size;
    const std::int64_t elements = std::max(unit, bytes / 4 / unit * unit);
    own_ = elements / place.size;
    auto* values = arena_.reserve_as<float>("state", static_cast<std::size_t>(own_));
    for (std::int64_t at = 0; at < elements; at += kTensor) {
      const std::int64_t count = std::min(kTensor, elements - at), own = count / place.size;
      places_.still.push_back({.name = "tensor." + std::to_string(at / kTensor),
                               .dtype = DType::f32,
                               .shape = {count},
                               .begin = place.rank * own,
                               .count = own,
                               .data = values + at / place.size});
    }
    fill(device, values, place.rank);
    snapshot_ = std::make_unique<HostSnapshot>(arena_, "state/snapshot", places_);
  }
  std::int64_t bytes() const { return 4 * own_; }
  std::vector<TensorSlice> take() {
    std::vector<TensorSlice> taken = snapshot_->take(places_);
    snapshot_->wait();
    return taken;
  }

 private:
  // Fills the values with random bits, which no disk can compress.
  void fill(Device& device, float* values, int rank) {
    const auto stream = device.make_stream({.name = "state"});
    std::vector<std::uint32_t> block(std::size_t{1} << 20);
    for (std::int64_t at = 0; at < own_; at += std::ssize(block)) {
      for (std::size_t i = 0; i < block.size(); i += 4) {
        const auto bits =
            philox(static_cast<std::uint64_t>(rank), RandomUse::data, static_cast<std::uint64_t>(at) + i);
        std::memcpy(block.data() + i, bits.data(), 16);
      }
      const std::int64_t count = std::min<std::int64_t>(std::ssize(block), own_ - at);
      device.copy_to_device(*stream, values + at, block.data(), static_cast<std::size_t>(count) * 4);
      stream->synchronize();
    }
  }

  Arena arena_;
  std::int64_t own_ = 0;
  SnapshotSources places_;
  std::unique_ptr<HostSnapshot> snapshot_;
};

/// Writes memory to a new plain file in blocks, and syncs the file. Returns false if direct writes are not
/// supported.
bool write_raw(const std::string& path, const std::byte* bytes, std::size_t size, bool direct) {
  const int fd =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | (direct ? O_DIRECT : 0), 0644);
  if (fd < 0 && direct && errno == EINVAL) return false;
  if (fd < 0) throw_disk_error("cannot create a file", path);
  const std::unique_ptr<const int, void (*)(const int*)> closes(&fd, [](const int* open) { ::close(*open); });
  for (std::size_t at = 0; at < size;) {
    const ssize_t n = ::write(fd, bytes + at, std::min(kBlock, size - at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && direct && errno == EINVAL) return false;
    if (n <= 0) throw_disk_error("cannot write a file", path);
    at += static_cast<std::size_t>(n);
  }
  if (::fsync(fd) != 0) throw_disk_error("cannot sync a file", path);
  return true;
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

/// Returns the seconds of `work` on the slowest rank. All ranks start together.
double timed(comm::Channel& channel, const std::function<void()>& work) {
  channel.barrier();
  double seconds = 0;
  channel.together([&] {
    const auto start = Clock::now();
    work();
    seconds = seconds_since(start);
  });
  const auto all = comm::all_gather_value(channel, seconds);
  return *std::max_element(all.begin(), all.end());
}

}  // namespace

double SaveBenchResult::ratio() const {
  double raw = median(buffered);
  if (has_direct) raw = std::min(raw, median(direct));
  return raw / median(saved);
}

SaveBenchResult bench_saves(runtime::Session& session, const SaveBenchOptions& options) {
  comm::Job& job = session.job();
  const std::string folder = job.broadcast(options.folder + "/save-bench-" + std::to_string(::getpid()), 0);
  job.together([&] {
    if (job.rank() == 0) make_folders(folder);
  });
  const std::shared_ptr<void> removed(nullptr, [&](void*) {
    std::error_code none;
    if (job.rank() == 0) fs::remove_all(folder, none);
  });
  std::unique_ptr<State> state;
  std::unique_ptr<std::byte, Free> raw;
  SaveBenchResult result;
  job.together([&] {
    state = std::make_unique<State>(session.device(), job.place(), options.bytes);
    const auto size = static_cast<std::size_t>(state->bytes());
    raw.reset(static_cast<std::byte*>(std::aligned_alloc(4096, size)));
    if (!raw) throw std::bad_alloc();
    std::size_t at = 0;
    for (const TensorSlice& slice : state->take()) {
      std::memcpy(raw.get() + at, slice.data, static_cast<std::size_t>(slice.count) * 4);
      at += static_cast<std::size_t>(slice.count) * 4;
    }
  });
  result.bytes = job.all_sum(state->bytes());
  const std::string own = folder + "/raw-" + std::to_string(job.rank());
  const auto size = static_cast<std::size_t>(state->bytes());
  for (std::int64_t turn = 0; turn < options.turns; ++turn) {
    const auto write = [&](bool direct) {
      bool written = true;
      const double seconds = timed(job, [&] { written = write_raw(own, raw.get(), size, direct); });
      job.together([&] { fs::remove(own); });
      if (direct && job.all_min(written ? 1 : 0) == 0) result.has_direct = false;
      return seconds;
    };
    result.buffered.push_back(write(false));
    if (result.has_direct) result.direct.push_back(write(true));
    checkpoint::CheckpointContents contents{.step = turn, .direct = true};
    result.copied.push_back(timed(job, [&] { contents.slices = state->take(); }));
    std::string path;
    job.barrier();
    const auto start = Clock::now();
    path = checkpoint::save(job, folder, contents);
    const auto all = comm::all_gather_value(job, seconds_since(start));
    result.saved.push_back(*std::max_element(all.begin(), all.end()));
    job.together([&] {
      if (job.rank() == 0) fs::remove_all(path);
    });
  }
  if (!result.has_direct) result.direct.clear();
  return result;
}

}  // namespace octet::bench
