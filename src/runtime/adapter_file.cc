#include "octet/runtime/adapter_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>

#include "held_values.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/model/layout.h"
#include "octet/model/tuning.h"

namespace octet::runtime {

namespace {

/// Returns the place of row `i` of gate and up, with `rows` rows, if their rows alternate.
std::int64_t alternated(std::int64_t i, std::int64_t rows) {
  return i < rows / 2 ? 2 * i : 2 * (i - rows / 2) + 1;
}

}  // namespace

std::vector<std::int64_t> StackedMatrix::stacked(const std::vector<std::int64_t>& shape,
                                                 bool exchanged) const {
  const std::int64_t rank = inputs ? shape[0] : shape[1], other = inputs ? shape[1] : shape[0];
  if (inputs != exchanged) return {experts * rank, other};
  return {other, rank * experts};
}

std::int64_t StackedMatrix::element(const std::vector<std::int64_t>& shape, std::int64_t i,
                                    bool exchanged) const {
  const std::int64_t rank = inputs ? shape[0] : shape[1], others = inputs ? shape[1] : shape[0];
  const std::int64_t row = i / shape[1], column = i % shape[1];
  const std::int64_t r = inputs ? row : column;
  const std::int64_t other = inputs ? column : alternates ? alternated(row, others) : row;
  if (inputs != exchanged) return (expert * rank + r) * others + other;
  return other * rank * experts + r * experts + expert;
}

std::optional<StackedMatrix> stacked_matrix(const model::Tuning& tuning, const std::string& parameter) {
  constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight";
  const bool a = parameter.ends_with(kA);
  const std::string prefix = model::kAdapterPrefix;
  if ((!a && !parameter.ends_with(kB)) || !parameter.starts_with(prefix)) return std::nullopt;
  const auto found =
      tuning.stacked.find(parameter.substr(prefix.size(), parameter.size() - prefix.size() - kA.size()));
  if (found == tuning.stacked.end()) return std::nullopt;
  const auto& [tensors, expert, experts, transposed, alternates] = found->second;
  const auto named = [&](std::string_view end) { return prefix + tensors + std::string(end); };
  return StackedMatrix{.tensor = named(a ? kA : kB),
                       .partner = named(a ? kB : kA),
                       .inputs = a,
                       .expert = expert,
                       .experts = experts,
                       .transposed = transposed,
                       .alternates = !a && alternates};
}

namespace {

constexpr const char* kFile = "adapter_model.safetensors";

weights::SafetensorsFile open_file(const std::string& folder) {
  const std::string path = folder + "/" + kFile;
  if (path_exists(path)) {
    try {
      return weights::SafetensorsFile(path);
    } catch (const Error& e) {
      // The same start fails again.
      Problem problem = e.problem();
      if (problem.code == ExitCode::failure) problem.code = ExitCode::usage;
      throw Error(problem);
    }
  }
  throw Error({.what = "the weights of the adapter do not exist",
               .expected = kFile,
               .found = path_exists(folder + "/adapter_model.bin") ? "adapter_model.bin" : "",
               .where = folder,
               .fix = "save the adapter with save_pretrained of PEFT, which writes safetensors",
               .code = ExitCode::usage});
}

/// Returns the tensors that an adapter's file must hold: its matrices and the fully trained parameters.
std::map<std::string, std::vector<std::int64_t>> expected_tensors(const model::ParameterLayout& layout) {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const model::GroupSpec& group : layout.groups) {
    for (const model::SegmentSpec& segment : group.segments) {
      for (const model::TensorSpec& tensor : segment.tensors) {
        for (const model::NamedPart& part : tensor.parts) {
          if (part.name.starts_with(model::kAdapterPrefix)) shapes[part.name] = part.shape;
        }
      }
    }
  }
  return shapes;
}

bool names_head(const std::string& tensor) {
  const std::string prefix = model::kAdapterPrefix;
  return tensor == prefix + "lm_head.weight" || tensor == prefix + "language_model.lm_head.weight";
}

/// Returns whether PEFT before 0.19.1 wrote the folder. It exchanged A and B of parameters of experts.
bool written_before_0_19_1(const std::string& folder) {
  const std::string path = folder + "/adapter_config.json";
  if (!path_exists(path)) return false;
  const Json config = read_json(path);
  if (!config.is_object()) return false;
  std::vector<int> numbers;
  for (const std::string& word : split(json_string(config, "peft_version", "", path), '.')) {
    if (word.empty() || word.size() > 6 ||
        !std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; }))
      break;
    numbers.push_back(std::stoi(word));
  }
  return !numbers.empty() && numbers < std::vector<int>{0, 19, 1};
}

