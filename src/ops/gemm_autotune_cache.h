// The fastest algorithm for each GEMM, stored between runs. Timing takes a while, and its result stays valid
// on the same machine. Compiled in every build, so that it is tested without a GPU.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace octet::ops {

/// Shape, types and alignment of a GEMM.
using GemmKey = std::array<std::int64_t, 16>;
/// An algorithm in its library's description, valid for the same version of that library.
using AlgorithmBits = std::array<std::uint64_t, 8>;

/// Returns the folder for data that is stored between runs: $OCTETRUN_CACHE, else octet in $XDG_CACHE_HOME,
/// else .cache/octet in $HOME. Empty if OCTETRUN_CACHE is `off` or if none of them is set.
std::string cache_folder();

/// Choices of one machine, in one file. Not thread-safe. Several processes may share the file.
class AutotuneCache {
 public:
  /// Reads the choices for `machine` (description of GPU and library) in `folder`. With an empty folder,
  /// nothing is read or stored. A damaged file is reported and written again.
  AutotuneCache(const std::string& folder, std::string machine);

  std::optional<AlgorithmBits> find(const GemmKey& key) const;
  /// Stores one algorithm for some GEMMs and writes the file, including choices that other processes wrote
  /// meanwhile. A failure to write is reported once; then nothing is stored.
  void keep(const std::vector<GemmKey>& gemms, const AlgorithmBits& algorithm);
  /// Path of the file; empty if nothing is stored.
  const std::string& path() const { return path_; }

 private:
  std::map<GemmKey, AlgorithmBits> read() const;

  std::string machine_, path_;
  std::map<GemmKey, AlgorithmBits> choices_;
};

/// The algorithm for each GEMM on one machine: an algorithm chosen for its exact shape or for a similar
/// shape. The numbers of packed documents and labels vary between micro-batches and are equal for all layers.
/// Choosing an algorithm for each number would cost more than it gains. A shape therefore gets a choice only
/// if no similar shape has one, or if the shape came many times in a row. Keys of similar shapes never equal
/// keys of exact shapes. Not thread-safe.
class AlgorithmBook {
 public:
  AlgorithmBook(const std::string& folder, std::string machine) : kept_(folder, std::move(machine)) {}

  struct Known {
    AlgorithmBits algorithm{};
    GemmKey of{};         ///< the GEMM, exact or similar, that it was chosen for
    bool checked = true;  ///< false: chosen in an earlier run, must be checked before use
  };
  /// Returns the algorithm for a GEMM. Returns nothing if an algorithm should be chosen or, with `may_choose`
  /// false, if none is known. Choices of earlier runs are returned only if `may_choose` is true: then the
  /// caller can check them.
  std::optional<Known> known(const GemmKey& exact, const GemmKey& similar, bool may_choose);
  /// For use when choosing is no longer allowed: returns the algorithm that this run chose or checked for the
  /// nearest GEMM. That GEMM differs from `similar` only in element `tokens` of its key. The nearest GEMM has
  /// the smallest ratio of the two token counts; of two with equal ratios, it has more tokens. Returns
  /// nothing if there is no such GEMM.
  std::optional<Known> nearest(const GemmKey& similar, std::size_t tokens) const;
  /// Reports the check of an unchecked result of known(). If not `good`, known() never returns this algorithm
  /// again.
  void checked(const Known& known, const GemmKey& similar, bool good);
  /// Stores the algorithm chosen for a GEMM, for this run and later runs.
  void choose(const GemmKey& exact, const GemmKey& similar, const AlgorithmBits& algorithm);
  /// Returns the choices and checked algorithms of this run as text, for another process on a machine of the
  /// same kind.
  std::string text() const;
  /// Adds the choices in text() of another process as checked choices. Existing choices are kept. Throws
  /// Error if the text is invalid.
  void learn(const std::string& text);
  /// Path of the file; empty if nothing is stored.
  const std::string& path() const { return kept_.path(); }

 private:
  AutotuneCache kept_;
  std::map<GemmKey, AlgorithmBits> exact_, similar_;
  /// Per similar shape: the last GEMM, and how often it came in a row.
  struct Streak {
    GemmKey exact{};
    int length = 0;
  };
  std::map<GemmKey, Streak> streaks_;
  std::set<GemmKey> bad_;  ///< choices of earlier runs that failed their check
};

}  // namespace octet::ops
