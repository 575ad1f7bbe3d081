#include "octet/runtime/initial_weights.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "held_values.h"
#include "octet/base/error.h"
#include "octet/base/tensor_slice.h"
#include "octet/checkpoint/hub_export.h"
#include "octet/model/layout.h"
#include "octet/model/tuning.h"
#include "octet/weights/convert.h"
#include "octet/weights/safetensors.h"

namespace octet::runtime {

// The weights of a model before adapters, from its folder or from a checkpoint instead.

class BaseWeights {
 public:
  /// Opens the folder, unless the checkpoint holds every parameter. Throws Error like WeightFolder.
  BaseWeights(const std::string& folder, const TrainedParameters& trained);

  /// Throws Error like WeightFolder::require_used(). Throws Error (usage) for a parameter of the checkpoint
  /// that is not in `used`.
  void require_used(const std::set<std::string>& used, const std::string& prefix,
                    const std::vector<std::string>& unread) const;
  /// Fills a slice (host memory, f32) of a tensor with its shape. Throws Error for a missing tensor and
  /// another shape, and for bytes of the checkpoint that are damaged.
  void read(const TensorSlice& slice) const;
  /// Reads elements [begin, begin + count) of a tensor in row-major order.
  void read(const std::string& name, std::int64_t begin, std::int64_t count, float* out) const;
  /// Whether neither the checkpoint nor the folder has the tensor.
  bool lacks(const std::string& name) const;
  /// Returns the weights of the folder. Only a run that begins may call it, not a run from a checkpoint.
  const weights::WeightFolder& folder() const;

 private:
  bool from_checkpoint(const std::string& name) const;
  void round(std::int64_t count, float* values) const;

