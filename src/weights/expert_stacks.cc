#include "octet/weights/expert_stacks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/tensor_slice.h"
#include "octet/device/cpu.h"
#include "octet/weights/convert.h"

namespace octet::weights {
namespace {

constexpr std::int64_t kGroup = 32;       ///< values with one scale
constexpr std::int64_t kGroupBytes = 16;  ///< of their codes

/// The values of E2M1 codes.
constexpr std::array<float, 16> kCodes{0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                       -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/// The value of a scale in E8M0. 2^-127 is below the normal numbers, and 255 is NaN.
float scale_of(std::byte code) {
  const auto e = std::to_integer<std::uint32_t>(code);
  if (e == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(e == 0 ? std::uint32_t{1} << 22 : e << 23);
}

/// Calls act(row, first column, last column, position in out) for the rows of elements [begin, begin +
/// count).
template <typename Act>
void each_row(std::int64_t cols, std::int64_t begin, std::int64_t count, Act act) {
  if (count == 0) return;
  const std::int64_t first = begin / cols, last = (begin + count - 1) / cols;
  const int threads = static_cast<int>(std::min<std::int64_t>(cpu::op_threads(), 1 + count / (1 << 18)));
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t row = first; row <= last; ++row) {
    const std::int64_t from = std::max(begin, row * cols), to = std::min(begin + count, (row + 1) * cols);
    act(row, from - row * cols, to - row * cols, from - begin);
  }
}

/// Reads whole columns of the stored matrix side by side, so that each line of memory is read once.
void read_matrix(const ExpertPart& part, DType dtype, std::span<const std::byte> values, std::int64_t begin,
                 std::int64_t count, float* out) {
  constexpr std::int64_t kRows = 32;
  if (count == 0) return;
  const std::int64_t outputs = part.columns, inputs = part.cols;
  const std::byte* const matrix =
      values.data() + static_cast<std::size_t>(part.expert * inputs * outputs) * size_of(dtype);
  const std::int64_t first = begin / inputs, last = (begin + count - 1) / inputs;
  // A part of one row, as ranks that split the columns read it, needs only its own columns.
  const std::int64_t from = first == last ? begin % inputs : 0;
  const std::int64_t to = first == last ? from + count : inputs;
  const std::int64_t tiles = (last - first) / kRows + 1;
  const int threads = static_cast<int>(std::min<std::int64_t>(cpu::op_threads(), 1 + count / (1 << 18)));
#pragma omp parallel for num_threads(threads) schedule(static)
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    const std::int64_t row = first + tile * kRows, rows = std::min(kRows, last + 1 - row);
    const std::int64_t run = (rows - 1) * part.step + 1;
    std::array<float, 2 * kRows> line{};
    for (std::int64_t c = from; c < to; ++c) {
      const std::int64_t at = c * outputs + row * part.step + part.first;
      to_float(dtype, matrix + static_cast<std::size_t>(at) * size_of(dtype), run, line.data());
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t i = (row + r) * inputs + c;
        if (i >= begin && i < begin + count) out[i - begin] = line[static_cast<std::size_t>(r * part.step)];
      }
    }
  }
}

void read_codes(const ExpertPart& part, std::span<const std::byte> codes, std::span<const std::byte> scales,
                std::int64_t begin, std::int64_t count, float* out) {
  const std::int64_t rows = part.step * part.rows, groups = part.cols / kGroup;
  each_row(
      part.cols, begin, count, [&](std::int64_t row, std::int64_t from, std::int64_t to, std::int64_t place) {
        const std::int64_t stored = (part.expert * rows + part.first + part.step * row) * groups;
        for (std::int64_t c = from; c < to; ++c) {
          const std::int64_t group = stored + c / kGroup;
          const auto pair = std::to_integer<unsigned>(
              codes[static_cast<std::size_t>(group * kGroupBytes + c % kGroup / 2)]);
          out[place + c - from] =
              kCodes[c % 2 == 0 ? pair & 15u : pair >> 4] * scale_of(scales[static_cast<std::size_t>(group)]);
        }
      });
}

}  // namespace

void read_part(const ExpertPart& part, DType dtype, std::span<const std::byte> values,
               std::span<const std::byte> scales, std::int64_t begin, std::int64_t count, float* out) {
  check(begin >= 0 && count >= 0 && begin <= part.rows * part.cols - count, "a range is inside its tensor");
  switch (part.form) {
    case ExpertPart::Form::matrix:
      return read_matrix(part, dtype, values, begin, count, out);
    case ExpertPart::Form::mxfp4:
      return read_codes(part, values, scales, begin, count, out);
    case ExpertPart::Form::bias:
      break;
  }
  const std::int64_t start = part.expert * part.step * part.rows + part.first;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t at = start + part.step * (begin + i);
    to_float(dtype, values.data() + static_cast<std::size_t>(at) * size_of(dtype), 1, out + i);
  }
}

