// Weights in NF4: GEMMs read the decoded values of each tensor, wherever its bytes are stored.
#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>

#include "octet/ops/nf4.h"
#include "octet/store/placement.h"
#include "octet/store/step_messages.h"
#include "store/synthetic.h"

namespace octet::store::nf4_weights_test {
namespace {

using namespace synthetic;
using precision::RecipeKind;

bool frozen_but_vectors(const model::SegmentSpec& s) {
  return s.kind == model::ParameterKind::matrix;
}
/// Freezes all matrices except in the first block, so that a model has trained and frozen blocks.
bool frozen_but_one(const model::SegmentSpec& s) {
  return s.kind == model::ParameterKind::matrix && !s.name.starts_with("layers.0");
}

Scenario scenario(int stage, DType compute = DType::f32, RecipeKind kind = RecipeKind::none) {
  Scenario s;
  s.options.stage = stage;
  s.options.recipe = {.kind = kind, .compute = compute, .history_length = 4};
  s.options.fixed.format = Format::nf4;
  s.frozen = frozen_but_one;
  return s;
}

/// A tensor that is quantised and decoded only by ops.
struct Quantised {
  Quantised(const model::NamedPart& part, DType dtype, bool twice, bool reversed = false) {
    const auto n = static_cast<std::size_t>(part.count);
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i) {
      x[i] = first_value(part.name, static_cast<std::int64_t>(reversed ? n - 1 - i : i));
      if (dtype == DType::bf16) x[i] = from_bf16(to_bf16(x[i]));
    }
    codes.resize(static_cast<std::size_t>(ops::nf4_code_bytes(part.count)));
    scales.resize(static_cast<std::size_t>(ops::nf4_blocks(part.count)));
    scale_codes.resize(scales.size());
    nested.resize(static_cast<std::size_t>(ops::nf4_scale_blocks(part.count)));
    const auto cpu = make_cpu_device();
    const auto stream = cpu->make_stream({});
    ops::nf4_quantize(*stream,
                      {.x = x.data(), .count = part.count, .codes = codes.data(), .scales = scales.data()});
    ops::nf4_quantize_scales(*stream, {.scales = scales.data(),
                                       .blocks = std::ssize(scales),
                                       .codes = scale_codes.data(),
                                       .nested = nested.data(),
                                       .mean = &mean});
    values.resize(n);
    const ops::Nf4Scales of =
        twice ? ops::Nf4Scales{.codes = scale_codes.data(), .nested = nested.data(), .mean = &mean}
              : ops::Nf4Scales{.plain = scales.data()};
    ops::nf4_decode(*stream, {.codes = codes.data(), .scales = of, .count = part.count, .to = values.data()});
    stream->synchronize();
    if (dtype == DType::bf16) {
      for (float& v : values) v = from_bf16(to_bf16(v));
    }
  }
  std::vector<std::uint8_t> codes, scale_codes;
  std::vector<float> scales, nested, values;
  float mean = 0;
};

float value_at(const ops::Operand& w, std::int64_t i) {
  if (w.dtype == DType::f32) return static_cast<const float*>(w.data)[i];
  if (w.dtype == DType::bf16) return from_bf16(static_cast<const std::uint16_t*>(w.data)[i]);
  return from_fp8(static_cast<const std::uint8_t*>(w.data)[i], w.dtype) * *w.scale_inv;
}

/// Calls `act` for every named part of NF4 tensors: the part, and its rows in the operand of GEMMs.
template <typename Do>
void each_part(Rank& rank, model::Pass pass, Do&& act) {
  const auto& groups = rank.store().layout().groups;
  for (int g = 0; g < static_cast<int>(groups.size()); ++g) {
    const auto& p = rank.store().acquire(g, pass, rank.compute());
    rank.compute().synchronize();
    const auto& segments = groups[static_cast<std::size_t>(g)].segments;
    for (std::size_t s = 0; s < segments.size(); ++s) {
      for (std::size_t t = 0; t < segments[s].tensors.size(); ++t) {
        if (segments[s].trainable || !segments[s].fp8) continue;
        for (const model::NamedPart& part : segments[s].tensors[t].parts) act(part, p.weights[s][t]);
      }
    }
    rank.store().release(g, pass, rank.compute());
  }
}

TEST(Nf4Weights, AreWhatTheCodesOfEachTensorStandFor) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    for (const bool twice : {false, true}) {
      for (const int ranks : {1, 2, 3, 4}) {
        for (const int stage : {0, 1, 2, 3}) {
          SCOPED_TRACE(std::to_string(ranks) + " ranks, stage " + std::to_string(stage));
          Scenario s = scenario(stage, compute);
          s.options.fixed.nf4.double_quantization = twice;
          on_threads({.ranks = ranks}, s, [&](Rank& rank) {
            rank.initialise();
            int parts = 0;
            each_part(rank, model::Pass::forward, [&](const model::NamedPart& part, const ops::Operand& w) {
              const Quantised expected(part, compute, twice);
              std::int64_t different = 0;
              for (std::int64_t i = 0; i < part.count; ++i) {
                different += value_at(w, part.begin + i) != expected.values[static_cast<std::size_t>(i)];
              }
              EXPECT_EQ(different, 0) << part.name;
              ++parts;
            });
            EXPECT_EQ(parts, 4 * 4);
          });
        }
      }
    }
  }
}

