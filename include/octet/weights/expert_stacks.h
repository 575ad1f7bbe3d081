// Experts in weight files that have one tensor for a matrix of all experts of a block. In gpt-oss, inputs and
// outputs are exchanged, and there is one tensor for the biases:
//   <front>gate_up_proj [experts, inputs, 2 * width]    <front>gate_up_proj_bias [experts, 2 * width]
//   <front>down_proj [experts, width, outputs]          <front>down_proj_bias [experts, outputs]
// Output 2 i of gate_up_proj is output i of gate, and output 2 i + 1 is output i of up. MXFP4 files have in
// place of a matrix its codes and scales (OCP Microscaling Formats 1.0):
//   <front>gate_up_proj_blocks u8 [experts, 2 * width, inputs / 32, 16]    …_scales u8 [experts, 2 * width,
//   inputs / 32]
// A byte has two values in E2M1, the first in its lower half. A scale is 2^(byte - 127).
//
// Other families have no biases, and the outputs of gate before the outputs of up:
//   inputs first (qwen3_vl_moe):
//     gate_up_proj [experts, inputs, 2 * width]          down_proj [experts, width, outputs]
//   outputs first (qwen3_5_moe):
//     gate_up_proj [experts, 2 * width, inputs]          down_proj [experts, outputs, width]
//
// In Octet, each expert has its own tensors: "<front>0.gate_proj.weight" [width, inputs],
// "<front>0.gate_proj.bias" [width], and likewise up_proj and down_proj.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "octet/weights/tensor_header.h"

namespace octet::weights {

/// How weight files store the matrices of experts.
enum class ExpertLayout {
  separate,      ///< each expert has its own tensors
  interleaved,   ///< gpt-oss
  inputs_first,  ///< see above
  outputs_first
};

/// Returns the layout of stacked experts without biases, from the shapes of gate_up_proj and down_proj.
/// Returns `separate` if the shapes fit no layout.
ExpertLayout layout_of_stacks(const std::vector<std::int64_t>& gate_up,
                              const std::vector<std::int64_t>& down);

/// A tensor of one expert in a tensor of all experts.
struct ExpertPart {
  enum class Form {
    matrix,  ///< `first` + `step` * row is a column of the expert's matrix [cols, columns]
    bias,    ///< `first` + `step` * i is an element of the expert's bias
    mxfp4    ///< `first` + `step` * row is a row of the expert's codes and scales
  };
  Form form = Form::matrix;
  std::string stacked;  ///< name of the tensor of all experts, or of its codes
  std::string scales;   ///< mxfp4: name of its scales
  std::int64_t expert = 0;
  std::int64_t first = 0, step = 1;
  std::int64_t rows = 0, cols = 1;  ///< of the tensor of this expert
  std::int64_t columns = 0;         ///< matrix: of the expert's stored matrix
};

/// Computes elements [begin, begin + count), in row-major order, of a part. `values`: the bytes of the tensor
/// of all experts in `dtype`, or of its codes. `scales`: the bytes of its scales.
void read_part(const ExpertPart& part, DType dtype, std::span<const std::byte> values,
               std::span<const std::byte> scales, std::int64_t begin, std::int64_t count, float* out);

/// The tensors of a model's export in the names and shapes of its files. Experts with biases are interleaved,
/// and other experts have the given layout. Other tensors are unchanged.
class ExpertStacks {
 public:
  explicit ExpertStacks(const std::vector<TensorHeader>& tensors,
                        ExpertLayout layout = ExpertLayout::separate);

  const std::vector<TensorHeader>& tensors() const { return tensors_; }
  /// Reads elements [begin, begin + count) of a tensor of tensors(), in row-major order. `read` does this for
  /// the tensors of the constructor. Keeps the last expert that was read.
  using Read =
      std::function<void(const std::string& name, std::int64_t begin, std::int64_t count, float* out)>;
  void read(const Read& read, const std::string& name, std::int64_t begin, std::int64_t count, float* out);

 private:
  /// A tensor of all experts: "<front>gate_up_proj", …
  struct Stack {
    std::string front;                ///< "model.layers.0.mlp.experts."
    std::vector<std::string> parts;   ///< "gate_proj.weight" and "up_proj.weight", or one name
    std::int64_t rows = 0, cols = 1;  ///< of a part of one expert
    ExpertLayout layout = ExpertLayout::interleaved;
  };
  void read_expert(const Read& read, const std::string& name, const Stack& stack, std::int64_t expert);

  std::vector<TensorHeader> tensors_;
  std::map<std::string, Stack> stacks_;
  std::string held_;  ///< the tensor and expert of `values_`
  std::int64_t held_expert_ = -1;
  std::vector<float> values_;  ///< one expert of a stacked tensor
};

}  // namespace octet::weights
