// Decoding on the GPU from a paged cache gives the bits of a contiguous cache, and the values of the CPU
// side. A decoder with a small cache gives the same answers.
#include <algorithm>
#include <cstdlib>
#include <string>

#include "gpu/device_arrays.h"
#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/generate/decoder.h"
#include "octet/ops/attention.h"

namespace octet::ops {
namespace {

constexpr std::int64_t kSlots = 4;

struct Case {
  Heads heads;
  DType dtype = DType::bf16;
  bool fp8 = false;
  std::int64_t page_tokens = 64;  ///< 0: no pages
  std::int64_t window = 0;
  std::int64_t capacity = 400;
  std::int64_t ld_margin = 0;
  std::string name() const {
    return "heads " + std::to_string(heads.q_heads) + "/" + std::to_string(heads.kv_heads) + " of " +
           std::to_string(heads.head_dim) + ", " + std::string(name_of(dtype)) + (fp8 ? " in E4M3" : "") +
           ", pages of " + std::to_string(page_tokens) + ", window " + std::to_string(window) +
           ", capacity " + std::to_string(capacity) + ", margin " + std::to_string(ld_margin);
  }
};

/// The number of new tokens of each slot in one call.
struct Pass {
  std::vector<std::int32_t> tokens;
  bool alone = false;
};

/// Returns the page table of a pass, with pages in a scattered order. Entries of unseen pages are page 0,
/// which holds NaN.
std::vector<std::int32_t> table_of(const Case& c, const std::int32_t* next, const std::int32_t* before,
                                   std::int64_t pitch) {
  std::vector<std::int32_t> table(static_cast<std::size_t>(kSlots * pitch), 0);
  for (std::int64_t slot = 0; slot < kSlots; ++slot) {
    const std::int64_t seen = c.window > 0 ? std::max<std::int64_t>(0, before[slot] + 1 - c.window) : 0;
    for (std::int64_t i = seen / c.page_tokens; i * c.page_tokens < next[slot]; ++i) {
      table[static_cast<std::size_t>(slot * pitch + i)] =
          static_cast<std::int32_t>((pitch - 1 - i) * kSlots + (slot + i) % kSlots);
    }
  }
  return table;
}

HostArray decode(std::unique_ptr<Device> device, const Case& c, const std::vector<Pass>& passes) {
  Bench bench(std::move(device));
  const std::int64_t width = c.heads.q_heads * c.heads.head_dim, ld = c.heads.qkv_width() + c.ld_margin;
  const std::int64_t kv = c.heads.kv_heads * c.heads.head_dim;
  const std::int64_t unit = std::max<std::int64_t>(1, c.page_tokens);
  const std::int64_t pitch = (c.capacity + unit - 1) / unit + 3;
  const auto rows = static_cast<std::size_t>(c.page_tokens > 0 ? kSlots * pitch * unit : kSlots * c.capacity);
  const std::size_t bytes = rows * static_cast<std::size_t>(kv) * (c.fp8 ? 1 : size_of(c.dtype));
  const std::size_t scales = rows * static_cast<std::size_t>(c.heads.kv_heads) * sizeof(float);
  void *keys = bench.room(bytes), *values = bench.room(bytes);
  auto* key_scales = c.fp8 ? static_cast<float*>(bench.room(scales)) : nullptr;
  auto* value_scales = c.fp8 ? static_cast<float*>(bench.room(scales)) : nullptr;
  std::mt19937 random(11);
  HostArray all(0, c.dtype);
  std::int32_t next[kSlots] = {};
  for (const Pass& pass : passes) {
    std::int32_t before[kSlots];
    std::copy(next, next + kSlots, before);
    std::vector<std::int32_t> slot_of, position;
    for (std::int32_t slot = 0; slot < kSlots; ++slot) {
      for (std::int32_t i = 0; i < pass.tokens[static_cast<std::size_t>(slot)]; ++i) {
        slot_of.push_back(slot);
        position.push_back(next[slot]++);
      }
    }
    const auto tokens = static_cast<std::int64_t>(slot_of.size());
    HostArray qkv(tokens * ld, c.dtype), out(tokens * width, c.dtype);
    qkv.fill(random, 1.5f);
    Workspace workspace;
    workspace.bytes = cached_attention_workspace(bench.device(), c.heads, tokens, c.capacity);
    if (workspace.bytes > 0) workspace.data = bench.room(workspace.bytes);
    CachePages pages;
    if (c.page_tokens > 0) pages = {bench.put(table_of(c, next, before, pitch)), pitch, c.page_tokens};
    void* to = bench.put(out);
    cached_attention(bench.stream(),
                     {.qkv = ConstMatrix(bench.put(qkv), c.dtype, tokens, c.heads.qkv_width(), ld),
                      .heads = c.heads,
                      .slots = bench.put(slot_of),
                      .positions = bench.put(position),
                      .k_cache = keys,
                      .v_cache = values,
                      .k_scale_inv = key_scales,
                      .v_scale_inv = value_scales,
                      .pages = pages,
                      .capacity = c.capacity,
                      .scale = 0.1f,
                      .window = c.window,
                      .out = Matrix{to, c.dtype, tokens, width, width},
                      .alone = pass.alone ? tokens : 0,
                      .workspace = workspace});
    bench.get(out, to);
    all.bytes.insert(all.bytes.end(), out.bytes.begin(), out.bytes.end());
  }
  return all;
}

const std::vector<Pass> kPasses{{{129, 0, 70, 1}, false},
                                {{1, 0, 1, 1}, true},
                                {{1, 0, 1, 0}, true},
                                {{100, 1, 64, 33}, false},
                                {{1, 1, 1, 1}, true}};

void check_case(Case c, const std::vector<Pass>& passes) {
  const HostArray got = decode(make_cuda_device(), c, passes), here = decode(make_cpu_device(), c, passes);
  const std::int64_t a_token = c.heads.q_heads * c.heads.head_dim;
  for (std::int64_t t = 0; t < here.count(); t += a_token) {
    const double far = relative_distance([&](std::int64_t i) { return got[t + i]; },
                                         [&](std::int64_t i) { return here[t + i]; }, a_token);
    ASSERT_LT(far, c.dtype == DType::bf16 ? 1e-2 : 1e-5) << c.name() << ", token " << t / a_token;
  }
  Case whole = c;
  whole.page_tokens = 0;
  EXPECT_EQ(decode(make_cuda_device(), whole, passes).bytes, got.bytes) << c.name();
  EXPECT_EQ(decode(make_cpu_device(), whole, passes).bytes, here.bytes) << c.name() << ", on the CPU";
}

TEST(GpuPagedCache, HasTheBitsOfOneInOnePieceAndAgreesWithTheCpu) {
  for (const bool fp8 : {false, true}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const std::int64_t page_tokens : {1, 4, 16, 64, 128}) {
        for (const std::int64_t window : {0, 50}) {
          check_case({.heads = {8, 2, 128},
                      .dtype = dtype,
                      .fp8 = fp8,
                      .page_tokens = page_tokens,
                      .window = window},
                     kPasses);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
      for (const std::int64_t head_dim : {33, 64, 80, 96, 256}) {
        for (const std::int64_t page_tokens : {16, 64}) {
          check_case({.heads = {14, 2, head_dim}, .dtype = dtype, .fp8 = fp8, .page_tokens = page_tokens},
                     kPasses);
        }
      }
      check_case({.heads = {8, 2, 64}, .dtype = dtype, .fp8 = fp8, .ld_margin = 3}, kPasses);
    }
  }
}

TEST(GpuPagedCache, LongCachesAreReadInPieces) {
  const std::vector<Pass> passes{{{2900, 300, 0, 0}, false}, {{1, 1, 0, 0}, true}, {{1, 1, 0, 0}, true}};
  for (const bool fp8 : {false, true}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const std::int64_t page_tokens : {16, 64, 512}) {
        for (const std::int64_t window : {0, 1000}) {
          check_case({.heads = {8, 2, 128},
                      .dtype = dtype,
                      .fp8 = fp8,
                      .page_tokens = page_tokens,
                      .window = window,
                      .capacity = 3000},
                     passes);
        }
      }
    }
  }
}

}  // namespace
}  // namespace octet::ops