bool same_bytes(const weights::SafetensorsFile& file, const std::string& a, const std::string& b) {
  const auto one = file.bytes(file.at(a)), other = file.bytes(file.at(b));
  return one.size() == other.size() && std::memcmp(one.data(), other.data(), one.size()) == 0;
}

}  // namespace

std::string name_in_model(const std::string& parameter) {
  const std::string prefix = model::kAdapterPrefix;
  return parameter.starts_with(prefix) ? parameter.substr(prefix.size()) : parameter;
}

namespace {

/// Returns `name` with the beginning `to` in place of `from`, or an empty text if it begins otherwise.
std::string with_beginning(const std::string& name, const std::string& from, const std::string& to) {
  return name.starts_with(from) ? to + name.substr(from.size()) : "";
}

std::string module_of(const std::string& tensor) {
  return tensor.substr(0, tensor.rfind('.')) + ".";
}

}  // namespace

std::string name_in_peft(const model::Architecture& architecture, const std::string& parameter) {
  const model::Architecture modules = model::named_as_modules(architecture);
  const std::string prefix = model::kAdapterPrefix;
  for (const auto& [from, to] : {std::pair{architecture.tensor_prefix, modules.tensor_prefix},
                                 {module_of(architecture.head_name), module_of(modules.head_name)}}) {
    const std::string name = with_beginning(parameter, prefix + from, prefix + to);
    if (!name.empty()) return name;
  }
  return parameter;
}

bool is_adapter(const std::string& parameter) {
  return parameter.ends_with(".lora_A.weight") || parameter.ends_with(".lora_B.weight") ||
         parameter.ends_with(kMagnitude);
}

AdapterFile::AdapterFile(const std::string& folder, const model::Tuning& tuning)
    : file_(open_file(folder)),
      tuning_(tuning),
      exchanged_(!tuning.stacked.empty() && written_before_0_19_1(folder)) {}

AdapterFile::AdapterFile(std::shared_ptr<const checkpoint::Checkpoint> checkpoint)
    : checkpoint_(std::move(checkpoint)) {}

std::string AdapterFile::in_file(const std::string& name) const {
  if (!file_ || file_->find(name) != nullptr) return name;
  static constexpr const char* kSpellings[][3] = {
      {"model.language_model.", "language_model.model.", "model."},
      {"lm_head.", "language_model.lm_head.", "lm_head."}};
  const std::string prefix = model::kAdapterPrefix;
  for (const auto& spellings : kSpellings) {
    for (const std::string from : spellings) {
      for (const std::string to : spellings) {
        const std::string other = with_beginning(name, prefix + from, prefix + to);
        if (!other.empty() && file_->find(other) != nullptr) return other;
      }
    }
  }
  return name;
}

const weights::TensorHeader* AdapterFile::find(const std::string& name) const {
  if (file_) return file_->find(in_file(name));
  return name.starts_with(model::kAdapterPrefix) ? checkpoint_->find(name) : nullptr;
}