TEST(Nf4Weights, TrainingBesideThemHasTheSameBitsAtEveryStage) {
  for (const RecipeKind kind :
       {RecipeKind::none, RecipeKind::delayed, RecipeKind::current, RecipeKind::block}) {
    for (const int ranks : {1, 2, 3, 4}) {
      const Outcome reference = run({.ranks = ranks}, scenario(0, DType::bf16, kind));
      for (const int stage : {0, 1, 2, 3}) {
        for (const bool overlap : {false, true}) {
          SCOPED_TRACE(std::to_string(ranks) + " ranks, stage " + std::to_string(stage));
          if (!overlap && stage % 2 == 0) continue;
          Scenario s = scenario(stage, DType::bf16, kind);
          s.options.overlap = overlap;
          const Outcome o = run({.ranks = ranks, .compute_worker = overlap}, s);
          EXPECT_EQ(difference(reference.state, o.state), "");
          EXPECT_EQ(difference(reference.gradients, o.gradients), "");
          for (const std::int64_t hash : o.copies) EXPECT_EQ(hash, reference.copies[0]);
        }
      }
    }
  }
}

TEST(Nf4Weights, StrictBitsDoNotDependOnTheRanks) {
  const auto at = [](int ranks, int micro_batches, int stage) {
    Scenario s = scenario(stage, DType::bf16);
    s.options.strict = true;
    s.micro_batches = micro_batches;
    return run({.ranks = ranks}, s);
  };
  const Outcome reference = at(1, 4, 0);
  for (const auto& [ranks, stage] : {std::pair{2, 0}, {2, 3}, {4, 1}, {4, 3}}) {
    const Outcome o = at(ranks, 4 / ranks, stage);
    EXPECT_EQ(difference(reference.state, o.state), "") << ranks << " ranks, stage " << stage;
  }
}

