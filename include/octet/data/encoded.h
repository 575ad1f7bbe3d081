#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "octet/base/files.h"
#include "octet/base/long_array.h"

namespace octet::data {

/// Counts of the rows of a data set by result.
struct EncodingCounts {
  std::int64_t rows = 0;       ///< rows processed
  std::int64_t documents = 0;  ///< documents kept
  std::int64_t tokens = 0;
  std::int64_t trained = 0;        ///< tokens that carry a label
  std::int64_t invalid = 0;        ///< rows that the converter refused
  std::int64_t dropped = 0;        ///< rows for which the template wrote nothing
  std::int64_t unlabelled = 0;     ///< rows left out because they have no trained token
  std::int64_t truncated = 0;      ///< rows cut to cutoff_len
  std::int64_t cut_answers = 0;    ///< rows with a truncated last answer
  std::int64_t broken = 0;         ///< rows that could not be read
  std::int64_t empty_answers = 0;  ///< rows with an answer or a text of only blanks
  /// Unread contents of rows, with the number of rows that have them.
  std::map<std::string, std::int64_t> notes;
  std::vector<std::string> reasons;  ///< the first few refusals, each with file and line

  /// Adds the counts of other rows.
  void add(const EncodingCounts& other);
  /// Serialise to bytes and back. from_bytes() throws Error for invalid bytes.
  std::string to_bytes() const;
  static EncodingCounts from_bytes(std::string_view bytes);
};

/// The label of the first token of a judged answer's document. This token is never predicted, so its label
/// says whether the answer is desirable.
inline constexpr std::int32_t kDesirable = -100, kUndesirable = -101;

/// Concatenated token ids and labels of documents. They may be larger than memory (LongArray).
struct Encoded {
  LongArray<std::int32_t> ids;
  LongArray<std::int32_t> labels;     ///< below 0 = not trained; not shifted
  LongArray<std::int64_t> begins{0};  ///< document d owns [begins[d], begins[d + 1])
  LongArray<std::int64_t> rows;       ///< [documents] the row of the data set of each document
  EncodingCounts counts;
  /// [documents] log-probabilities of answers for the reference of preferences; empty: not known. Not copied
  /// with documents.
  std::vector<double> references;
  /// With judged answers: document d has the question of document d and the answer of another document
  /// (mismatched()). Null: not made. Not copied with documents.
  std::shared_ptr<Encoded> mismatched;

