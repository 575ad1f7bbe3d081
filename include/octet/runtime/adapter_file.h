#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "octet/checkpoint/checkpoint.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/model/architecture.h"
#include "octet/model/layout.h"

namespace octet::runtime {

/// The weights of an adapter: as PEFT writes them, adapter_model.safetensors in a folder, or those of a
/// checkpoint, whose tensors have the same names.
class AdapterFile {
 public:
  /// Throws Error (usage) where the file is missing, and as SafetensorsFile does where it is broken.
  explicit AdapterFile(const std::string& folder);
  /// Of a checkpoint on disk.
  explicit AdapterFile(std::shared_ptr<const checkpoint::Checkpoint> checkpoint);

  /// Throws Error (usage) for a tensor that no parameter of `layout` takes, which would be left out, for one
  /// that the layout has and the file lacks, and for one of another shape. `layout`: of the model with this
  /// adapter.
  void require_fit(const model::ParameterLayout& layout) const;

  bool holds(const std::string& name) const { return find(name) != nullptr; }
  /// Elements of a tensor that the adapter holds.
  std::int64_t count(const std::string& name) const;
  /// Elements [begin, begin + count) of a tensor, in row-major order, as floats. Throws Error (usage) for a
  /// value that is not finite.
  void read(const std::string& name, std::int64_t begin, std::int64_t count, float* out) const;

 private:
  const checkpoint::TensorHeader* find(const std::string& name) const;
  std::vector<const checkpoint::TensorHeader*> tensors() const;
  /// File or folder, for messages.
  const std::string& where() const { return file_ ? file_->path() : checkpoint_->path(); }

  std::optional<checkpoint::SafetensorsFile> file_;
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;  ///< null: they lie in the file
};

/// An adapter that is added to its base's weights.
struct AddedAdapter {
  std::string folder;                ///< as PEFT writes it
  model::Architecture architecture;  ///< of the base, with this adapter as its tuning
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint = {};  ///< whose adapter it is, without a folder
};

/// Adapters that are added to their base's weights, one after the other: W + factor · B A in fp32 (Hu et al.
/// 2021); with DoRA each row is then scaled to its magnitude (Liu et al. 2024). A module that one of them
/// trained whole takes the place of what stood there.
class AddedAdapters {
 public:
  /// Reads elements [begin, begin + count) of a tensor of the base.
  using ReadBase =
      std::function<void(const std::string& name, std::int64_t begin, std::int64_t count, float* out)>;
  /// Throws Error as AdapterFile does, for adapters that are not of their model. `base` is asked for the rows
  /// whose norms DoRA needs.
  AddedAdapters(const std::vector<AddedAdapter>& adapters, ReadBase base);

  /// Adds to elements [begin, begin + count) of the base's tensor `name`
  /// ("model.layers.0.mlp.up_proj.weight", row-major order), which lie in `values`. One thread at a time.
  void add_to(const std::string& name, std::int64_t begin, std::int64_t count, float* values);

 private:
  /// A module's matrices: A [rank, inputs], B [outputs, rank].
  struct Matrices {
    std::vector<float> a, b;
    std::int64_t rank = 0, inputs = 0;
    float factor = 0;
    std::vector<float> scale;  ///< [outputs], with DoRA: magnitude / norm of the row
  };
  struct One {
    AdapterFile file;
    model::Tuning tuning;
    std::string module;  ///< whose matrices are at hand
    Matrices at_hand;
  };
  const Matrices& matrices(std::size_t number, const std::string& module, const model::AdapterShape& shape);
  std::vector<float> scales(std::size_t number, const std::string& module);
  void add_first(std::size_t adapters, const std::string& name, std::int64_t begin, std::int64_t count,
                 float* values);
  static void add_product(const Matrices& m, std::int64_t begin, std::int64_t count, float* values);

  std::vector<One> adapters_;
  ReadBase base_;
};

/// The name of a parameter in its model: without what PEFT puts before it.
std::string name_in_model(const std::string& parameter);

/// Whether a parameter is a matrix or a magnitude of an adapter.
bool is_adapter(const std::string& parameter);

}  // namespace octet::runtime
