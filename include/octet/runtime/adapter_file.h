#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "octet/checkpoint/checkpoint.h"
#include "octet/model/architecture.h"
#include "octet/model/layout.h"
#include "octet/model/tuning.h"
#include "octet/weights/safetensors.h"

namespace octet::runtime {

// Adapters of a parameter of all experts, as PEFT stores them (target_parameters): one A and one B for all
// experts of a block. The trained parameters are an A and a B for each expert.

/// A matrix of an expert's adapter in a tensor of PEFT: A [experts * rank, inputs] has the rows of an expert
/// in a run, and B [outputs, rank * experts] has its columns, `experts` apart.
struct StackedMatrix {
  std::string tensor;   ///< "base_model.model.model.layers.0.mlp.experts.lora_A.weight"
  std::string partner;  ///< the tensor of the other matrix of the adapter
  bool inputs = false;  ///< A
  std::int64_t expert = 0, experts = 1;
  bool transposed = false;  ///< StackedAdapter::transposed
  bool alternates = false;  ///< StackedAdapter::alternates, for B

  /// Returns the shape of the tensor for the shape of the expert's matrix. `exchanged`: of `partner`, which
  /// holds the transposed matrix. PEFT before 0.19.1 stored adapters so.
  std::vector<std::int64_t> stacked(const std::vector<std::int64_t>& shape, bool exchanged = false) const;
  /// Returns the element of that tensor for element `i` of the expert's matrix of this shape.
  std::int64_t element(const std::vector<std::int64_t>& shape, std::int64_t i, bool exchanged = false) const;
};

/// Returns the place of a parameter ("base_model.model.….experts.0.down_proj.lora_A.weight") in PEFT's
/// tensors, or nullopt if PEFT stores it under its own name.
std::optional<StackedMatrix> stacked_matrix(const model::Tuning& tuning, const std::string& parameter);

/// Returns the name of a parameter of adapters in PEFT's files. The text model of a multimodal model is
/// "model.language_model." there, also if its weight files use other names.
std::string name_in_peft(const model::Architecture& architecture, const std::string& parameter);

/// The weights of an adapter: adapter_model.safetensors in a PEFT folder, or the tensors of a checkpoint. A
/// file may name the text model of a multimodal model in any of its ways.
class AdapterFile {
 public:
  /// Adapters of `tuning.stacked` are in PEFT's tensors for all experts, and are read as one matrix for each
  /// expert. Throws Error (usage) if the file is missing. Throws like SafetensorsFile if it is broken.
  explicit AdapterFile(const std::string& folder, const model::Tuning& tuning = {});
  /// Reads the adapter from a checkpoint on disk.
  explicit AdapterFile(std::shared_ptr<const checkpoint::Checkpoint> checkpoint);

  /// Throws Error (usage) for a tensor that has no parameter in `layout`, for a tensor of `layout` that the
  /// file lacks, and for a tensor of another shape. `layout` describes the model with this adapter. Call it
  /// before other functions.
  void require_fit(const model::ParameterLayout& layout);

  bool holds(const std::string& name) const { return stacked_.contains(name) || find(name) != nullptr; }
  /// Returns the number of elements of a tensor that the adapter holds.
  std::int64_t count(const std::string& name) const;
  /// Reads elements [begin, begin + count) of a tensor, in row-major order, as floats. Throws Error (usage)
  /// for a value that is not finite.
  void read(const std::string& name, std::int64_t begin, std::int64_t count, float* out) const;

 private:
  /// A matrix of an expert in a tensor for all experts.
  struct Stacked {
    std::string tensor;
    std::vector<std::int64_t> shape;  ///< of the expert's matrix
    std::int64_t first = 0;           ///< the tensor's element for the first element
    std::int64_t row_step = 0, column_step = 0;
    bool alternates = false;  ///< StackedMatrix::alternates
  };
  /// Returns name and shape of the file's tensor that contains an expected tensor. Records the position of an
  /// expert's matrix in `stacked_`.
  std::pair<std::string, std::vector<std::int64_t>> place(const std::string& name,
                                                          const std::vector<std::int64_t>& shape);
  void read_stacked(const Stacked& matrix, std::int64_t begin, std::int64_t count, float* out) const;
  const weights::TensorHeader* find(const std::string& name) const;
  /// Returns the name of a tensor in the file. Differs from `name` if the file calls the text model
  /// otherwise.
  std::string in_file(const std::string& name) const;
  std::vector<const weights::TensorHeader*> tensors() const;
  /// Path of the file or folder, for messages.
  const std::string& where() const { return file_ ? file_->path() : checkpoint_->path(); }

  std::optional<weights::SafetensorsFile> file_;
  model::Tuning tuning_;
  bool exchanged_ = false;  ///< A and B of parameters are exchanged, as PEFT before 0.19.1 wrote them
  std::map<std::string, Stacked> stacked_;
  /// The tensors for all experts that were read last, at most two: readers alternate between A and B.
  mutable std::map<std::string, std::vector<float>> values_;
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;  ///< null: the tensors are in the file
};

/// An adapter that is added to the weights of its base.
struct AddedAdapter {
  std::string folder;                ///< in PEFT's format
  model::Architecture architecture;  ///< of the base, with this adapter as its tuning
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint = {};  ///< holds the adapter if there is no folder
};

/// Adds adapters to the weights of their base in order: W + factor · B A in fp32 (Hu et al. 2021). With DoRA
/// each row is then scaled to its magnitude (Liu et al. 2024). A fully trained module of an adapter replaces
/// the earlier weights.
class AddedAdapters {
 public:
  /// Reads elements [begin, begin + count) of a tensor of the base.
  using ReadBase =
      std::function<void(const std::string& name, std::int64_t begin, std::int64_t count, float* out)>;
  /// Throws Error like AdapterFile if an adapter does not fit its model. `base` is called for the rows that
  /// DoRA needs norms of.
  AddedAdapters(const std::vector<AddedAdapter>& adapters, ReadBase base);

  /// Adds to elements [begin, begin + count) of the base tensor `name` ("model.layers.0.mlp.up_proj.weight",
  /// row-major order), which are in `values`. One thread at a time.
  void add_to(const std::string& name, std::int64_t begin, std::int64_t count, float* values);

 private:
  /// The matrices of a module: A [rank, inputs], B [outputs, rank].
  struct Matrices {
    std::vector<float> a, b;
    std::int64_t rank = 0, inputs = 0;
    float factor = 0;
    std::vector<float> scale;  ///< [outputs], with DoRA: magnitude / norm of the row
  };
  struct One {
    AdapterFile file;
    model::Tuning tuning;
    std::string module;  ///< module of the matrices in `at_hand`
    Matrices at_hand;
  };
  const Matrices& matrices(std::size_t number, const std::string& module, const model::AdapterShape& shape);
  std::vector<float> scales(std::size_t number, const std::string& module);
  void add_first(std::size_t adapters, const std::string& name, std::int64_t begin, std::int64_t count,
                 float* values);
  static void add_multiplied(const Matrices& m, std::int64_t begin, std::int64_t count, float* values);

  std::vector<One> adapters_;
  ReadBase base_;
};

/// Returns the name of a parameter in its model: without PEFT's prefix.
std::string name_in_model(const std::string& parameter);

/// Returns whether a parameter is a matrix or a magnitude of an adapter.
bool is_adapter(const std::string& parameter);

}  // namespace octet::runtime
