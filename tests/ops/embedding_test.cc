#include "octet/ops/embedding.h"

#include "ops/tensor.h"

namespace octet::ops::embedding_test {
namespace {

constexpr std::int64_t kVocabulary = 101;

std::vector<std::int32_t> some_ids(std::int64_t tokens) {
  std::vector<std::int32_t> ids;
  for (std::int64_t t = 0; t < tokens; ++t) {
    // Every third token has the same id. One id is below the valid range and one is above it.
    const auto random = philox(1, RandomUse::data, static_cast<std::uint64_t>(t))[0] % kVocabulary;
    ids.push_back(t % 3 == 0 ? 5 : static_cast<std::int32_t>(random));
  }
  if (tokens > 10) {
    ids[8] = -1;
    ids[9] = kVocabulary;
  }
  return ids;
}

bool inside(std::int32_t id) {
  return id >= 0 && id < kVocabulary;
}

TEST(Embedding, RowsAreScaledAndIdsOutsideGiveZeros) {
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t tokens : kRows) {
      for (const float scale : {1.0f, 11.3f}) {
        const std::int64_t hidden = 80;
        const Tensor table = Tensor::random(dtype, kVocabulary, hidden, 1);
        const std::vector<std::int32_t> ids = some_ids(tokens);
        Tensor out(dtype, tokens, hidden);
        CpuStream stream;
        embedding(stream, {.ids = ids.data(), .table = table.matrix(), .scale = scale, .out = out.matrix()});
        for (std::int64_t t = 0; t < tokens; ++t) {
          const std::int32_t id = ids[static_cast<std::size_t>(t)];
          for (std::int64_t c = 0; c < hidden; ++c) {
            const double want = inside(id) ? out.kept(scale * static_cast<float>(table.at(id, c))) : 0;
            ASSERT_EQ(out.at(t, c), want) << t << " " << c;
          }
        }
        EXPECT_TRUE(out.margin_untouched());
      }
    }
  }
}

void expect_backward(std::int64_t tokens, std::int64_t hidden, DType dtype, int threads,
                     DType table = DType::f32) {
  SCOPED_TRACE(testing::Message() << tokens << "x" << hidden << " " << name_of(dtype) << " into "
                                  << name_of(table) << " " << threads);
  const Tensor d_out = Tensor::random(dtype, tokens, hidden, 1);
  const std::vector<std::int32_t> ids = some_ids(tokens);
  const Tensor before = Tensor::random(table, kVocabulary, hidden, 2);
  Tensor d_table = before;
  CpuStream stream(threads);
  std::vector<std::byte> scratch(embedding_backward_workspace(stream.device(), tokens, kVocabulary),
                                 std::byte{0xFF});
  embedding_backward(stream, {.ids = ids.data(),
                              .d_out = d_out.matrix(),
                              .scale = 1.7f,
                              .d_table = d_table.matrix(),
                              .workspace = {scratch.data(), scratch.size()}});
  for (std::int64_t id = 0; id < kVocabulary; ++id) {
    for (std::int64_t c = 0; c < hidden; ++c) {
      // Bit for bit: the contract fixes the order.
      float sum = 0;
      bool found = false;
      for (std::int64_t t = 0; t < tokens; ++t) {
        if (ids[static_cast<std::size_t>(t)] != id) continue;
        const auto d = static_cast<float>(d_out.at(t, c));
        sum = found ? sum + d : d;
        found = true;
      }
      const auto start = static_cast<float>(before.at(id, c));
      ASSERT_EQ(d_table.at(id, c), before.kept(found ? start + 1.7f * sum : start)) << id << " " << c;
    }
  }
  EXPECT_TRUE(d_table.margin_untouched());
}

TEST(Embedding, BackwardSumsInTokenOrderWhateverTheThreads) {
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t tokens : kRows) {
      expect_backward(tokens, 257, dtype, 2);
      expect_backward(tokens, 7, dtype, 3);
    }
    expect_backward(400, 129, dtype, 1);
    expect_backward(400, 129, dtype, 7);
    expect_backward(400, 129, dtype, 3, DType::bf16);
  }
}

