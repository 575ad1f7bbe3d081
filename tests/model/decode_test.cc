// Decoding with a KV cache against a forward pass over the whole documents.
#include <atomic>
#include <thread>

#include "octet/device/cpu.h"
#include "octet/model/shapes.h"
#include "octet/model/work.h"
#include "support.h"
#include "support/golden_models.h"

namespace octet::model::testing::decode_test {
namespace {

/// Token `row` of the flat batch, and its slot.
struct Place {
  std::size_t row;
  std::int32_t slot;
};

class Decoder {
 public:
  Decoder(const std::string& name, const precision::Recipe& recipe)
      : architecture_(golden_architecture(name)),
        file_(golden_folder(name) + "/golden.safetensors"),
        batch_(read_batch(file_, "packed.")),
        machine_(architecture_, batch_, {.recipe = recipe, .gradients = false}),
        layout_(architecture_, recipe.compute, 4),
        cache_(machine_.arena, architecture_, layout_, 3, batch_.max_length, 3 * layout_.groups() * pages()),
        dtype_(recipe.compute) {
    machine_.source.load(golden_folder(name));
    // Pages are assigned in an order that matches no sequence.
    std::int32_t page = 0;
    for (std::int64_t index = pages() - 1; index >= 0; --index) {
      for (std::int64_t slot = 0; slot < 3; ++slot) {
        for (std::int64_t group = 0; group < layout_.groups(); ++group)
          cache_.set_page(slot, group, index, page++);
      }
    }
    cache_.upload(*machine_.device, *machine_.stream);
    whole_ = machine_.run(batch_, false).logits;
  }

  const HostBatch& batch() const { return batch_; }
  bool has_delta_rule() const { return architecture_.has_delta_rule(); }
  std::size_t begin(std::size_t document) const {
    return static_cast<std::size_t>(batch_.cu_seqlens[document]);
  }

  /// Feeds these tokens in one call, and compares all their logits, in reverse order.
  double step(const std::vector<Place>& places) {
    std::vector<std::int32_t> ids, slots, positions, rows;
    for (const Place& place : places) {
      ids.push_back(batch_.ids[place.row]);
      positions.push_back(batch_.positions[place.row]);
      slots.push_back(place.slot);
      rows.insert(rows.begin(), static_cast<std::int32_t>(rows.size()));
    }
    const auto n = static_cast<std::int64_t>(places.size());
    const std::int64_t v = architecture_.vocabulary;
    const ops::Matrix logits{.data = machine_.arena.reserve("logits", places.size() * 192 * 4),
                             .dtype = DType::f32,
                             .rows = n,
                             .cols = v,
                             .ld = v};
    machine_.core.decode(machine_.source, *machine_.stream,
                         {.ids = machine_.upload(ids),
                          .slots = machine_.upload(slots),
                          .positions = machine_.upload(positions),
                          .tokens = n,
                          .rows = machine_.upload(rows),
                          .row_count = n},
                         cache_, logits);
    const std::vector<float> got = machine_.download(logits);
    EXPECT_TRUE(machine_.source.at_rest());
    std::vector<float> expected;
    for (auto place = places.rbegin(); place != places.rend(); ++place) {
      const auto* row = whole_.data() + place->row * static_cast<std::size_t>(v);
      expected.insert(expected.end(), row, row + v);
    }
    return relative_l2(got, expected);
  }

 private:
  /// Pages per slot and group.
  std::int64_t pages() const { return (batch_.max_length + 3) / 4; }