std::vector<const weights::TensorHeader*> AdapterFile::tensors() const {
  std::vector<const weights::TensorHeader*> all;
  if (file_) {
    for (const weights::StoredTensor& tensor : file_->tensors()) all.push_back(&tensor);
    return all;
  }
  // A checkpoint also holds the state of the optimizer, under other names.
  for (const checkpoint::CheckpointTensor& tensor : checkpoint_->tensors()) {
    if (tensor.name.starts_with(model::kAdapterPrefix)) all.push_back(&tensor);
  }
  return all;
}

std::int64_t AdapterFile::count(const std::string& name) const {
  const auto stacked = stacked_.find(name);
  if (stacked != stacked_.end()) return element_count(stacked->second.shape, name);
  const weights::TensorHeader* tensor = find(name);
  check(tensor != nullptr, "the adapter has the tensors that it was compared with");
  return element_count(tensor->shape, name);
}

std::pair<std::string, std::vector<std::int64_t>> AdapterFile::place(const std::string& name,
                                                                     const std::vector<std::int64_t>& shape) {
  const std::optional<StackedMatrix> matrix = file_ ? stacked_matrix(tuning_, name) : std::nullopt;
  if (!matrix) return {in_file(name), shape};
  const auto fits = [&](bool exchanged) {
    const weights::TensorHeader* tensor = find(exchanged ? matrix->partner : matrix->tensor);
    return tensor != nullptr && tensor->shape == matrix->stacked(shape, exchanged);
  };
  // A and B are exchanged if only the exchanged shapes fit. If both orders fit (inputs equal outputs), the
  // version of PEFT decides. No version exchanges them for transposed parameters.
  const bool exchanged =
      !matrix->transposed && fits(true) && find(matrix->tensor) != nullptr && (exchanged_ || !fits(false));
  StackedMatrix in_order = *matrix;
  in_order.alternates = false;
  const std::int64_t first = in_order.element(shape, 0, exchanged);
  const std::string tensor = in_file(exchanged ? matrix->partner : matrix->tensor);
  stacked_[name] = {.tensor = tensor,
                    .shape = shape,
                    .first = first,
                    .row_step = in_order.element(shape, shape[1], exchanged) - first,
                    .column_step = in_order.element(shape, 1, exchanged) - first,
                    .alternates = matrix->alternates};
  return {tensor, matrix->stacked(shape, exchanged)};
}

void AdapterFile::require_fit(const model::ParameterLayout& layout) {
  std::map<std::string, std::vector<std::int64_t>> expected;
  for (const auto& [name, shape] : expected_tensors(layout)) expected.insert(place(name, shape));
  const auto refuse = [&](const std::string& what, const std::string& name, const std::string& shape = "",
                          const std::string& found = "") {
    throw Error(
        {.what = what,
         .expected = shape,
         .found = found.empty() ? "tensor '" + name + "'" : found,
         .where = found.empty() ? where() : where() + ", tensor '" + name + "'",
         .fix =
             "check that adapter_config.json and the weights in its folder belong together, and to the model",
         .code = ExitCode::usage});
  };
  for (const auto& [name, shape] : expected) {
    const weights::TensorHeader* tensor = find(name);
    if (tensor == nullptr) refuse("the adapter lacks a tensor that its configuration asks for", name);
    if (tensor->shape != shape) {
      refuse("a tensor of the adapter does not fit the model", name, weights::shape_text(shape),
             weights::shape_text(tensor->shape));
    }
  }
  for (const weights::TensorHeader* held : tensors()) {
    const weights::TensorHeader& tensor = *held;
    if (expected.contains(tensor.name)) continue;
    // A tied head has the embedding's table, which PEFT writes under both names.
    const auto table = std::ranges::find_if(
        expected, [](const auto& entry) { return entry.first.ends_with("embed_tokens.weight"); });
    if (!names_head(tensor.name) || table == expected.end())
      refuse("the adapter holds a tensor that has no place in the model with its configuration", tensor.name);
    if (file_ && !same_bytes(*file_, tensor.name, table->first)) {
      refuse("the adapter has a separate head and embedding, but the model ties them", tensor.name,
             "one table under both names, as PEFT writes with ensure_weight_tying", "two tables that differ");
    }
  }
}