namespace octet::generate {
namespace {

struct Model {
  Model(std::unique_ptr<Device> on, const std::string& name, DecoderOptions options) : device(std::move(on)) {
    const std::string folder = OCTET_SOURCE_DIR "/tests/golden/models/" + name;
    options.architecture = model::read_architecture(folder);
    options.capacity = 96;
    options.prefill = 37;
    decoder = std::make_unique<Decoder>(*device, *job, *data, options);
    decoder->load_weights(folder);
  }
  std::unique_ptr<Device> device;
  std::unique_ptr<comm::Job> job = comm::make_self_job();
  std::unique_ptr<comm::Collectives> data =
      job->collectives(comm::Mesh(1).group("data", 0), *device, comm::Carrier::automatic);
  std::unique_ptr<Decoder> decoder;
};

/// Half of the requests share a prefix.
std::vector<Request> requests() {
  std::vector<Request> all(9);
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].row = i;
    for (std::size_t t = 0; t < 27 + 3 * i; ++t) {
      const std::size_t of = i % 2 == 0 && t < 25 ? 0 : i;
      all[i].prompt.push_back(static_cast<std::int32_t>((13 * of + 5 * t * t + t) % 50));
    }
  }
  return all;
}

void expect_alike(const std::vector<Answer>& got, const std::vector<Answer>& want, double far) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].ids, want[i].ids) << "request " << i;
    ASSERT_EQ(got[i].logprobs.size(), want[i].logprobs.size());
    for (std::size_t t = 0; t < got[i].logprobs.size(); ++t)
      EXPECT_NEAR(got[i].logprobs[t], want[i].logprobs[t], far) << i << ", " << t;
  }
}

