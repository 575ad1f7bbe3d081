// Hashes of what a rank holds, so that bits which went wrong by themselves are seen: what several ranks hold
// alike is compared among them, what must not change is compared with itself, and gradients are compared with
// those that another rank computes of the same micro-batch.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "octet/model/parameter_source.h"
#include "octet/ops/hash.h"
#include "octet/store/store.h"

namespace octet::store {

/// What a store holds between steps, by what it is for.
enum class Held {
  parameters,  ///< as products read them, with the scales of FP8; where a master is read itself, it
  masters,
  moments,
  frozen  ///< what is not trained
};
inline constexpr int kHeldKinds = 4;
/// "parameters", …
const char* name_of(Held kind);

/// By kind: of what every rank holds whole, which is the same on all of them, and of what this rank holds
/// besides. Neither changes between an update and the next one. Left out are what narrow wires lost
/// (Options::error_feedback) and what is gathered or made where it is used.
struct StateHashes {
  std::array<ops::Hash, kHeldKinds> replicas;
  std::array<ops::Hash, kHeldKinds> own;
  bool operator==(const StateHashes&) const = default;
};

/// The hashes of one store, which outlives it. Between steps, or between the last micro-batch of a step and
/// its finish; every function waits for `compute` and, where it reads what other streams write, for them.
class Hashes {
 public:
  /// Reserves a few hundred bytes in `arena` ("checks/hashes"), of the device of the store.
  Hashes(ParameterStore& store, Arena& arena);
  ~Hashes();
  Hashes(const Hashes&) = delete;
  Hashes& operator=(const Hashes&) = delete;

  StateHashes state(Stream& compute);
  /// Returns whether all masters that this rank holds are finite. Between steps.
  static bool masters_are_finite(ParameterStore& store, Stream& compute);
  /// Returns whether all values were finite that this rank loaded for frozen weights in FP8 or NF4.
  static bool frozen_were_finite(const ParameterStore& store);
  /// Of the sums of gradients that every rank has whole (stage 0), before the update; of nothing at other
  /// stages, where each lies on one rank.
  ops::Hash sums(Stream& compute);
  /// Of some device memory, part after part.
  ops::Hash of(const std::vector<TensorSlice>& slices, Stream& compute);

  /// Every micro-batch of a step has gradients of its own; else only the first one has.
  bool apart() const;
  /// From now on the gradients of micro-batch `index` are hashed when they are given back; -1: of none.
  void watch(int index) { watched_ = index; }
  /// Of the gradients that were watched since the last call.
  ops::Hash watched(Stream& compute);
  /// Parameters as the next forward and backward pass reads them, and buffers for gradients that are hashed
  /// when they are given back, and forgotten. All ranks go through the groups alike; one without tokens calls
  /// pass_by(). What a step that is not finished has summed may be lost.
  std::unique_ptr<model::ParameterSource> replay();
  /// For a rank without tokens: takes part in the gathers of a replay.
  void pass_by(model::ParameterSource& replay, Stream& compute);

  // For tests of what becomes of a bit that goes wrong.
  /// Inverts a bit that `draw` chooses among what this rank holds of a kind (where there are no masters
  /// besides parameters, of those). Gives its place in words; empty: this rank
  /// holds nothing of it.
  std::string flip(Held kind, std::uint64_t draw, Stream& compute);
  /// The same of the gradients of the group that is given back next.
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
  ops::Hash* cells_ = nullptr;  ///< device: replicas, own, one more, that of gradients
  ops::Hash* host_ = nullptr;   ///< pinned, likewise
  int watched_ = -1;
  bool flips_ = false;
  std::uint64_t draw_ = 0;
};

}  // namespace octet::store