TEST(Nf4Weights, BecomeFp8WithAScaleOfTheDecodedValues) {
  for (const bool parts : {false, true}) {
    for (const DeviceKind stands_for : {DeviceKind::cpu, DeviceKind::cuda}) {
      for (const TransposedWeights when : {TransposedWeights::kept, TransposedWeights::at_use}) {
        for (const int stage : {0, 3}) {
          Scenario s = scenario(stage, DType::bf16, RecipeKind::current);
          s.options.recipe.scale_parts = parts;
          s.options.transposed = when;
          on_threads({.ranks = 2, .stands_for = stands_for}, s, [&](Rank& rank) {
            rank.initialise();
            for (int g = 2; g <= 5; ++g) {
              // Even groups are first acquired for forward, so rows exist already when transposes are
              // requested. For odd groups, both are made at once.
              if (g % 2 == 0) {
                rank.store().acquire(g, model::Pass::forward, rank.compute());
                rank.store().release(g, model::Pass::forward, rank.compute());
              }
              const auto& p = rank.store().acquire(g, model::Pass::backward, rank.compute());
              rank.compute().synchronize();
              const model::TensorSpec& qkv =
                  rank.store().layout().groups[static_cast<std::size_t>(g)].segments[0].tensors[0];
              std::vector<float> values;
              std::vector<float> most(3, 0.0f);
              for (std::size_t i = 0; i < 3; ++i) {
                const Quantised expected(qkv.parts[i], DType::bf16, true);
                for (const float v : expected.values) most[i] = std::max(most[i], std::abs(v));
                values.insert(values.end(), expected.values.begin(), expected.values.end());
              }
              const float all = *std::ranges::max_element(most);
              std::size_t at = 0, run = 0;
              ASSERT_EQ(p.operands(0, 0).size(), parts ? 3u : 1u);
              for (const ops::Operand& w : p.operands(0, 0)) {
                const float amax = parts ? most[run++] : all;
                EXPECT_EQ(*w.scale_inv, 1.0f / (448.0f / amax));
                for (std::int64_t i = 0; i < w.rows * w.cols; ++i, ++at) {
                  const std::uint8_t code = to_fp8(values[at] * (448.0f / amax), DType::e4m3);
                  ASSERT_EQ(static_cast<const std::uint8_t*>(w.data)[i], code) << "element " << at;
                  if (stands_for != DeviceKind::cuda) continue;
                  const std::int64_t flipped = i % w.cols * w.rows + i / w.cols;
                  ASSERT_EQ(static_cast<const std::uint8_t*>(w.transposed)[flipped], code)
                      << "element " << at;
                }
              }
              EXPECT_EQ(at, 800u);
              rank.store().release(g, model::Pass::backward, rank.compute());
            }
          });
        }
      }
    }
  }
}

/// A model with one block of three experts: gate and up of each expert concatenated, and down.
model::ParameterLayout layout_of_experts() {
  model::ParameterLayout l = layout(1);
  std::vector<Part> gate_up, down;
  for (const std::string e : {"0", "1", "2"}) {
    gate_up.insert(gate_up.end(), {{e + ".gate.weight", 7}, {e + ".up.weight", 7}});
    down.push_back({e + ".down.weight", 20});
  }
  model::SegmentSpec experts = segment("layers.0 experts", model::ParameterKind::matrix,
                                       {tensor("gate_up", 20, gate_up), tensor("down", 9, down)});
  experts.trainable = false;
  experts.expert = experts.fp8 = true;
  for (model::TensorSpec& t : experts.tensors) t.fp8 = true, t.scaled_rows = t.rows / 3;
  l.groups[1].segments.push_back(experts);
  return l;
}

TEST(Nf4Weights, OfExpertsAreQuantisedEachAndHaveAScaleForEachExpert) {
  for (const RecipeKind kind : {RecipeKind::none, RecipeKind::current}) {
    for (const int stage : {0, 3}) {
      for (const int ranks : {1, 3}) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, stage " + std::to_string(stage));
        const auto checked = [&](comm::Job&, comm::Collectives& group, Device& device) {
          Options o = scenario(stage, DType::bf16, kind).options;
          Arena arena(device);
          ParameterStore store(layout_of_experts(), arena, group, o);
          const auto compute = device.make_stream({});
          store.initialise(*compute, [](const std::vector<TensorSlice>& slices) { Rank::fill(slices); });
          const auto& p = store.acquire(1, model::Pass::backward, *compute);
          compute->synchronize();
          const model::SegmentSpec& experts = store.layout().groups[1].segments.back();
          ASSERT_EQ(experts.name, "layers.0 experts");
          const std::size_t s = store.layout().groups[1].segments.size() - 1;
          for (std::size_t t = 0; t < experts.tensors.size(); ++t) {
            const model::TensorSpec& spec = experts.tensors[t];
            const auto runs = p.operands(s, t);
            ASSERT_EQ(runs.size(), kind == RecipeKind::none ? 1u : 3u);
            const std::int64_t rows = spec.rows / std::ssize(runs);
            std::vector<float> amaxes(runs.size(), 0.0f);
            for (int pass = 0; pass < 2; ++pass) {  // amaxes first
              for (const model::NamedPart& part : spec.parts) {
                const Quantised expected(part, DType::bf16, true);
                const auto run = static_cast<std::size_t>(part.begin / (rows * spec.cols));
                const ops::Operand& w = runs[run];
                for (std::int64_t i = 0; i < part.count; ++i) {
                  const float value = expected.values[static_cast<std::size_t>(i)];
                  const std::int64_t at = part.begin + i - static_cast<std::int64_t>(run) * rows * spec.cols;
                  if (pass == 0) {
                    amaxes[run] = std::max(amaxes[run], std::abs(value));
                  } else if (kind == RecipeKind::none) {
                    ASSERT_EQ(value_at(w, at), value) << part.name;
                  } else {
                    ASSERT_EQ(*w.scale_inv, 1.0f / (448.0f / amaxes[run])) << part.name;
                    const std::uint8_t code = to_fp8(value * (448.0f / amaxes[run]), DType::e4m3);
                    ASSERT_EQ(static_cast<const std::uint8_t*>(w.data)[at], code) << part.name;
                    const std::int64_t flipped = at % spec.cols * rows + at / spec.cols;
                    ASSERT_EQ(static_cast<const std::uint8_t*>(w.transposed)[flipped], code) << part.name;
                  }
                }
              }
            }
          }
          store.release(1, model::Pass::backward, *compute);
        };
        comm::run_ranks_as_threads({.ranks = ranks, .stands_for = DeviceKind::cuda}, checked);
      }
    }
  }
}