// Includes sliding windows, preempted sequences and shared pages. Decoding passes are recorded.
TEST(GpuPagedCache, ASmallCacheGivesTheAnswersOfACpu) {
  const AnswerOptions wanted{.max_new = 30, .logprobs = 0};
  for (const char* name : {"qwen3", "gemma3", "mistral"}) {
    for (const std::int64_t page_tokens : {4, 64}) {
      DecoderOptions options;
      options.recipe.compute = DType::f32;
      options.sequences = 5;
      options.page_tokens = page_tokens;
      Model cpu(make_cpu_device(), name, options);
      const auto want = cpu.decoder->complete(requests(), wanted);
      options.architecture = cpu.decoder->options().architecture;
      options.capacity = 96;
      options.prefill = 37;
      options.cache_bytes = 2 * least_cache_bytes(options);
      Model gpu(make_cuda_device(0), name, options);
      expect_alike(gpu.decoder->complete(requests(), wanted), want, 1e-4);
      const DecodeCounts& counts = gpu.decoder->counts();
      EXPECT_GT(counts.replayed, 10) << name;
      EXPECT_LE(counts.cache_pages_used, counts.cache_pages);
      if (page_tokens == 4 && std::string(name) == "qwen3") {
        EXPECT_GT(counts.put_back, 0) << name;
      }
    }
  }
}

TEST(GpuPagedCache, RecordedPassesFollowTheirPageTables) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    for (const bool fp8 : {false, true}) {
      DecoderOptions options;
      options.recipe.compute = compute;
      options.fp8_cache = fp8;
      options.sequences = 3;
      options.page_tokens = 4;
      const AnswerOptions wanted{.max_new = 40, .logprobs = 0};
      auto three = requests();
      three.resize(3);
      Model recorded(make_cuda_device(0), "gemma2", options);
      const auto with = recorded.decoder->complete(three, wanted);
      EXPECT_GT(recorded.decoder->counts().replayed, 20);
      ::setenv("OCTETRUN_RECORDING", "off", 1);
      Model plain(make_cuda_device(0), "gemma2", options);
      const auto without = plain.decoder->complete(three, wanted);
      ::unsetenv("OCTETRUN_RECORDING");
      EXPECT_EQ(plain.decoder->counts().replayed, 0);
      expect_alike(with, without, 0);
      // Pages do not change a bit either.
      options.page_tokens = 64;
      Model whole(make_cuda_device(0), "gemma2", options);
      expect_alike(with, whole.decoder->complete(three, wanted), 0);
    }
  }
}

}  // namespace
}  // namespace octet::generate