void AdapterFile::read_stacked(const Stacked& matrix, std::int64_t begin, std::int64_t count,
                               float* out) const {
  if (!values_.contains(matrix.tensor)) {
    if (values_.size() >= 2) values_.clear();
    const std::int64_t all = file_->at(matrix.tensor).count;
    std::vector<float>& values = values_[matrix.tensor];
    values.resize(static_cast<std::size_t>(all));
    file_->read(matrix.tensor, 0, all, values.data());
  }
  const std::vector<float>& values = values_.at(matrix.tensor);
  for (std::int64_t i = begin; i < begin + count; ++i) {
    const std::int64_t of_module = i / matrix.shape[1], column = i % matrix.shape[1];
    const std::int64_t row = matrix.alternates ? alternated(of_module, matrix.shape[0]) : of_module;
    out[i - begin] =
        values[static_cast<std::size_t>(matrix.first + row * matrix.row_step + column * matrix.column_step)];
  }
}

void AdapterFile::read(const std::string& name, std::int64_t begin, std::int64_t count, float* out) const {
  const auto stacked = stacked_.find(name);
  if (stacked != stacked_.end()) {
    read_stacked(stacked->second, begin, count, out);
  } else if (file_) {
    file_->read(in_file(name), begin, count, out);
  } else {
    checkpoint_->read(name, begin, count, out);
  }
  const float* bad = std::find_if_not(out, out + count, [](float value) { return std::isfinite(value); });
  if (bad == out + count) return;
  throw Error({.what = "a value of the adapter is not finite",
               .expected = "finite numbers",
               .found = std::to_string(*bad) + " as element " + std::to_string(begin + (bad - out)),
               .where = where() + ", tensor '" + name + "'",
               .fix = "use an earlier checkpoint of the run that trained the adapter",
               .code = ExitCode::usage});
}

AddedAdapters::AddedAdapters(const std::vector<AddedAdapter>& adapters, ReadBase base)
    : base_(std::move(base)) {
  adapters_.reserve(adapters.size());
  for (const AddedAdapter& adapter : adapters) {
    adapters_.push_back({.file = adapter.checkpoint
                                     ? AdapterFile(adapter.checkpoint)
                                     : AdapterFile(adapter.folder, adapter.architecture.tuning),
                         .tuning = adapter.architecture.tuning,
                         .module = {},
                         .at_hand = {}});
    adapters_.back().file.require_fit(model::build_layout(adapter.architecture));
  }
}

void AddedAdapters::add_to(const std::string& name, std::int64_t begin, std::int64_t count, float* values) {
  add_first(adapters_.size(), name, begin, count, values);
}

namespace {

/// Returns the name of gate and up of an expert as one module, for the name of one of them. Otherwise,
/// returns an empty text.
std::string joined_module(const std::string& module) {
  const std::size_t dot = module.rfind('.');
  const std::string word = dot == std::string::npos ? "" : module.substr(dot + 1);
  const bool part = word == "gate_proj" || word == "up_proj" || word == "w1" || word == "w3";
  return part && module.find(".experts.") != std::string::npos ? module.substr(0, dot + 1) + "gate_up_proj"
                                                               : "";
}

}  // namespace

// Adds the first `adapters` adapters to elements [begin, begin + count) of a tensor.
void AddedAdapters::add_first(std::size_t adapters, const std::string& name, std::int64_t begin,
                              std::int64_t count, float* values) {
  if (!name.ends_with(".weight")) return;
  const std::string module = name.substr(0, name.rfind('.'));
  for (std::size_t i = 0; i < adapters; ++i) {
    const One& one = adapters_[i];
    if (one.tuning.whole.contains(module)) {
      one.file.read(model::kAdapterPrefix + name, begin, count, values);
      continue;
    }
    const auto shape = one.tuning.modules.find(module);
    if (shape != one.tuning.modules.end()) {
      add_multiplied(matrices(i, module, shape->second), begin, count, values);
      continue;
    }
    const auto joined = one.tuning.modules.find(joined_module(module));
    if (joined == one.tuning.modules.end()) continue;
    // The rows of gate, then the rows of up.
    const Matrices& m = matrices(i, joined->first, joined->second);
    const auto elements = static_cast<std::int64_t>(m.b.size()) / m.rank * m.inputs;
    const std::int64_t first = module.ends_with(".up_proj") || module.ends_with(".w3") ? elements / 2 : 0;
    add_multiplied(m, first + begin, count, values);
  }
}