// As transformers 5 saves experts in 4 bits: without codes.
TEST(Nf4Weights, ASegmentWithoutCodesIsStoredAsGemmsReadIt) {
  const model::ParameterLayout l = layout_of_experts();
  Options o = scenario(0, DType::bf16).options;
  const auto format = [&] { return placements_of(l, o, 1)[1].back().format; };
  EXPECT_EQ(format(), Format::nf4);
  for (const model::TensorSpec& tensor : l.groups[1].segments.back().tensors)
    for (const model::NamedPart& part : tensor.parts) o.fixed.nf4.unquantised.insert(part.name);
  EXPECT_EQ(format(), Format::bf16);
  o.fixed.nf4.unquantised.erase("1.up.weight");
  EXPECT_EQ(format(), Format::nf4);
}

TEST(Nf4Weights, TensorsThatAreNotQuantisedLieAsProductsReadThem) {
  for (const RecipeKind kind : {RecipeKind::none, RecipeKind::current}) {
    for (const int stage : {0, 3}) {
      Scenario whole = scenario(stage, DType::bf16, kind), part = whole;
      whole.options.fixed.format = {};
      for (Scenario* s : {&whole, &part}) s->options.recipe.scale_parts = true;
      part.options.fixed.nf4.unquantised = {"layers.2.k.weight", "layers.3.down.weight"};
      std::map<std::string, std::vector<float>> expected;
      const auto read = [&](Rank& rank, auto&& act) {
        each_part(rank, model::Pass::forward, [&](const model::NamedPart& named, const ops::Operand& w) {
          if (w.data == nullptr) return;  // the tensor has several scales
          std::vector<float> values;
          for (std::int64_t i = 0; i < named.count; ++i) values.push_back(value_at(w, named.begin + i));
          act(named.name, values);
        });
      };
      on_threads({.ranks = 1}, whole, [&](Rank& rank) {
        rank.initialise();
        read(rank, [&](const std::string& name, const auto& values) { expected[name] = values; });
      });
      for (const int ranks : {1, 3}) {
        on_threads({.ranks = ranks}, part, [&](Rank& rank) {
          rank.initialise();
          read(rank, [&](const std::string& name, const auto& values) {
            const bool same = values == expected.at(name);
            EXPECT_EQ(same, part.options.fixed.nf4.unquantised.contains(name)) << name << ", stage " << stage;
          });
        });
      }
    }
  }
}