  std::int64_t documents() const { return static_cast<std::int64_t>(begins.size()) - 1; }
  std::int64_t length(std::int64_t d) const {
    return begins[static_cast<std::size_t>(d) + 1] - begins[static_cast<std::size_t>(d)];
  }
  std::int64_t longest() const;
  void append(std::span<const std::int32_t> document_ids, std::span<const std::int32_t> document_labels,
              std::int64_t row);
  /// Appends the documents and counts of `other`.
  void append(const Encoded& other);
  /// Returns the bytes of the set for a file, in parts. The parts point into this object and into `small`,
  /// and are valid until one of them changes.
  std::vector<std::string_view> parts(std::string& small) const;
  /// Restores a set from the concatenated bytes of parts(). `bytes` is a part of `file` and is aligned to
  /// eight bytes. The set points into `file` without a copy. Throws Error for invalid bytes.
  static Encoded from_file(const std::shared_ptr<const MappedFile>& file, std::string_view bytes);
  /// XXH3 of ids, labels and boundaries: two runs with the same hash train on the same data.
  std::string fingerprint() const;
};

/// The rows that are held out for evaluation: `count` of `rows`, chosen by seed. If rows repeat, `distinct`
/// is the row of each place (RowMix::distinct_rows). Empty: no row repeats.
struct HoldOut {
  std::int64_t rows = 0;
  std::int64_t count = 0;
  std::uint64_t seed = 0;
  std::vector<std::int64_t> distinct;
};

/// Moves the documents of the held-out rows into a second set, each row once. The training set has no copy of
/// these rows. Returns {training, held out}.
std::pair<Encoded, Encoded> hold_out(const Encoded& all, const HoldOut& options);

/// The samples of a run. An item is one or more documents in one sequence. The documents do not attend to
/// each other, unless `shared_context` is set.
struct Items {
  LongArray<std::int64_t> begins{0};  ///< item i owns documents[begins[i] … begins[i + 1])
  LongArray<std::int64_t> documents;
  /// Documents of an item attend to each other and predict each other's first tokens. Positions still restart
  /// at each document.
  bool shared_context = false;
  /// Documents of an item are pairs: chosen answer, rejected answer, …
  bool pairs = false;
  bool judged = false;  ///< documents are judged answers
  bool scored = false;  ///< the last token of each document gives a score, and no token has a label
  std::int64_t size() const { return static_cast<std::int64_t>(begins.size()) - 1; }
  /// Returns the tokens of an item, and of the longest item.
  std::int64_t tokens(const Encoded& set, std::int64_t item) const;
  std::int64_t longest(const Encoded& set) const;
  /// Returns the largest number of documents of an item; 1 without items.
  std::int64_t most_documents() const;
};

/// Returns one item per document.
Items one_each(const Encoded& set);

/// Returns one item per pair of answers, for a set of pairs.
Items one_each_pair(const Encoded& set);

/// Packs the whole set by best-fit decreasing: each document joins the sequence of `capacity` tokens that it
/// leaves with the least free room. Deterministic: documents of equal length keep their order.
Items pack_best_fit(const Encoded& set, std::int64_t capacity);

/// Like pack_best_fit(), for a set of pairs: both answers of a pair are in one item.
Items pack_pairs(const Encoded& set, std::int64_t capacity);

struct MismatchOptions {
  std::int64_t batch = 1000;    ///< documents that exchange their answers (preprocessing_batch_size)
  std::int64_t cutoff_len = 0;  ///< tokens of a document
};

/// Returns the documents of judged answers with exchanged answers, as in LLaMA-Factory: each question gets
/// the answer of the document before it, and the first question of a batch gets the answer of the last.
/// Question and answer are cut in proportion to cutoff_len.
Encoded mismatched(const Encoded& set, const MismatchOptions& options);

// LLaMA-Factory's packing, for runs that must reproduce its sequences. The default packing is pack_best_fit
// (encoded.h). It uses the whole set, so it fills sequences better, and it never lets documents attend to
// each other.

struct KnapsackOptions {
  std::int64_t capacity = 0;       ///< tokens of a sequence: cutoff_len - 1
  std::int64_t batch_rows = 1000;  ///< rows that are packed together (preprocessing_batch_size)
  bool shared_context = false;     ///< documents of a sequence attend to each other (without neat_packing)
};

/// Packs each batch of rows greedily: the longest document that fits goes first. If
/// documents have the same length, the last goes first. Documents longer than the capacity are left out.
Items pack_knapsack(const Encoded& set, const KnapsackOptions& options);

struct BlockOptions {
  std::int64_t length = 0;         ///< tokens of a block: cutoff_len
  std::int64_t batch_rows = 1000;  ///< rows that are chained before they are cut
  std::int32_t first_token = -1;   ///< overwrites the first token of each block; -1: none
};

/// Concatenates texts and cuts them into blocks. All tokens are trained, and texts of a block attend to each
/// other. Tokens at the end of a batch of rows that do not fill a block are left out. A block has the row
/// number of its first token.
Encoded cut_blocks(const Encoded& set, const BlockOptions& options);

// Which rows are held out for evaluation.

/// Returns the numbers that hold_out() chooses: `count` of 0 to rows - 1.
std::set<std::int64_t> held_out_numbers(std::int64_t rows, std::int64_t count, std::uint64_t seed);

}  // namespace octet::data