TEST(Embedding, APaddingTokenTrainsNoRow) {
  for (const DType dtype : kComputeTypes) {
    const std::int64_t tokens = 129, hidden = 33;
    const Tensor d_out = Tensor::random(dtype, tokens, hidden, 1);
    const Tensor before = Tensor::random(DType::f32, kVocabulary, hidden, 2);
    const std::vector<std::int32_t> ids = some_ids(tokens);
    const std::int32_t padding = ids.front();
    Tensor d_table = before;
    CpuStream stream;
    std::vector<std::byte> scratch(embedding_backward_workspace(stream.device(), tokens, kVocabulary));
    embedding_backward(stream, {.ids = ids.data(),
                                .d_out = d_out.matrix(),
                                .scale = 2.5f,
                                .d_table = d_table.matrix(),
                                .padding_id = padding,
                                .workspace = {scratch.data(), scratch.size()}});
    for (std::int64_t id = 0; id < kVocabulary; ++id) {
      for (std::int64_t c = 0; c < hidden; ++c) {
        double want = before.at(id, c), size = std::abs(want);
        for (std::int64_t t = 0; t < tokens && id != padding; ++t) {
          if (ids[static_cast<std::size_t>(t)] != id) continue;
          want += 2.5 * d_out.at(t, c);
          size += std::abs(2.5 * d_out.at(t, c));
        }
        if (id == padding) {
          ASSERT_EQ(d_table.at(id, c), want);
        } else {
          ASSERT_NEAR(d_table.at(id, c), want, 3e-7 * size) << id << " " << c;
        }
      }
    }
  }
}

TEST(Embedding, BackwardWithoutScratchIsRefused) {
  const Tensor d_out = Tensor::random(DType::f32, 4, 8, 1);
  Tensor d_table = Tensor::zeros(DType::f32, kVocabulary, 8);
  const std::vector<std::int32_t> ids(4);
  CpuStream stream;
  EXPECT_THROW(
      embedding_backward(stream, {.ids = ids.data(), .d_out = d_out.matrix(), .d_table = d_table.matrix()}),
      std::logic_error);
}

TEST(Rows, ScatterPutsBackWhatGatherTookAndZerosTheRest) {
  for (const DType dtype : kComputeTypes) {
    const Tensor x = Tensor::random(dtype, 129, 80, 1);
    std::vector<std::int32_t> rows;
    for (std::int32_t r = 128; r >= 0; r -= 3) rows.push_back(r);
    const auto count = static_cast<std::int64_t>(rows.size());
    Tensor picked(dtype, count, 80), back(dtype, 129, 80);
    CpuStream stream;
    gather_rows(stream, x.matrix(), rows.data(), picked.matrix());
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t c = 0; c < 80; ++c) {
        ASSERT_EQ(picked.at(i, c), x.at(rows[static_cast<std::size_t>(i)], c));
      }
    }
    scatter_rows(stream, picked.matrix(), rows.data(), back.matrix());
    for (std::int64_t r = 0; r < 129; ++r) {
      for (std::int64_t c = 0; c < 80; ++c) ASSERT_EQ(back.at(r, c), (128 - r) % 3 == 0 ? x.at(r, c) : 0);
    }
    EXPECT_TRUE(picked.margin_untouched() && back.margin_untouched());
  }
}

TEST(Rows, NoLabelsLeaveZeros) {
  Tensor none(DType::f32, 0, 8), x = Tensor::random(DType::f32, 5, 8, 1);
  CpuStream stream;
  scatter_rows(stream, none.matrix(), nullptr, x.matrix());
  EXPECT_TRUE(x == Tensor::zeros(DType::f32, 5, 8));
}

TEST(Rows, ARowOutsideIsRefused) {
  Tensor x = Tensor::random(DType::f32, 5, 8, 1), out(DType::f32, 1, 8);
  const std::int32_t outside[] = {5};
  EXPECT_THROW(
      {
        CpuStream stream;
        gather_rows(stream, x.matrix(), outside, out.matrix());
        static_cast<Stream&>(stream).synchronize();
      },
      std::logic_error);
}

TEST(Bias, BackwardIsTheColumnSumAtAnyNumberOfThreads) {
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t rows : kRows) {
      for (const std::int64_t cols : kHiddenSizes) {
        const Tensor dy = Tensor::random(dtype, rows, cols, 1);
        const std::vector<float> before = random_floats(cols, 2);
        std::vector<float> two = before, three = before;
        CpuStream stream(2);
        bias_backward(stream, dy.matrix(), two.data());
        CpuStream other(3);
        bias_backward(other, dy.matrix(), three.data());
        EXPECT_EQ(two, three);
        for (std::int64_t c = 0; c < cols; ++c) {
          double want = static_cast<double>(before[static_cast<std::size_t>(c)]), size = std::abs(want);
          for (std::int64_t r = 0; r < rows; ++r) {
            want += dy.at(r, c);
            size += std::abs(dy.at(r, c));
          }
          ASSERT_NEAR(static_cast<double>(two[static_cast<std::size_t>(c)]), want, 3e-7 * size);
        }
      }
    }
  }
}

}  // namespace
}  // namespace octet::ops::embedding_test
