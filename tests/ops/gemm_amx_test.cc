// bf16 GEMMs on processors with AMX: shapes that kernels of oneDNN 2.6 compute wrongly or with an illegal
// instruction. Shapes are computed in child processes, so that a signal names its shape.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "cpu/attention_amx.h"
#include "cpu/matmul.h"
#include "octet/base/environment.h"

namespace octet::ops::cpu::gemm_amx_test {
namespace amx_shapes {
namespace {

std::string text_of(const MatmulShape& s) {
  return "m " + std::to_string(s.m) + ", n " + std::to_string(s.n) + ", k " + std::to_string(s.k) +
         (s.a_transposed ? ", A transposed" : "") + (s.b_transposed ? ", B transposed" : "");
}

// Returns small multiples of 1/8, which have exact products and sums.
std::vector<std::uint16_t> values(std::int64_t count, std::mt19937& random) {
  std::vector<std::uint16_t> made(static_cast<std::size_t>(count));
  for (auto& x : made) x = to_bf16(static_cast<float>(static_cast<int>(random() % 17) - 8) / 8);
  return made;
}

// Returns the first shape with a wrong result; "" if all are correct.
std::string wrong_shape(const MatmulShape& given) {
  MatmulShape s = given;
  s.operands = DType::bf16;
  if (s.ldd == 0) s.ldd = s.n;
  std::mt19937 random(static_cast<unsigned>(s.m * 131 + s.n * 7 + s.k));
  const auto a = values(s.m * s.k, random), b = values(s.k * s.n, random);
  std::vector<float> bias(static_cast<std::size_t>(s.n), 0.5f),
      d(static_cast<std::size_t>(s.m * s.ldd), 2.0f);
  matmul(s, {.a = a.data(), .b = b.data(), .d = d.data(), .scale = 2.0f, .bias = bias.data()});
  std::vector<float> wide(b.size()), row(static_cast<std::size_t>(s.n));
  for (std::size_t i = 0; i < b.size(); ++i) wide[i] = from_bf16(b[i]);
  for (std::int64_t i = 0; i < s.m; ++i) {
    std::fill(row.begin(), row.end(), 0.0f);
    for (std::int64_t x = 0; x < s.k; ++x) {
      const float factor = from_bf16(a[static_cast<std::size_t>(s.a_transposed ? x * s.m + i : i * s.k + x)]);
      for (std::int64_t j = 0; j < s.n; ++j)
        row[static_cast<std::size_t>(j)] +=
            factor * wide[static_cast<std::size_t>(s.b_transposed ? j * s.k + x : x * s.n + j)];
    }
    for (std::int64_t j = 0; j < s.ldd; ++j) {
      float expected = 2.0f;  // between the rows of D
      if (j < s.n) {
        expected = row[static_cast<std::size_t>(j)] * (s.scaled ? 2.0f : 1.0f) + (s.bias ? 0.5f : 0.0f) +
                   (s.accumulate ? 2.0f : 0.0f);
      }
      if (d[static_cast<std::size_t>(i * s.ldd + j)] != expected)
        return text_of(s) + ": row " + std::to_string(i) + ", column " + std::to_string(j);
    }
  }
  return "";
}

// Computes shapes in a child process. Returns a description of the first wrong one; "" for none.
std::string in_child(const std::vector<MatmulShape>& shapes) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    const OneThread one;  // OpenMP's threads do not exist in the child process
    std::string last, wrong;
    for (const MatmulShape& shape : shapes) {
      last = text_of(shape) + "\n";
      if (::write(ends[1], last.data(), last.size()) < 0) ::_exit(2);
      if (wrong = wrong_shape(shape); !wrong.empty()) break;
    }
    if (::write(ends[1], wrong.data(), wrong.size()) < 0) ::_exit(2);
    ::_exit(wrong.empty() ? 0 : 1);
  }
  ::close(ends[1]);
  std::string said;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;) {
    said.append(buffer, static_cast<std::size_t>(n));
    if (said.size() > 8192) said.erase(0, said.size() - 4096);
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
  said.resize(said.find_last_not_of('\n') + 1);
  const std::string line = said.substr(said.rfind('\n') + 1);
  return WIFSIGNALED(status) ? line + ": signal " + std::to_string(WTERMSIG(status)) : line;
}

void expect_right(const std::vector<MatmulShape>& shapes) {
  constexpr std::size_t kChild = 500;
  for (std::size_t first = 0; first < shapes.size(); first += kChild) {
    const std::size_t last = std::min(shapes.size(), first + kChild);
    EXPECT_EQ(in_child({shapes.begin() + static_cast<std::ptrdiff_t>(first),
                        shapes.begin() + static_cast<std::ptrdiff_t>(last)}),
              "");
  }
}

#define NEEDS_AMX() \
  if (!has_amx_bf16()) GTEST_SKIP() << "this processor has no AMX"
// The sweep takes minutes; tests/long enables it.
#define NEEDS_TIME()                                           \
  if (environment_variable("OCTETRUN_TEST_SWEEPS") == nullptr) \
  GTEST_SKIP() << "OCTETRUN_TEST_SWEEPS is not set"

TEST(GemmOnAmx, BfloatShapesOfOneInnerDimensionArePadded) {
  for (const std::int64_t k : {1, 31, 62, 63, 64, 126, 127}) {
    for (const std::int64_t n : {1, 65, 80, 112}) {
      EXPECT_EQ(is_wrong_on_amx({.m = 17, .n = n, .k = k, .operands = DType::bf16}), k == 63) << k;
      EXPECT_FALSE(is_wrong_on_amx({.m = 17, .n = n, .k = k, .operands = DType::f32})) << k;
    }
  }
}

TEST(GemmOnAmx, ShapesThatWereWrongAreRight) {
  NEEDS_AMX();
  std::vector<MatmulShape> shapes;
  for (const std::int64_t m : {1, 5, 16, 17, 33, 45}) {
    for (const int how : {0, 1, 2, 3}) {
      shapes.push_back({.m = m,
                        .n = how % 2 == 0 ? 80 : 112,
                        .k = 63,
                        .ldd = how == 3 ? 150 : 0,
                        .a_transposed = (how & 1) != 0,
                        .b_transposed = (how & 2) != 0,
                        .scaled = how == 1,
                        .bias = how >= 1,
                        .accumulate = how == 2});
    }
  }
  expect_right(shapes);
}

TEST(GemmOnAmx, SweepOfInnerDimensions) {
  NEEDS_AMX();
  NEEDS_TIME();
  std::vector<MatmulShape> shapes;
  const std::vector<std::int64_t> rows{1, 7, 15, 17, 31, 33, 45, 63}, cols{16, 48, 80, 112, 259};
  for (std::int64_t k = 1; k <= 130; ++k) {
    for (const std::int64_t m : rows) {
      for (const std::int64_t n : cols) shapes.push_back({.m = m, .n = n, .k = k, .a_transposed = true});
    }
  }
  expect_right(shapes);
}

TEST(GemmOnAmx, SweepOfRowsAndColumnsAtTheInnerDimensionThatWasWrong) {
  NEEDS_AMX();
  NEEDS_TIME();
  std::vector<MatmulShape> shapes;
  for (std::int64_t m = 1; m <= 64; ++m) {
    for (std::int64_t n = 1; n <= 260; ++n) shapes.push_back({.m = m, .n = n, .k = 63, .a_transposed = true});
  }
  expect_right(shapes);
}

TEST(GemmOnAmx, SweepOfRandomShapes) {
  NEEDS_AMX();
  NEEDS_TIME();
  std::mt19937 random(63);
  const auto up_to = [&random](std::int64_t most) {
    return 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(most));
  };
  std::vector<MatmulShape> shapes;
  for (int i = 0; i < 2000; ++i) {
    shapes.push_back({.m = up_to(300),
                      .n = up_to(300),
                      .k = up_to(300),
                      .ldd = random() % 4 == 0 ? 310 : 0,
                      .a_transposed = random() % 2 == 0,
                      .b_transposed = random() % 2 == 0,
                      .scaled = random() % 4 == 0,
                      .bias = random() % 4 == 0,
                      .accumulate = random() % 4 == 0});
  }
  expect_right(shapes);
}

}  // namespace
}  // namespace amx_shapes
}  // namespace octet::ops::cpu::gemm_amx_test