TEST(Nf4Weights, CodesThatAreThereAreTakenAsTheyAre) {
  for (const bool twice : {false, true}) {
    for (const int ranks : {1, 3}) {
      for (const int stage : {0, 3}) {
        Scenario s = scenario(stage);
        s.options.fixed.nf4 = {.double_quantization = twice, .stored = true};
        on_threads({.ranks = ranks}, s, [&](Rank& rank) {
          std::map<std::string, const model::NamedPart*> parts;
          for (const auto& group : rank.store().layout().groups) {
            for (const auto& segment : group.segments) {
              for (const auto& tensor : segment.tensors) {
                for (const auto& part : tensor.parts) parts[part.name] = &part;
              }
            }
          }
          // Supplies reversed codes, so that values requested as NF4 differ from those requested as fp32.
          const auto fill = [&](const std::vector<TensorSlice>& slices) {
            for (const TensorSlice& slice : slices) {
              const bool plain = parts.contains(slice.name);
              if (plain && slice.dtype == DType::f32) {
                EXPECT_FALSE(slice.name.starts_with("layers.2") &&
                             slice.name.find("down") != std::string::npos);
                Rank::fill({slice});
                continue;
              }
              const std::string name = plain ? slice.name : slice.name.substr(0, slice.name.rfind('.'));
              const std::string array = plain ? "" : slice.name.substr(name.size());
              const Quantised q(*parts.at(name), DType::f32, twice, true);
              const auto give = [&](const auto& from) {
                ASSERT_EQ(slice.count, std::ssize(from)) << slice.name;
                ASSERT_EQ(slice.begin, 0);
                ASSERT_EQ(size_of(slice.dtype), sizeof(from[0])) << slice.name;
                std::memcpy(slice.data, from.data(), from.size() * sizeof(from[0]));
              };
              if (array.empty()) give(q.codes);
              if (array == ".absmax" && twice) give(q.scale_codes);
              if (array == ".absmax" && !twice) give(q.scales);
              if (array == ".nested_absmax") give(q.nested);
              if (array == ".nested_offset") give(std::vector<float>{q.mean});
            }
          };
          rank.store().initialise(rank.compute(), fill);
          each_part(rank, model::Pass::forward, [&](const model::NamedPart& part, const ops::Operand& w) {
            const Quantised expected(part, DType::f32, twice, true);
            std::int64_t different = 0;
            for (std::int64_t i = 0; i < part.count; ++i) {
              different += value_at(w, part.begin + i) != expected.values[static_cast<std::size_t>(i)];
            }
            EXPECT_EQ(different, 0) << part.name;
          });
        });
      }
    }
  }
}

TEST(Nf4Weights, LoadedAgainAreDecodedAgain) {
  Scenario s = scenario(0);
  on_threads({.ranks = 2}, s, [&](Rank& rank) {
    rank.initialise();
    const int last = 5;
    const auto first_of = [&] {
      const auto& p = rank.store().acquire(last, model::Pass::forward, rank.compute());
      rank.compute().synchronize();
      const float value = value_at(p.weights[0][0], 0);
      rank.store().release(last, model::Pass::forward, rank.compute());
      return value;
    };
    const float before = first_of();
    rank.store().initialise(rank.compute(), [](const std::vector<TensorSlice>& slices) {
      for (const TensorSlice& slice : slices) {
        for (std::int64_t i = 0; i < slice.count; ++i) static_cast<float*>(slice.data)[i] = 0.125f;
      }
    });
    EXPECT_NE(first_of(), before);
    EXPECT_EQ(first_of(), 0.125f);
  });
}

TEST(Nf4Weights, AreTheSameInShardingGroups) {
  for (const RecipeKind kind : {RecipeKind::none, RecipeKind::delayed}) {
    const auto loaded = [&](int stage, int size) {
      Scenario s = scenario(stage, DType::bf16, kind);
      s.frozen = frozen_but_vectors;
      s.options.group = size;
      return on_threads({.ranks = 4}, s, [](Rank& rank) { rank.initialise(); });
    };
    const Outcome whole = loaded(3, 0);
    for (const int stage : {1, 3}) {
      const Outcome halves = loaded(stage, 2);
      EXPECT_EQ(halves.copies, whole.copies) << stage;
      EXPECT_EQ(halves.scales, whole.scales) << stage;
      EXPECT_EQ(difference(halves.state, whole.state), "") << stage;
    }
  }
}

