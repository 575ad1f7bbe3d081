// Shared work of ranks that hold a model together: sums, vocabulary pieces, and the memory of each rank.
#include "octet/generate/team.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "generate/golden.h"
#include "octet/comm/thread_ranks.h"
#include "octet/device/cpu.h"
#include "octet/runtime/model_folder.h"
#include "team_messages.h"
#include "vocabulary_pieces.h"

namespace octet::generate::team_test {
namespace {

TEST(VocabularyPieces, TheBestIsThatOfTheWholeRow) {
  const std::vector<std::int64_t> begins{0, 16, 32};
  const auto best = [&](float a, float b, float c) {
    return best_of_pieces(
        std::vector<ops::BestToken>{{.logit = a, .id = 3}, {.logit = b, .id = 5}, {.logit = c, .id = 7}},
        begins, false);
  };
  EXPECT_EQ(best(1, 3, 2).id, 21);
  EXPECT_EQ(best(1, 3, 2).logit, 3);
  EXPECT_EQ(best(2, 1, 4).id, 39);
  EXPECT_EQ(best(4, 4, 4).id, 3) << "the lowest of several";
  EXPECT_EQ(best(1, 4, 4).id, 21);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(best(9, nan, 10).id, 21) << "a NaN counts as the largest";
  EXPECT_TRUE(std::isnan(best(9, nan, 10).logit));
}

TEST(VocabularyPieces, NormalizersAddUp) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal(0, 30);
  for (int round = 0; round < 50; ++round) {
    std::vector<ops::BestToken> pieces;
    double highest = -1e300, sum = 0;
    std::vector<double> all;
    for (int piece = 0; piece < 4; ++piece) {
      double of_piece = 0, most = -1e300;
      std::vector<double> logits;
      for (int i = 0; i < 9; ++i) logits.push_back(normal(random));
      for (const double logit : logits) most = std::max(most, logit);
      for (const double logit : logits) of_piece += std::exp(logit - most);
      pieces.push_back({.normalizer = most + std::log(of_piece), .logit = static_cast<float>(most)});
      all.insert(all.end(), logits.begin(), logits.end());
    }
    for (const double logit : all) highest = std::max(highest, logit);
    for (const double logit : all) sum += std::exp(logit - highest);
    EXPECT_NEAR(best_of_pieces(pieces, std::vector<std::int64_t>{0, 9, 18, 27}, true).normalizer,
                highest + std::log(sum), 1e-12 * std::abs(highest) + 1e-12);
  }
}

/// A rank's part of a sum.
std::vector<float> part_of(int rank, std::int64_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

/// Sums [rows, cols] of f32 or bf16 on all ranks, and compares with sums in rank order, bit by bit.
void expect_sums(comm::Job& job, Device& device, std::int64_t rows, std::int64_t cols, DType dtype) {
  const auto tensor = job.collectives({.name = "tensor",
                                       .ranks =
                                           [&] {
                                             std::vector<int> ranks;
                                             for (int r = 0; r < job.size(); ++r) ranks.push_back(r);
                                             return ranks;
                                           }()},
                                      device, comm::Carrier::automatic);
  TensorSums sums(*tensor, device);
  Arena arena(device);
  sums.reserve(arena, rows, cols, dtype);
  const std::int64_t count = rows * cols;
  void* const values = arena.reserve("values", static_cast<std::size_t>(count) * size_of(dtype));
  const auto stream = device.make_stream({.name = "compute"});
  const auto rounded = [&](float value) { return dtype == DType::bf16 ? from_bf16(to_bf16(value)) : value; };
  for (int round = 0; round < 2; ++round) {
    const std::vector<float> own = part_of(job.rank(), count);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (dtype == DType::f32) {
        static_cast<float*>(values)[at] = own[at];
      } else {
        static_cast<std::uint16_t*>(values)[at] = to_bf16(own[at]);
      }
    }
    sums.reduce_partial(*stream, "sum",
                        {.data = values, .dtype = dtype, .rows = rows, .cols = cols, .ld = cols});
    stream->synchronize();
    std::vector<float> want(static_cast<std::size_t>(count));
    for (int rank = 0; rank < job.size(); ++rank) {
      const std::vector<float> part = part_of(rank, count);
      for (std::size_t i = 0; i < want.size(); ++i)
        want[i] = rank == 0 ? rounded(part[i]) : want[i] + rounded(part[i]);
    }
    for (std::size_t i = 0; i < want.size(); ++i) {
      const float found = dtype == DType::f32 ? static_cast<float*>(values)[i]
                                              : from_bf16(static_cast<std::uint16_t*>(values)[i]);
      ASSERT_EQ(found, rounded(want[i])) << i << " of " << rows << " x " << cols << ", rank " << job.rank();
    }
  }
}

TEST(TensorSums, ShortAndLongOnesAreInRankOrderWhoeverCarriesThem) {
  for (const int ranks : {2, 3}) {
    for (const bool worker : {false, true}) {
      comm::run_ranks_as_threads({.ranks = ranks, .compute_worker = worker},
                                 [](comm::Job& job, Device& device) {
                                   for (const DType dtype : {DType::f32, DType::bf16}) {
                                     expect_sums(job, device, 1, 40, dtype);
                                     expect_sums(job, device, 3, 13, dtype);
                                     // Above kOneShotBytes. No number of ranks divides 997 columns.
                                     expect_sums(job, device, 300, 960, dtype);
                                     expect_sums(job, device, 301, 997, dtype);
                                   }
                                 });
    }
  }
}

struct Held {
  std::size_t bytes = 0;
  std::vector<Reservation> reservations;
};

// Every rank of every split holds exactly the bytes that a dry rank plans. The parts of the weights add up to
// the whole.
TEST(SplitPlans, AreWhatRanksHold) {
  cpu::set_op_threads(1);  // like the ranks: scratch of ops depends on it
  for (const char* name : {"llama3", "gemma3", "qwen3-moe", "qwen3-yarn"}) {
    const std::string folder = kGolden + "models/" + std::string(golden_reference(name)["model"]);
    DecoderOptions options;
    options.architecture = runtime::read_model(folder);
    options.recipe.compute = DType::f32;
    options.sequences = 3;
    options.capacity = 64;
    std::size_t whole_cache = 0;
    for (const auto& [tensor, stages] : {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}}) {
      const int ranks = tensor * stages;
      std::vector<Held> held(static_cast<std::size_t>(ranks));
      comm::run_ranks_as_threads({.ranks = ranks}, [&](comm::Job& job, Device& device) {
        Team team(job, device, tensor, stages);
        Decoder decoder(device, team, options);
        held[static_cast<std::size_t>(job.rank())] = {decoder.arena().bytes(),
                                                      decoder.arena().reservations()};
        lead_or_follow(team, decoder, [] {});
      });
      for (int rank = 0; rank < ranks; ++rank) {
        comm::Place place{.rank = rank, .size = ranks, .local_rank = rank, .local_size = ranks};
        place.node_of.assign(static_cast<std::size_t>(ranks), 0);
        const auto dry = make_dry_device();
        const auto job = comm::make_dry_job(place);
        Team team(*job, *dry, tensor, stages);
        const Decoder planned(*dry, team, options);
        EXPECT_EQ(planned.arena().bytes(), held[static_cast<std::size_t>(rank)].bytes)
            << name << ", rank " << rank << " of " << tensor << " x " << stages;
      }
      // Half of the blocks, or of each block, is about half of the memory of weights, keys and values.
      const auto of = [](const Held& h, const std::string& prefix) {
        std::size_t bytes = 0;
        for (const Reservation& r : h.reservations)
          bytes += r.kind == MemoryKind::device && r.name.starts_with(prefix) ? r.bytes : 0;
        return bytes;
      };
      if (ranks == 1) whole_cache = of(held[0], "KV cache");
      if (std::string(name) != "llama3" || ranks == 1) continue;
      const std::size_t heads =
          tensor == 4 ? 2 : static_cast<std::size_t>(tensor);  // there are two key heads
      EXPECT_EQ(of(held[0], "KV cache"), whole_cache / (heads * static_cast<std::size_t>(stages)));
    }
  }
}

}  // namespace
}  // namespace octet::generate::team_test