  Architecture architecture_;
  weights::SafetensorsFile file_;
  HostBatch batch_;
  Machine machine_;
  KvLayout layout_;
  KvCache cache_;
  DType dtype_;
  std::vector<float> whole_;
};

TEST(Decode, PromptsInPiecesAndTokensInTurnGiveTheLogitsOfTheWhole) {
  for (const std::string& name : test::golden_models()) {
    // Its documents are longer than the cache, so they have other frequencies.
    if (name == "phi3-longrope") continue;

    Decoder decoder(name, {});
    // Tokens of a whole row are computed in chunks.
    const double bound = decoder.has_delta_rule() ? 1e-5 : 4e-6;
    // The prompts of all three documents, mixed in one call, into slots in another order …
    std::vector<Place> prompt;
    for (std::size_t d = 0; d < 3; ++d) {
      for (std::size_t i = 0; i < 3 + d; ++i) {
        prompt.push_back({decoder.begin(d) + i, static_cast<std::int32_t>((d + 1) % 3)});
      }
    }
    EXPECT_LT(decoder.step(prompt), bound) << name;
    // … and then one token of each document that has not ended.
    for (std::size_t i = 0; i < static_cast<std::size_t>(decoder.batch().max_length); ++i) {
      std::vector<Place> next;
      for (std::size_t d = 0; d < 3; ++d) {
        const std::size_t row = decoder.begin(d) + 3 + d + i;
        if (row < decoder.begin(d + 1)) next.push_back({row, static_cast<std::int32_t>((d + 1) % 3)});
      }
      if (next.empty()) break;
      EXPECT_LT(decoder.step(next), bound) << name << " step " << i;
    }
  }
}

TEST(Decode, Bf16StaysWithinItsRounding) {
  Decoder decoder("llama", {.compute = DType::bf16});
  // Half of the bound of the core's own bf16 test: both sides round equal values, some of them differently.
  // On CPUs with matrix units (AMX), many rows are summed in another order than one row.
  for (std::size_t i = 0; i < 8; ++i) EXPECT_LT(decoder.step({{i, 0}}), 2 * std::sqrt(34.0) / 512 / 2);
}

// The host continues while its previous pages are still to be copied.
TEST(Decode, PagesAreSetAgainWhileTheirUploadIsOnItsWay) {
  const Architecture a = read_architecture(golden_folder("llama"));
  const auto device = make_cpu_device({.threads = 1, .compute_worker = true});
  const auto stream = device->make_stream({.name = "compute"});
  Arena arena(*device);
  KvCache cache(arena, a, KvLayout(a, DType::f32, 4), 2, 16, 30);
  std::atomic<bool> goes_on{false};
  cpu::enqueue(*stream, [&] {
    while (!goes_on) std::this_thread::yield();
  });
  std::vector<std::vector<std::int32_t>> seen(2, std::vector<std::int32_t>(8));
  const std::int32_t* const table = cache.table(0).table;
  for (std::int32_t pass = 0; pass < 2; ++pass) {
    cache.set_page(0, 0, 1, 3 + pass);
    cache.set_page(1, 0, 2 + pass, 20 + pass);
    cache.upload(*device, *stream);
    device->copy_to_host(*stream, seen[static_cast<std::size_t>(pass)].data(), table,
                         8 * sizeof(std::int32_t));
  }
  goes_on = true;
  stream->synchronize();
  EXPECT_EQ(seen[0], (std::vector<std::int32_t>{0, 3, 0, 0, 0, 0, 20, 0}));
  EXPECT_EQ(seen[1], (std::vector<std::int32_t>{0, 4, 0, 0, 0, 0, 20, 21}));
}

TEST(Decode, LogitsWithoutRoomAndTooManyTokensAreRefused) {
  const Architecture a = read_architecture(golden_folder("llama"));
  const std::unique_ptr<Device> device = make_dry_device();
  Arena arena(*device);
  const KvLayout layout(a, DType::f32, 64);
  constexpr std::int64_t kHuge = std::int64_t{1} << 40;
  EXPECT_THROW(KvCache(arena, a, layout, kHuge, kHuge, 64), Error);
  EXPECT_THROW(KvCache(arena, a, layout, 1, 64, kHuge), Error);
  EXPECT_THROW(KvCache(arena, a, layout, 0, 1, 1), Error);
  for (const std::int64_t tokens : {-4, 0, 3, 48}) EXPECT_THROW(KvLayout(a, DType::f32, tokens), Error);
  EXPECT_THROW(Transformer(a, {}, arena, {.max_tokens = 0, .max_length = 1}), Error);
  EXPECT_THROW(Transformer(a, {}, arena, {.max_tokens = std::int64_t{1} << 40, .max_length = 1}), Error);
  EXPECT_THROW(Transformer(a, {}, arena, {.max_tokens = 4, .max_length = 5}), Error);
}

TEST(Plan, ADryDeviceReservesWhatACpuReserves) {
  for (const char* name : {"llama3", "qwen3-moe-trained", "olmoe", "glm4-moe-groups", "gpt-oss", "glm4",
                           "cohere2", "apertus", "qwen3-next", "deepseek-v3-groups", "glm4-moe-lite"}) {
    const Architecture a = read_architecture(golden_folder(name));
    for (const Recompute recompute : {Recompute::none, Recompute::norms, Recompute::qkv, Recompute::full}) {
      for (const precision::RecipeKind kind :
           {precision::RecipeKind::none, precision::RecipeKind::current, precision::RecipeKind::delayed,
            precision::RecipeKind::block}) {
        const TransformerOptions options{.max_tokens = 100, .max_length = 60, .recompute = recompute};
        const std::unique_ptr<Device> cpu = make_cpu_device({.threads = 1}), dry = make_dry_device();
        Arena real(*cpu), planned(*dry);
        const Transformer on_cpu(a, {.kind = kind}, real, options),
            on_dry(a, {.kind = kind}, planned, options);
        EXPECT_EQ(real.bytes(), planned.bytes());
        EXPECT_GT(real.bytes(), 0u);
      }
    }
  }
}

// One kernel multiplies the rows of all experts, so all rows have an FP8 copy at the same time. With block
// scales, each expert has GEMMs of its own rows.
TEST(Plan, Fp8CopiesOfExpertsHaveARowForEachTokenAndExpert) {
  const Architecture a = read_architecture(golden_folder("qwen3-moe-trained"));
  constexpr std::int64_t tokens = 48;
  for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::cuda}) {
    const auto bytes = [&](precision::RecipeKind kind) {
      const std::unique_ptr<Device> dry = make_dry_device({.stands_for = device});
      Arena arena(*dry);
      const precision::Recipe recipe{.kind = kind, .compute = DType::bf16, .gradient_format = DType::e4m3};
      const Transformer core(a, recipe, arena, {.max_tokens = tokens, .max_length = tokens});
      std::size_t sum = 0;
      for (const Reservation& r : arena.reservations())
        sum += r.name == "activations/FP8 gradients" ? r.bytes : 0;
      return sum;
    };
    std::int64_t widest = 0;  // outputs of qkv, of experts' gate and up, or of dense gate and up
    for (const LinearLayer& layer : linear_layers(a)) {
      if (layer.fp8) widest = std::max(widest, layer.rows);
    }
    const std::size_t copies = device == DeviceKind::cuda ? 2 : 1;
    const auto rows = static_cast<std::size_t>(tokens * a.experts.taken);
    EXPECT_EQ(bytes(precision::RecipeKind::delayed), copies * rows * static_cast<std::size_t>(widest));
    EXPECT_LT(bytes(precision::RecipeKind::block), 2 * rows * static_cast<std::size_t>(widest));
  }
}