TEST(Nf4Weights, AStepSendsTheirBytesAndNothingElseOfThem) {
  // The bytes of 4 frozen blocks, counted from the storage, equal the traffic of a run.
  for (const int stage : {0, 1, 2, 3}) {
    for (const int ranks : {2, 3}) {
      Scenario s = scenario(stage);
      s.frozen = frozen_but_vectors;
      comm::run_ranks_as_threads({.ranks = ranks}, [&](comm::Job&, comm::Collectives& group, Device& device) {
        Rank rank(group, device, s);
        rank.initialise();
        rank.step(0);
        rank.store().synchronize(rank.compute());
        group.channel().barrier();
        group.take_traffic();
        rank.step(1);
        rank.store().synchronize(rank.compute());
        group.channel().barrier();
        std::int64_t gathered = 0;
        for (const comm::Traffic& t : group.take_traffic()) {
          if (t.kind.starts_with("all_gather")) gathered += t.bytes_sent;
        }
        const StepMessages planned =
            step_messages(rank.store().layout(), s.options, group.place(), s.micro_batches);
        EXPECT_EQ(planned.gathered.bytes, gathered) << "stage " << stage << ", " << ranks << " ranks";
      });
    }
  }
}

/// Returns the gathered bytes of Llama-3.1-8B with frozen matrices of `format`, for eight ranks.
std::int64_t gathered_of_8b(int stage, std::optional<Format> format, bool twice) {
  model::ParameterLayout l;
  l.groups.push_back(
      {"embedding", {segment("embedding", model::ParameterKind::matrix, {tensor("e", 8, {{"e", 8}})})}});
  for (int b = 0; b < 8; ++b) {
    auto s =
        segment("matrices", model::ParameterKind::matrix, {tensor("w", 4096, {{"q", 4096}, {"k", 1024}})});
    s.fp8 = true;
    l.groups.push_back({"block", {s}});
  }
  l.groups.push_back({"head", {segment("head", model::ParameterKind::matrix, {tensor("h", 8, {{"h", 8}})})}});
  for (auto& group : l.groups) {
    for (auto& s : group.segments) s.trainable = false;
  }
  Options o;
  o.stage = stage;
  o.recipe.compute = DType::bf16;
  o.fixed.format = format;
  o.fixed.nf4.double_quantization = twice;
  return step_messages(l, o, {.size = 8, .local_size = 8, .node_of = std::vector<int>(8, 0)}, 1)
      .gathered.bytes;
}

TEST(Nf4Weights, AtStage3AGatherCarries052BytesAWeight) {
  const auto wide = static_cast<double>(gathered_of_8b(3, {}, false));
  ASSERT_GT(wide, 0);
  EXPECT_NEAR(2 * static_cast<double>(gathered_of_8b(3, Format::nf4, true)) / wide, 0.516, 0.001);
  EXPECT_NEAR(2 * static_cast<double>(gathered_of_8b(3, Format::nf4, false)) / wide, 0.5625, 0.001);
  for (const int stage : {0, 1, 2}) EXPECT_EQ(gathered_of_8b(stage, Format::nf4, true), 0);
}

