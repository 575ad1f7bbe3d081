// The most probable tokens of a teacher at each token of a data set: an HDF5 file. `trainer generate --score
// --logprobs K` writes it, and stage: kd reads it (teacher_logprobs).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>

#include "octet/checkpoint/arrays_file.h"
#include "octet/data/encoded.h"
#include "octet/runtime/staging.h"

namespace octet::feed {

/// The model and the run that read a file.
struct TeacherUse {
  std::int64_t vocabulary = 0;
  std::int64_t ranks = 0;  ///< tokens that are read at each place (kd_topk)
};

/// A file of the most probable tokens of a teacher. The whole file is in memory.
class TeacherFile {
 public:
  /// Throws Error (usage) that names `path` if it is no such file, or if it does not suit `use`. Throws Error
  /// if it cannot be read.
  TeacherFile(const std::string& path, const TeacherUse& use);

  /// Returns hash128_hex() of the tokenizer.json of the teacher; "" if it is unknown.
  std::string tokenizer() const;
  /// Throws Error (usage) for the first document without a row of the same tokens.
  void require(const data::Encoded& set) const;
  /// Sets the teacher of the label rows of a batch (HostBatch::teacher_ids). The probability of listed tokens
  /// beyond `ranks` is added to the rest. Throws Error (usage) for a document without a row, and for damaged
  /// tokens.
  void add_to(runtime::HostBatch& batch) const;

 private:
  template <typename T>
  std::span<const T> values(const char* name) const;
  void check_arrays() const;
  void index_rows();
  /// Returns the number of the row with these tokens.
  std::int64_t at(std::span<const std::int32_t> ids, std::int64_t row) const;
  /// Adds the tokens at an entry of `top_ids`.
  void take(std::int64_t entry, runtime::HostBatch& batch) const;
  [[noreturn]] void refuse(const std::string& what, const std::string& expected, const std::string& found,
                           const std::string& fix) const;
  [[noreturn]] void refuse_damaged(const std::string& found) const;

  std::string path_;
  TeacherUse use_;
  checkpoint::ArraysFile file_;
  std::int64_t best_ = 0;                                 ///< listed tokens of the file
  std::unordered_map<std::uint64_t, std::int64_t> rows_;  ///< by a hash of their tokens
};

}  // namespace octet::feed
