// Scores of texts as HDF5: `trainer generate MODEL --score --out scores.h5`.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "generate/journal.h"
#include "octet/generate/decoder.h"

namespace octet::cli {

/// Whether the name of an OUT asks for HDF5: it ends in .h5 or .hdf5.
bool named_as_hdf5(const std::string& path);

/// What scores were made with: attributes of their file.
struct ScoreSource {
  std::string model;      ///< name of its folder
  std::string adapter;    ///< names of the adapters' folders, with commas between; "" : none
  std::string weights;    ///< fingerprint of the model's weights
  std::string tokenizer;  ///< XXH3 (128 bits) of tokenizer.json; "" : there is none
  std::int64_t vocabulary = 0;
  std::int64_t best = 0;  ///< most probable tokens of each place, K
};

/// A row's scores as a note of the journal keeps them: a line of JSON with the numbers of the file, halves as
/// their 16 bits. `best` tokens are there for each place (none: 0).
std::string score_note(const std::vector<std::int32_t>& ids, const generate::Decoder::Score& score,
                       std::int64_t best);

/// The HDF5 file of scores. For rows of together N tokens in R rows, in the order of IN:
///
///   rows             i64 [R]         the row's place in IN, counted from 0
///   offsets          i64 [R + 1]     row r has ids[offsets[r] : offsets[r + 1]]
///   ids              u32 [N]
///   logprob_offsets  i64 [R + 1]     row r has logprobs[logprob_offsets[r] : logprob_offsets[r + 1]]
///   logprobs         f16 [N - R]     of each token but a row's first
///   top_ids          u32 [N - R, K]  the K most probable tokens in its place, best first (only with K above
///   0) top_logprobs     f16 [N - R, K]  likewise rest             f32 [N - R]     probability of all tokens
///   beside the K
///
/// Logarithms are natural, rounded to nearest once; what lies below -65504 is -65504. `rest` is computed
/// before that rounding. Attributes: format, version, model, adapter, weights, tokenizer, vocabulary, best.
class ScoreFile : public WholeOutput {
 public:
  /// `numbers`: of the rows that the journal counts from 0, their places in IN.
  ScoreFile(ScoreSource source, std::vector<std::int64_t> numbers);

  void require_row(const RowResult& row, const std::string& where) const override;
  std::string bytes(const std::map<std::int64_t, RowResult>& rows) const override;
  void require_same(const std::string& path, const std::string& fix) const override;

 private:
  ScoreSource source_;
  std::vector<std::int64_t> numbers_;
};

}  // namespace octet::cli
