// Finds the stacked experts of gpt-oss in a folder (octet/weights/expert_stacks.h).
#include <string>
#include <utility>
#include <vector>

#include "octet/base/error.h"
#include "octet/weights/expert_stacks.h"
#include "octet/weights/safetensors.h"

namespace octet::weights {
namespace {

[[noreturn]] void refuse_experts(const StoredTensor& tensor, const std::string& what,
                                 const std::string& expected, const std::string& found) {
  throw Error({.what = what,
               .expected = expected,
               .found = found,
               .where = tensor.file + ", tensor '" + tensor.name + "'",
               .fix = "fetch all files of the weights again",
               .code = ExitCode::usage});
}

}  // namespace

void WeightFolder::find_expert_parts() {
  std::vector<std::string> biases;
  for (const SafetensorsFile& file : files_) {
    for (const StoredTensor& tensor : file.tensors()) {
      const bool listed = file_by_tensor_.contains(tensor.name);
      if (listed && tensor.name.ends_with(".experts.gate_up_proj_bias")) biases.push_back(tensor.name);
      if (listed && tensor.name.ends_with(".experts.down_proj_bias")) biases.push_back(tensor.name);
    }
  }
  for (const std::string& bias : biases) find_expert_parts(bias);
}

void WeightFolder::find_expert_parts(const std::string& bias) {
  const StoredTensor& biases = *find(bias);
  const std::string name = bias.substr(0, bias.rfind("_bias"));
  const bool joined = name.ends_with("gate_up_proj");
  if (biases.shape.size() != 2 || biases.count == 0 || !is_float(biases.dtype) ||
      (joined && biases.shape[1] % 2 != 0)) {
    refuse_experts(biases, "the biases of experts cannot be read",
                   joined ? "[experts, 2 * width]" : "[experts, outputs]", shape_text(biases.shape));
  }
  const std::int64_t experts = biases.shape[0], outputs = biases.shape[1];
  const StoredTensor* matrix = find(name);
  const StoredTensor* codes = find(name + "_blocks");
  const StoredTensor* scales = find(name + "_scales");
  const std::string both = "'" + name + "', or '" + name + "_blocks' and '" + name + "_scales' (MXFP4)";
  if (matrix != nullptr && codes != nullptr)
    refuse_experts(*codes, "the matrices of experts occur twice", both, "'" + name + "' and its codes");
  if (matrix == nullptr && (codes == nullptr || scales == nullptr)) {
    refuse_experts(biases, "the matrices of experts are incomplete", both,
                   codes != nullptr    ? "no '" + name + "_scales'"
                   : scales != nullptr ? "no '" + name + "_blocks'"
                                       : "neither");
  }
  std::int64_t inputs = 0;
  if (matrix != nullptr) {
    if (matrix->shape.size() != 3 || matrix->shape[0] != experts || matrix->shape[2] != outputs ||
        !is_float(matrix->dtype)) {
      refuse_experts(*matrix, "the matrices of experts do not fit their biases " + shape_text(biases.shape),
                     "[" + std::to_string(experts) + ", inputs, " + std::to_string(outputs) + "]",
                     shape_text(matrix->shape));
    }
    inputs = matrix->shape[1];
  } else {
    const std::vector<std::int64_t> groups = codes->shape.size() == 4
                                                 ? std::vector(codes->shape.begin(), codes->shape.end() - 1)
                                                 : std::vector<std::int64_t>();
    if (groups.empty() || groups[0] != experts || groups[1] != outputs || codes->shape[3] != 16 ||
        codes->dtype != DType::u8) {
      refuse_experts(*codes, "the MXFP4 codes of experts do not fit their biases " + shape_text(biases.shape),
                     "U8 [" + std::to_string(experts) + ", " + std::to_string(outputs) + ", inputs / 32, 16]",
                     shape_text(codes->shape));
    }
    if (scales->shape != groups || scales->dtype != DType::u8) {
      refuse_experts(*scales,
                     "the MXFP4 scales of experts do not fit their codes " + shape_text(codes->shape),
                     "U8 " + shape_text(groups), shape_text(scales->shape));
    }
    inputs = 32 * groups[2];
  }
  const StoredTensor& stacked = matrix != nullptr ? *matrix : *codes;
  parts_.insert({bias, stacked.name});
  if (matrix == nullptr) parts_.insert(scales->name);
  const std::string front = name.substr(0, name.rfind('.') + 1);
  const std::vector<std::string> modules =
      joined ? std::vector<std::string>{"gate_proj", "up_proj"} : std::vector<std::string>{"down_proj"};
  const std::int64_t step = std::ssize(modules);
  const auto add = [&](const std::string& of, const StoredTensor& from, DType dtype, ExpertPart part) {
    OfExpert one{.tensor = from, .part = std::move(part)};
    one.tensor.name = of;
    one.tensor.dtype = dtype;
    one.tensor.shape = {one.part.rows};
    if (one.part.form != ExpertPart::Form::bias) one.tensor.shape.push_back(one.part.cols);
    one.tensor.count = one.part.rows * one.part.cols;
    of_experts_in_order_.push_back(of);
    of_experts_.emplace(of, std::move(one));
  };
  for (std::int64_t e = 0; e < experts; ++e) {
    for (std::int64_t m = 0; m < step; ++m) {
      const std::string module = front + std::to_string(e) + "." + modules[static_cast<std::size_t>(m)];
      ExpertPart part{.form = matrix != nullptr ? ExpertPart::Form::matrix : ExpertPart::Form::mxfp4,
                      .stacked = stacked.name,
                      .scales = matrix != nullptr ? "" : scales->name,
                      .expert = e,
                      .first = m,
                      .step = step,
                      .rows = outputs / step,
                      .cols = inputs};
      add(module + ".weight", stacked, matrix != nullptr ? matrix->dtype : DType::bf16, part);
      part.form = ExpertPart::Form::bias;
      part.stacked = bias;
      part.cols = 1;
      add(module + ".bias", biases, biases.dtype, part);
    }
  }
}

}  // namespace octet::weights