/// Returns the bytes per token that one more block of Llama-3.1-8B's shape keeps.
double bytes_a_layer(Recompute level, const precision::Recipe& recipe, DeviceKind kind) {
  constexpr std::int64_t kTokens = 4096;
  Architecture a = find_shape("llama-3.1-8b");
  std::size_t bytes[2] = {};
  for (const int more : {0, 1}) {
    a.layers = 4 + more;
    a.blocks.resize(static_cast<std::size_t>(a.layers));
    const std::unique_ptr<Device> dry = make_dry_device({.stands_for = kind});
    Arena arena(*dry);
    const Transformer core(a, recipe, arena,
                           {.max_tokens = kTokens, .max_length = kTokens, .recompute = level});
    for (const Reservation& r : arena.reservations()) {
      if (r.name.starts_with("activations/")) bytes[more] += r.bytes;
    }
  }
  return static_cast<double>(bytes[1] - bytes[0]) / kTokens;
}

// h is the hidden size. Queries, keys and values take 1.5 h, the MLP 3.5 h. In addition to the matrices there
// are two numbers for norms and one for each head.
TEST(Plan, LevelsOfRecomputationKeepWhatTheyShould) {
  constexpr double h = 4096, norms = 2 * 4, heads = 32 * 4;
  const precision::Recipe bf16{.compute = DType::bf16};
  const precision::Recipe fp8{.kind = precision::RecipeKind::delayed, .compute = DType::bf16};
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    EXPECT_EQ(bytes_a_layer(Recompute::none, bf16, kind), 34 * h + norms + heads);
    EXPECT_EQ(bytes_a_layer(Recompute::norms, bf16, kind), 23 * h + norms + heads);
    EXPECT_EQ(bytes_a_layer(Recompute::qkv, bf16, kind), 20 * h + norms + heads);
    EXPECT_EQ(bytes_a_layer(Recompute::full, bf16, kind), 2 * h);
    // Inputs of linear layers as one FP8 copy. Attention's output is kept in addition to its FP8 copy.
    EXPECT_EQ(bytes_a_layer(Recompute::none, fp8, kind), 29.5 * h + norms + heads);
    EXPECT_EQ(bytes_a_layer(Recompute::norms, fp8, kind), 23 * h + norms + heads);
    EXPECT_EQ(bytes_a_layer(Recompute::full, fp8, kind), 2 * h);
  }
}

