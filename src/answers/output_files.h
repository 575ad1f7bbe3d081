// Files that `generate` writes next to its answers: scores, and the experts of each token.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "journal.h"
#include "octet/files/folder_lock.h"
#include "octet/generate/decoder.h"
#include "octet/runtime/routers.h"

namespace octet::answers {

// Scores of texts as HDF5: `trainer generate MODEL --score --out scores.h5`.

/// The origin of scores, stored as attributes of the file.
struct ScoreSource {
  std::string model;      ///< name of its folder
  std::string adapter;    ///< names of the adapter folders, separated by commas; "": none
  std::string weights;    ///< fingerprint of the model's weights
  std::string tokenizer;  ///< XXH3 (128 bits) of tokenizer.json; "": none
  std::int64_t vocabulary = 0;
  std::int64_t best = 0;  ///< K, the number of most probable tokens per position
};

/// Returns the scores of a row as a line of JSON for the journal. Half floats are stored as their 16 bits.
/// Each position has the `best` most probable tokens (0: none).
std::string score_note(const std::vector<std::int32_t>& ids, const generate::Decoder::Score& score,
                       std::int64_t best);

/// The HDF5 file of scores, for R rows with N tokens in total, in the order of IN:
///
///   rows             i64 [R]         position of the row in IN, counted from 0
///   offsets          i64 [R + 1]     row r has ids[offsets[r] : offsets[r + 1]]
///   ids              u32 [N]
///   logprob_offsets  i64 [R + 1]     row r has logprobs[logprob_offsets[r] : logprob_offsets[r + 1]]
///   logprobs         f16 [N - R]     of each token except the first of a row
///   top_ids          u32 [N - R, K]  K most probable tokens at its position, best first (if K > 0)
///   top_logprobs     f16 [N - R, K]  their log-probabilities (if K > 0)
///   rest             f32 [N - R]     probability of all other tokens (if K > 0)
///
/// Logarithms are natural and rounded to nearest once; values below -65504 become -65504. `rest` is computed
/// from unrounded values. Attributes: format, version, model, adapter, weights, tokenizer, vocabulary, best.
class ScoreFile : public WholeOutput {
 public:
  /// `numbers` maps the row numbers of the journal, which count from 0, to positions in IN.
  ScoreFile(ScoreSource source, std::vector<std::int64_t> numbers);

  void require_row(const RowResult& row, const std::string& where) const override;
  std::string bytes(const std::map<std::int64_t, RowResult>& rows) const override;
  void require_same(const std::string& path, const std::string& fix) const override;

 private:
  ScoreSource source_;
  std::vector<std::int64_t> numbers_;
};

// The file of --save-routing: the experts of the answers of OUT, appended row by row.

/// Appends lines to the file. A partial line of a killed run is dropped. Rows of an earlier run stay, and a
/// row that is answered again has a second line with the same experts.
class RoutingOut {
 public:
  enum class New { yes, no };
  /// Throws Error (usage) if a file at `path` must stay: a folder, a file that --save-routing did not write,
  /// and, unless `replaces`, any file. Writes nothing.
  static void require_free(const std::string& path, const runtime::Routers& routers, bool replaces);
  /// New::yes: replaces the file. New::no: throws Error (usage) if it is missing, or of other routers. Throws
  /// Error (busy) if another process writes it.
  RoutingOut(const std::string& path, const runtime::Routers& routers, New fresh);
  ~RoutingOut();
  RoutingOut(const RoutingOut&) = delete;
  RoutingOut& operator=(const RoutingOut&) = delete;

  void add(const std::string& line);
  /// Blocks until all added lines are on disk.
  void sync();

 private:
  std::string path_;
  std::unique_ptr<const files::FolderLock> lock_;
  int file_ = -1;
};

}  // namespace octet::answers