ExpertLayout layout_of_stacks(const std::vector<std::int64_t>& gate_up,
                              const std::vector<std::int64_t>& down) {
  if (gate_up.size() != 3 || down.size() != 3 || gate_up[0] != down[0]) return ExpertLayout::separate;
  // Both cannot be true, because widths are above zero.
  if (gate_up[1] == 2 * down[2] && gate_up[2] == down[1]) return ExpertLayout::outputs_first;
  if (gate_up[2] == 2 * down[1] && gate_up[1] == down[2]) return ExpertLayout::inputs_first;
  return ExpertLayout::separate;
}

ExpertStacks::ExpertStacks(const std::vector<TensorHeader>& tensors, ExpertLayout layout) {
  constexpr std::string_view kExperts = ".experts.";
  const auto front_of = [&](const std::string& name) {
    const std::size_t at = name.find(kExperts);
    return at == std::string::npos ? std::string() : name.substr(0, at + kExperts.size());
  };
  std::map<std::string, std::int64_t> biased, experts;  // number of experts of each stacked front
  for (const TensorHeader& tensor : tensors) {
    const std::string front = front_of(tensor.name);
    if (front.empty()) continue;
    if (tensor.name.ends_with(".down_proj.bias")) ++biased[front];
    if (tensor.name.ends_with(".down_proj.weight") && layout != ExpertLayout::separate) ++experts[front];
  }
  for (const auto& [front, count] : biased) experts[front] = count;
  for (const TensorHeader& tensor : tensors) {
    const std::string front = front_of(tensor.name);
    const auto found = experts.find(front);
    if (found == experts.end()) {
      tensors_.push_back(tensor);
      continue;
    }
    // The tensors of the first expert stand for the tensors of all.
    if (!tensor.name.starts_with(front + "0.")) continue;
    const std::string part = tensor.name.substr(front.size() + 2);  // "gate_proj.weight"
    if (part.starts_with("up_proj.")) continue;
    const std::size_t dot = part.find('.');
    const bool gate = part.starts_with("gate_proj."), bias = part.ends_with(".bias");
    Stack stack{.front = front,
                .parts = {part},
                .rows = tensor.shape.front(),
                .cols = bias ? 1 : tensor.shape.back(),
                .layout = biased.contains(front) ? ExpertLayout::interleaved : layout};
    if (gate) stack.parts.push_back("up_proj" + part.substr(dot));
    TensorHeader whole = tensor;
    whole.name = front + (gate ? "gate_up_proj" : "down_proj") + (bias ? "_bias" : "");
    const std::int64_t outputs = stack.rows * std::ssize(stack.parts);
    whole.shape = {found->second, stack.cols, outputs};
    if (stack.layout == ExpertLayout::outputs_first) std::swap(whole.shape[1], whole.shape[2]);
    if (bias) whole.shape = {found->second, outputs};
    stacks_[whole.name] = stack;
    tensors_.push_back(std::move(whole));
  }
}

void ExpertStacks::read_expert(const Read& read, const std::string& name, const Stack& stack,
                               std::int64_t expert) {
  if (held_ == name && held_expert_ == expert) return;
  const std::int64_t count = stack.rows * stack.cols, parts = std::ssize(stack.parts);
  std::vector<float> one(static_cast<std::size_t>(count));
  values_.resize(static_cast<std::size_t>(parts * count));
  held_.clear();
  for (std::int64_t p = 0; p < parts; ++p) {
    read(stack.front + std::to_string(expert) + "." + stack.parts[static_cast<std::size_t>(p)], 0, count,
         one.data());
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = i / stack.cols, col = i % stack.cols;
      std::int64_t to = (col * stack.rows + row) * parts + p;
      if (stack.layout == ExpertLayout::inputs_first) to = (col * parts + p) * stack.rows + row;
      if (stack.layout == ExpertLayout::outputs_first) to = p * count + i;
      values_[static_cast<std::size_t>(to)] = one[static_cast<std::size_t>(i)];
    }
  }
  held_ = name;
  held_expert_ = expert;
}

void ExpertStacks::read(const Read& read, const std::string& name, std::int64_t begin, std::int64_t count,
                        float* out) {
  const auto found = stacks_.find(name);
  if (found == stacks_.end()) return read(name, begin, count, out);
  const Stack& stack = found->second;
  const std::int64_t each = stack.rows * stack.cols * std::ssize(stack.parts);
  for (std::int64_t at = begin; at < begin + count;) {
    const std::int64_t expert = at / each, inside = at % each;
    const std::int64_t n = std::min(each - inside, begin + count - at);
    read_expert(read, name, stack, expert);
    std::copy_n(values_.begin() + inside, n, out + (at - begin));
    at += n;
  }
}

}  // namespace octet::weights