TEST(Plan, ADryDeviceHasTheMemoryItIsGiven) {
  const Architecture a = find_shape("tiny");
  const TransformerOptions options{.max_tokens = 512, .max_length = 512};
  const std::unique_ptr<Device> endless = make_dry_device();
  Arena all(*endless);
  { const Transformer core(a, {}, all, options); }
  const std::unique_ptr<Device> exact = make_dry_device({.memory = all.bytes()});
  Arena enough(*exact);
  { const Transformer core(a, {}, enough, options); }
  EXPECT_EQ(exact->memory().free, 0u);
  const std::unique_ptr<Device> small = make_dry_device({.memory = all.bytes() - 256});
  Arena less(*small);
  EXPECT_THROW(Transformer(a, {}, less, options), Error);
}

TEST(Plan, AGpuNeedsTransposedCopiesAndScratchOfItsLibraries) {
  const Architecture a = find_shape("tiny");
  const precision::Recipe fp8{.kind = precision::RecipeKind::delayed, .compute = DType::bf16};
  std::map<std::string, std::size_t> rows[2];
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    const std::unique_ptr<Device> dry = make_dry_device({.stands_for = kind});
    Arena arena(*dry);
    const Transformer core(a, fp8, arena, {.max_tokens = 512, .max_length = 512});
    for (const Reservation& r : arena.reservations()) rows[kind == DeviceKind::cuda][r.name] += r.bytes;
  }
  EXPECT_EQ(rows[1]["activations/FP8 gradients"], 2 * rows[0]["activations/FP8 gradients"]);
  // A CPU's GEMMs need workspace of a size that depends on the CPU.
  constexpr std::size_t kLibraries = std::size_t{32} << 20;
  EXPECT_GT(rows[1]["workspace"], kLibraries);
  EXPECT_LT(rows[0]["workspace"], kLibraries);
}

TEST(Plan, RecomputationKeepsOneBlockAndFp8HalvesLinearInputs) {
  Architecture a = read_architecture(golden_folder("llama3"));
  a.layers = 16;
  a.blocks.resize(16);
  const auto bytes = [&](Recompute recompute, precision::Recipe recipe) {
    const std::unique_ptr<Device> dry = make_dry_device();
    Arena arena(*dry);
    const Transformer core(a, recipe, arena,
                           {.max_tokens = 4096, .max_length = 4096, .recompute = recompute});
    return arena.bytes();
  };
  const precision::Recipe bf16{.compute = DType::bf16};
  precision::Recipe fp8 = bf16;
  fp8.kind = precision::RecipeKind::delayed;
  EXPECT_LT(bytes(Recompute::full, bf16), bytes(Recompute::none, bf16) / 3);
  EXPECT_LT(bytes(Recompute::none, fp8), bytes(Recompute::none, bf16));
}

}  // namespace
}  // namespace octet::model::testing::decode_test