TEST(Nf4Weights, TheArenaHoldsCodesAndOneBufferForDecodedValues) {
  const auto rows = [](int ranks, int stage, RecipeKind kind) {
    std::map<std::string, std::size_t> sums;
    Scenario s = scenario(stage, DType::bf16, kind);
    s.frozen = frozen_but_vectors;
    comm::run_ranks_as_threads({.ranks = ranks}, [&](comm::Job&, comm::Collectives& group, Device& device) {
      Rank rank(group, device, s);
      if (group.rank() == 0) {
        for (const Reservation& r : rank.arena().reservations()) sums[r.name] += r.bytes;
      }
      group.channel().barrier();
    });
    return sums;
  };
  // A block has qkv with three tensors of 480, 160 and 160 elements, and down with one of 660 (or 693). Each
  // tensor has codes, a byte per 64 elements, a scale of scales and a mean, padded to 16 bytes. The total is
  // a multiple of 256 bytes.
  const auto bytes = [](std::size_t n) { return (n / 2 + n % 2 + 15) / 16 * 16 + 16 * 3; };
  const auto block = [&](int b) { return bytes(480) + 2 * bytes(160) + bytes(b % 2 == 0 ? 660 : 693); };
  std::size_t alone = 0, most = 0;
  for (int b = 0; b < 5; ++b) {
    alone += (block(b) + 255) / 256 * 256;
    most = std::max(most, block(b));
  }
  // Embedding, router and the frozen tensors of the model are in bf16: 37 x 20, 3 x 5 per block, 11 x 6.
  const auto padded = [](std::size_t n, std::size_t world) {
    return (n + 128 * world - 1) / (128 * world) * 128 * world;
  };
  const std::size_t others = 2 * (padded(740, 1) + 5 * padded(15, 1) + padded(66, 1));
  auto r = rows(1, 0, RecipeKind::none);
  EXPECT_EQ(r["parameters/fixed"], alone + others);
  EXPECT_EQ(r["parameters/decoded"], 2 * padded(896 + 693, 1));
  EXPECT_EQ(r["parameters/gathered"], 0u);
  r = rows(1, 0, RecipeKind::current);
  EXPECT_EQ(r["parameters/decoded"], (padded(896 + 693, 1) + 255) / 256 * 256);
  r = rows(2, 3, RecipeKind::none);
  const std::size_t slice = (most + 2 * 256 - 1) / (2 * 256) * 256;
  EXPECT_EQ(r["parameters/fixed"], 5 * slice + (padded(740, 2) + 5 * padded(15, 2) + padded(66, 2)));
  // Two blocks alternate. Router and vectors are in bf16 and fp32, in addition to the codes.
  const std::size_t vectors = 4 * padded(128 + 7, 2), router = 2 * padded(15, 2);
  EXPECT_EQ(r["parameters/gathered"],
            2 * (2 * slice + router + vectors) + 2 * padded(740, 2) + 4 * padded(20, 2) + 2 * padded(66, 2));
}

/// Returns a value of /proc/self/status, in bytes.
std::int64_t process_status(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) * 1024;
  }
  return -1;
}

TEST(Nf4Weights, LoadingHoldsATensorAndAPieceAndNotTheModel) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers hold memory that was given back";
#endif
  constexpr std::int64_t kSide = 3072, kBlocks = 8;  // 75 million weights, 302 MB in fp32
  model::ParameterLayout l;
  const auto one = [](const std::string& name, std::int64_t side) {
    auto s = segment(name, model::ParameterKind::matrix, {tensor(name, side, {{name, side}})});
    s.trainable = false;
    return s;
  };
  l.groups.push_back({"embedding", {one("embedding", 8)}});
  for (std::int64_t b = 0; b < kBlocks; ++b) {
    auto s = one("block" + std::to_string(b), kSide);
    s.fp8 = true;
    l.groups.push_back({s.name, {s}});
  }
  l.groups.push_back({"head", {one("head", 8)}});
  for (const int ranks : {1, 4}) {
    std::int64_t before = 0, most = 0, arenas = 0;
    comm::run_ranks_as_threads(
        {.ranks = ranks}, [&](comm::Job& job, comm::Collectives& group, Device& device) {
          Options o;
          o.recipe.compute = DType::bf16;
          o.fixed.format = Format::nf4;
          Arena arena(device);
          ParameterStore store(l, arena, group, o);
          const auto compute = device.make_stream({});
          const std::int64_t all = job.all_sum(static_cast<std::int64_t>(arena.bytes()));
          if (job.rank() == 0) {
            arenas = all;
            std::ofstream("/proc/self/clear_refs") << "5";  // reset the peak
            malloc_trim(0);  // otherwise, the load could reuse freed memory unnoticed
            before = process_status("VmRSS");
          }
          group.channel().barrier();
          store.initialise(*compute, [](const std::vector<TensorSlice>& slices) {
            for (const TensorSlice& s : slices) std::fill_n(static_cast<float*>(s.data), s.count, 0.5f);
          });
          group.channel().barrier();
          if (job.rank() == 0) most = process_status("VmHWM");
        });
    ASSERT_GT(before, 0);
    // Per rank: codes and scales of a tensor, twice during the exchange, and 64 MiB.
    const std::int64_t bound = arenas + ranks * (2 * kSide * kSide * 9 / 16 + (std::int64_t{64} << 20));
    EXPECT_LT(most - before, bound) << ranks << " ranks";
    EXPECT_GT(most - before, kBlocks * kSide * kSide / 4) << "the peak is that of the load";
  }
}

}  // namespace
}  // namespace octet::store::nf4_weights_test