const AddedAdapters::Matrices& AddedAdapters::matrices(std::size_t number, const std::string& module,
                                                       const model::AdapterShape& shape) {
  One& one = adapters_[number];
  if (module == one.module) return one.at_hand;
  const auto load = [&](const char* matrix) {
    const std::string name = model::kAdapterPrefix + module + matrix;
    const std::int64_t count = one.file.count(name);
    std::vector<float> values(static_cast<std::size_t>(count));
    one.file.read(name, 0, count, values.data());
    return values;
  };
  Matrices& m = one.at_hand;
  m = {};
  m.a = load(".lora_A.weight"), m.b = load(".lora_B.weight");
  m.rank = shape.rank, m.factor = static_cast<float>(shape.factor);
  m.inputs = static_cast<std::int64_t>(m.a.size()) / shape.rank;
  if (shape.dora) {
    m.scale = scales(number, module);
    const std::vector<float> magnitudes = load(kMagnitude);
    for (std::size_t j = 0; j < m.scale.size(); ++j) m.scale[j] *= magnitudes[j];
  }
  one.module = module;
  return m;
}

// Returns 1 / norm for each row of a weight. The row includes all adapters before `number`, and B A of this
// adapter, which is loaded.
std::vector<float> AddedAdapters::scales(std::size_t number, const std::string& module) {
  const Matrices& m = adapters_[number].at_hand;
  std::vector<float> scales(m.b.size() / static_cast<std::size_t>(m.rank));
  std::vector<float> row(static_cast<std::size_t>(m.inputs));
  const std::string name = module + ".weight";
  for (std::size_t j = 0; j < scales.size(); ++j) {
    const std::int64_t begin = static_cast<std::int64_t>(j) * m.inputs;
    base_(name, begin, m.inputs, row.data());
    add_first(number, name, begin, m.inputs, row.data());
    add_multiplied(m, begin, m.inputs, row.data());
    double squares = 0;
    for (const float w : row) squares += static_cast<double>(w) * static_cast<double>(w);
    scales[j] = squares > 0 ? static_cast<float>(1.0 / std::sqrt(squares)) : 0.0f;
  }
  return scales;
}

void AddedAdapters::add_multiplied(const Matrices& m, std::int64_t begin, std::int64_t count, float* values) {
  std::vector<float> sum(static_cast<std::size_t>(std::min(m.inputs, count)));
  for (std::int64_t i = begin; i < begin + count;) {
    const std::int64_t row = i / m.inputs, column = i % m.inputs;
    const std::int64_t n = std::min(m.inputs - column, begin + count - i);
    std::fill_n(sum.begin(), n, 0.0f);
    for (std::int64_t r = 0; r < m.rank; ++r) {
      const float b = m.b[static_cast<std::size_t>(row * m.rank + r)];
      const float* a = m.a.data() + r * m.inputs + column;
      for (std::int64_t c = 0; c < n; ++c) sum[static_cast<std::size_t>(c)] += b * a[c];
    }
    for (std::int64_t c = 0; c < n; ++c) values[i - begin + c] += m.factor * sum[static_cast<std::size_t>(c)];
    const float scale = m.scale.empty() ? 1.0f : m.scale[static_cast<std::size_t>(row)];
    for (std::int64_t c = 0; c < n; ++c) values[i - begin + c] *= scale;
    i += n;
  }
}

}  // namespace octet::runtime
