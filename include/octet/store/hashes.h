// Hashes of the memory of a store. They detect silent data corruption.
// State that several ranks hold alike is compared among these ranks. State that must not change is compared
// with its earlier hash. Gradients are compared with gradients that another rank computes from the same
// micro-batch.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "octet/model/parameter_source.h"
#include "octet/ops/step_checks.h"
#include "octet/store/store.h"

namespace octet::store {

/// Kinds of state that a store holds between steps.
enum class Held {
  parameters,  ///< as GEMMs read them, with FP8 scales; includes a master that is read directly
  masters,
  moments,
  frozen  ///< weights that are not trained
};
inline constexpr int kHeldKinds = 4;
/// Returns "parameters", "masters", "moments" or "frozen weights".
const char* name_of(Held kind);

/// Hashes of the state, by kind. `replicas` covers state that every rank holds whole; its hash is equal on
/// all ranks. `own` covers the other state of this rank. Only an update changes them. Not hashed: the
/// residuals of narrow wires (Options::error_feedback), and copies that are gathered or made at use.
struct StateHashes {
  std::array<ops::Hash, kHeldKinds> replicas;
  std::array<ops::Hash, kHeldKinds> own;
  bool operator==(const StateHashes&) const = default;
};

/// Hashes of one store. The store must outlive this object. Call the functions between steps, or after the
/// last micro-batch of a step and before its finish. Every function waits for `compute`. It also waits for
/// other streams if it reads memory that they write.
class Hashes {
 public:
  /// Reserves a few hundred bytes in `arena` ("checks/hashes"). `arena` must be of the store's device.
  Hashes(ParameterStore& store, Arena& arena);
  ~Hashes();
  Hashes(const Hashes&) = delete;
  Hashes& operator=(const Hashes&) = delete;

  StateHashes state(Stream& compute);
  /// Returns whether all masters on this rank are finite. Call it between steps.
  static bool masters_are_finite(ParameterStore& store, Stream& compute);
  /// Returns whether all values were finite that this rank loaded for frozen FP8 or NF4 weights.
  static bool frozen_were_finite(const ParameterStore& store);
  /// Returns the hash of the gradient sums that every rank holds whole (stage 0), before the update. Returns
  /// an empty hash at other stages and with one rank: each sum is then stored on one rank.
  ops::Hash sums(Stream& compute);
  /// Returns the hash of device memory, slice after slice.
  ops::Hash of(const std::vector<TensorSlice>& slices, Stream& compute);

  /// Returns whether gradient buffers start fresh at every micro-batch. If not, only the first micro-batch of
  /// a step can be hashed separately.
  bool apart() const;
  /// Hashes the gradients of micro-batch `index` when they are given back, from now on. -1: hashes none.
  void watch(int index) { watched_ = index; }
  /// Returns the hash of the watched gradients since the last call.
  ops::Hash watched(Stream& compute);
  /// Returns a source for one more pass through a micro-batch. It serves parameters as the next forward and
  /// backward pass reads them. Gradients are hashed when they are given back, and then discarded. All ranks
  /// must acquire the groups in the same order; a rank without tokens calls pass_by(). The gradient sums of
  /// an unfinished step may be lost.
  std::unique_ptr<model::ParameterSource> replay();
  /// Takes part in the gathers of a replay, for a rank without tokens.
  void pass_by(model::ParameterSource& replay, Stream& compute);

  // For tests that inject bit errors.
  /// Inverts one bit, chosen by `draw`, in this rank's state of the given kind. If masters and parameters
  /// share memory, either kind selects it. Returns a description of the place, or an empty string if this
  /// rank holds no such state.
  std::string flip(Held kind, std::uint64_t draw, Stream& compute);
  /// Inverts one bit in the gradients of the next group that is given back.
  void flip_gradient(std::uint64_t draw);

 private:
  struct Inside;
  class Replay;
  static Inside inside_of(ParameterStore& store);
  void add_gradients(int group, Stream& compute);
  void take(std::size_t count, Stream& compute);
  void given_back(int group, int micro_batch, Stream& compute);
  std::string flip_at(void* data, std::int64_t bytes, std::uint64_t draw, Stream& compute);

  std::unique_ptr<Inside> inside_;
  ops::Hash* cells_ = nullptr;  ///< device: replicas, own, a temporary, the gradients
  ops::Hash* host_ = nullptr;   ///< pinned, in the same order
  int watched_ = -1;
  bool flips_ = false;
  std::uint64_t draw_ = 0;
};

}  // namespace octet::store