  TrainedParameters trained_;
  std::optional<weights::WeightFolder> folder_;
};

BaseWeights::BaseWeights(const std::string& folder, const TrainedParameters& trained) : trained_(trained) {
  if (trained.checkpoint == nullptr || trained.part) folder_.emplace(folder);
}

bool BaseWeights::lacks(const std::string& name) const {
  return folder_ && !from_checkpoint(name) && folder_->find(name) == nullptr;
}

bool BaseWeights::from_checkpoint(const std::string& name) const {
  if (trained_.checkpoint == nullptr) return false;
  return !trained_.part || trained_.checkpoint->find(name) != nullptr;
}

void BaseWeights::require_used(const std::set<std::string>& used, const std::string& prefix,
                               const std::vector<std::string>& unread) const {
  if (folder_) folder_->require_used(used, prefix, unread);
  if (trained_.checkpoint == nullptr) return;
  for (const checkpoint::CheckpointTensor& tensor : trained_.checkpoint->tensors()) {
    // Names with a slash belong to optimizer state and scales.
    if (tensor.name.find('/') != std::string::npos || used.contains(tensor.name)) continue;
    throw Error({.what = "a parameter of the checkpoint has no place in the model",
                 .found = "tensor '" + tensor.name + "'",
                 .where = trained_.checkpoint->path(),
                 .fix = "name the model that the run began with",
                 .code = ExitCode::usage});
  }
}

void BaseWeights::round(std::int64_t count, float* values) const {
  check(trained_.dtype == DType::f32 || trained_.dtype == DType::bf16 || trained_.dtype == DType::f16,
        "weights are written as f32, bf16 or f16");
  if (trained_.checkpoint == nullptr || trained_.dtype == DType::f32) return;
  const bool brain = trained_.dtype == DType::bf16;
  for (std::int64_t i = 0; i < count; ++i)
    values[i] = brain ? from_bf16(to_bf16(values[i])) : from_f16(to_f16(values[i]));
}

void BaseWeights::read(const TensorSlice& slice) const {
  if (from_checkpoint(slice.name)) {
    trained_.checkpoint->read({slice});
  } else {
    folder_->read(slice);
  }
  if (checkpoint::stays_fp32(slice.name)) return;
  each_run(slice,
           [&](std::int64_t, std::int64_t count, void* data) { round(count, static_cast<float*>(data)); });
}

void BaseWeights::read(const std::string& name, std::int64_t begin, std::int64_t count, float* out) const {
  if (from_checkpoint(name)) {
    trained_.checkpoint->read(name, begin, count, out);
  } else {
    folder_->read(name, begin, count, out);
  }
  if (checkpoint::stays_fp32(name)) return;
  round(count, out);
}

const weights::WeightFolder& BaseWeights::folder() const {
  check(folder_.has_value(), "the weights come from a folder, not from a checkpoint");
  return *folder_;
}

namespace {

std::optional<AdapterFile> open_adapter(const WeightSource& source) {
  if (source.adapter.empty()) return std::nullopt;
  return std::optional<AdapterFile>(std::in_place, source.adapter, source.tuning);
}

/// Whether a slice names stored scales of NF4. No parameter has such a name.
bool names_array(const std::string& name) {
  return name.ends_with("absmax") || name.ends_with(".nested_offset");
}

std::set<std::string> names_in_model(const model::ParameterLayout& layout) {
  std::set<std::string> names;
  for (const std::string& name : model::tensor_names(layout)) {
    if (!is_adapter(name)) names.insert(name_in_model(name));
  }
  return names;
}

/// Throws Error for routers with a value that is not finite: they would send every token to the same experts.
/// Vectors that are never trained are their biases, and numbers of activations.
void require_finite_routers(const model::ParameterLayout& layout, const BaseWeights& weights,
                            const std::string& folder) {
  for (const model::GroupSpec& group : layout.groups) {
    for (const model::SegmentSpec& segment : group.segments) {
      for (const model::TensorSpec& router : segment.tensors) {
        if (router.rate > 0 && (!segment.expert || segment.fp8)) continue;
        for (const model::NamedPart& part : router.parts) {
          std::vector<float> values(static_cast<std::size_t>(part.count));
          const std::string name = name_in_model(part.name);
          weights.read({name, DType::f32, part.shape, 0, part.count, values.data()});
          const std::string what = router.init == model::InitRule::value ? "it" : "a router";
          weights::require_finite(
              name, values.data(), part.count, DType::f32, folder,
              "fetch the weights again, or take another model: " + what + " must be finite");
        }
      }
    }
  }
}

}  // namespace

InitialWeights::InitialWeights(const WeightSource& source, const model::ParameterLayout& layout)
    : source_(source),
      weights_(std::make_unique<const BaseWeights>(source.folder, source.trained)),
      added_(source.added, [this](const std::string& name, std::int64_t begin, std::int64_t count,
                                  float* out) { weights_->read(name, begin, count, out); }),
      adapter_(open_adapter(source)) {
  weights_->require_used(names_in_model(layout), source.tensor_prefix, source.unread);
  require_finite_routers(layout, *weights_, source.folder);
  if (adapter_) adapter_->require_fit(layout);
}

InitialWeights::~InitialWeights() = default;

void InitialWeights::read_base(const TensorSlice& slice) const {
  TensorSlice in_model = slice;
  in_model.name = name_in_model(slice.name);
  if (in_model.name == source_.new_head && weights_->lacks(in_model.name)) {
    const model::NamedPart head{.name = in_model.name, .shape = in_model.shape};
    each_run(in_model, [&](std::int64_t begin, std::int64_t count, void* data) {
      std::ranges::copy(model::uniform_values(head, source_.seed, begin, count), static_cast<float*>(data));
    });
  } else {
    weights_->read(in_model);
  }
  each_run(in_model, [&](std::int64_t begin, std::int64_t count, void* data) {
    added_.add_to(in_model.name, begin, count, static_cast<float*>(data));
  });
}

// A new magnitude: the norms of the rows of the module's weight as the model computes with it, so that a new
// adapter changes nothing (arXiv:2402.09353, section 4.1).
void InitialWeights::read_norms(const TensorSlice& slice) const {
  const std::string module = name_in_model(slice.name.substr(0, slice.name.size() - std::strlen(kMagnitude)));
  const std::string name = module + ".weight";
  const weights::WeightFolder& folder = weights_->folder();
  const weights::StoredTensor* stored = folder.find(name);
  const weights::QuantisedTensor* quantised = folder.quantised(name);
  const std::vector<std::int64_t> shape = quantised != nullptr ? quantised->header.shape
                                          : stored != nullptr  ? stored->shape
                                                               : std::vector<std::int64_t>();
  if (shape.size() != 2 || shape.front() != slice.shape.front())
    (void)folder.expect(name, {slice.shape.front(), 0});
  const std::int64_t columns = shape.back();
  HeldValues held(
      source_.held,
      [&](std::int64_t begin, std::int64_t count, float* out) {
        weights_->read(name, begin, count, out);
        added_.add_to(name, begin, count, out);
      },
      slice.shape.front() * columns);
  std::vector<float> row(static_cast<std::size_t>(columns));
  each_run(slice, [&](std::int64_t begin, std::int64_t count, void* data) {
    for (std::int64_t i = 0; i < count; ++i) {
      held.get((begin + i) * columns, columns, row.data());
      double squares = 0;
      for (const float w : row) squares += static_cast<double>(w) * static_cast<double>(w);
      static_cast<float*>(data)[i] = static_cast<float>(std::sqrt(squares));
    }
  });
}

void InitialWeights::read(const TensorSlice& slice) const {
  if (slice.dtype == DType::u8 || names_array(slice.name)) {
    if (source_.added.empty()) return weights_->folder().read_stored(slice);
    throw Error({.what = "adapters cannot be added to weights that are stored in 4 bits",
                 .expected = "an unquantised base, or one adapter that is trained further",
                 .found = std::to_string(source_.added.size()) + " to add",
                 .where = source_.folder,
                 .fix =
                     "merge them into the unquantised base (trainer export --merge), and quantise that with "
                     "quantization_bit: 4",
                 .code = ExitCode::usage});
  }
  if (adapter_ && adapter_->holds(slice.name)) {
    each_run(slice, [&](std::int64_t begin, std::int64_t count, void* data) {
      adapter_->read(slice.name, begin, count, static_cast<float*>(data));
    });
    return;
  }
  if (!is_adapter(slice.name)) return read_base(slice);
  if (slice.name.ends_with(kMagnitude)) return read_norms(slice);
  const bool zero = slice.name.ends_with(".lora_B.weight");
  const model::NamedPart part{.name = slice.name, .shape = slice.shape};
  each_run(slice, [&](std::int64_t begin, std::int64_t count, void* data) {
    auto* out = static_cast<float*>(data);
    if (zero) return static_cast<void>(std::fill_n(out, count, 0.0f));
    const auto values = model::uniform_values(part, source_.seed, begin, count);
    std::copy(values.begin(), values.end(), out);
  });
}

}  // namespace octet::runtime
