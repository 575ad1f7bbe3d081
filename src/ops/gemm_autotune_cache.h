// Which algorithm multiplies which product fastest, kept between runs: timing takes a while, and the answer
// stays the same on the same machine. In every build, so that it is tested without a GPU.
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

/// A product's shape, types and alignment.
using ProductKey = std::array<std::int64_t, 16>;
/// An algorithm as its library describes it, good for the same version of that library.
using AlgorithmBits = std::array<std::uint64_t, 8>;

/// The folder for what is kept between runs: $OCTETRUN_CACHE, else octet in $XDG_CACHE_HOME, else
/// .cache/octet in $HOME. Empty where OCTETRUN_CACHE is `off` or none of them is set.
std::string cache_folder();

/// Choices of one machine, in one file. Not for several threads at once; several processes may share the
/// file.
class AutotuneCache {
 public:
  /// Reads what is kept for `machine` (GPU and library, in words) in `folder`. An empty folder: nothing is
  /// read or kept. A file that is damaged is said and made anew.
  AutotuneCache(const std::string& folder, std::string machine);

  std::optional<AlgorithmBits> find(const ProductKey& product) const;
  /// One algorithm for some products. Also writes the file, with what other processes wrote meanwhile. Where
  /// that fails it is said once, and nothing is kept.
  void keep(const std::vector<ProductKey>& products, const AlgorithmBits& algorithm);
  /// Of the file; empty where nothing is kept.
  const std::string& path() const { return path_; }

 private:
  std::map<ProductKey, AlgorithmBits> read() const;

  std::string machine_, path_;
  std::map<ProductKey, AlgorithmBits> choices_;
};

/// What multiplies which product on one machine: an algorithm chosen for its exact shape, or one chosen for a
/// similar shape. Packed documents and labels come in ever other numbers, the same one for all layers, and
/// choosing for each would cost more than it gains: a shape is worth a choice of its own where none of its
/// like is known, or when it came many times and no other in between. Keys of similar shapes are keys of no
/// exact one. Not for several threads at once.
class AlgorithmBook {
 public:
  AlgorithmBook(const std::string& folder, std::string machine) : kept_(folder, std::move(machine)) {}

  struct Known {
    AlgorithmBits algorithm{};
    ProductKey of{};      ///< the product, exact or similar, for which it was chosen
    bool checked = true;  ///< false: chosen in an earlier run, to be checked before it is used
  };
  /// The algorithm for a product; nothing where one is to be chosen, or, when `may_choose` is false, where
  /// none is known. What earlier runs chose is named only when `may_choose`, which means that it may be
  /// checked too.
  std::optional<Known> known(const ProductKey& exact, const ProductKey& similar, bool may_choose);
  /// Where nothing may be chosen any more: what this run chose or checked for a product that is similar but
  /// for element `tokens` of its key, by the smallest ratio of the two; of two at the same distance for more
  /// tokens. Nothing where there is none.
  std::optional<Known> nearest(const ProductKey& similar, std::size_t tokens) const;
  /// What known() named unchecked turned out well, or not: then it is never named again.
  void checked(const Known& known, const ProductKey& similar, bool good);
  /// Remembers what was chosen for a product, in this run and for later ones.
  void choose(const ProductKey& exact, const ProductKey& similar, const AlgorithmBits& algorithm);
  /// What was chosen or checked in this run, as text for another process on a machine of the same kind.
  std::string text() const;
  /// Takes what text() gave elsewhere in this run: known and checked from now on. What is known here stays.
  /// Throws Error where it is no such text.
  void learn(const std::string& text);
  /// Of the file; empty where nothing is kept.
  const std::string& path() const { return kept_.path(); }

 private:
  AutotuneCache kept_;
  std::map<ProductKey, AlgorithmBits> exact_, similar_;
  /// By similar shape: the product that last came, and how often in a row.
  struct Streak {
    ProductKey exact{};
    int length = 0;
  };
  std::map<ProductKey, Streak> streaks_;
  std::set<ProductKey> bad_;  ///< of earlier runs
};

}  // namespace octet::ops
