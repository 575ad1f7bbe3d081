#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "octet/base/files.h"
#include "octet/base/long_array.h"

namespace octet::data {

/// What happened to the rows of a data set.
struct EncodingCounts {
  std::int64_t rows = 0;       ///< rows looked at
  std::int64_t documents = 0;  ///< documents kept
  std::int64_t tokens = 0;
  std::int64_t trained = 0;        ///< tokens that carry a label
  std::int64_t invalid = 0;        ///< rows that the converter refused
  std::int64_t dropped = 0;        ///< rows that the template gave nothing for
  std::int64_t unlabelled = 0;     ///< rows left out because no token would be trained
  std::int64_t truncated = 0;      ///< rows cut to cutoff_len
  std::int64_t cut_answers = 0;    ///< rows whose last answer lost its end
  std::int64_t broken = 0;         ///< rows that could not be read
  std::int64_t empty_answers = 0;  ///< rows with an answer, or a text, of blanks alone
  /// What rows hold and is not read, with the number of rows.
  std::map<std::string, std::int64_t> notes;
  std::vector<std::string> reasons;  ///< the first few refusals, each with file and line

  /// Adds what happened to other rows.
  void add(const EncodingCounts& other);
  /// As bytes, and back. Throws Error for bytes that are nothing of the kind.
  std::string to_bytes() const;
  static EncodingCounts from_bytes(std::string_view bytes);
};

/// Token ids and labels of documents, one behind the other. They may be larger than memory (LongArray).
struct Encoded {
  LongArray<std::int32_t> ids;
  LongArray<std::int32_t> labels;     ///< -100 = not trained; not shifted
  LongArray<std::int64_t> begins{0};  ///< document d owns [begins[d], begins[d + 1])
  LongArray<std::int64_t> rows;       ///< row of the data set that document d came from
  EncodingCounts counts;

  std::int64_t documents() const { return static_cast<std::int64_t>(begins.size()) - 1; }
  std::int64_t length(std::int64_t d) const {
    return begins[static_cast<std::size_t>(d) + 1] - begins[static_cast<std::size_t>(d)];
  }
  std::int64_t longest() const;
  void append(std::span<const std::int32_t> document_ids, std::span<const std::int32_t> document_labels,
              std::int64_t row);
  /// Puts `other` behind this one.
  void append(const Encoded& other);
  /// Its bytes for a file, in parts that lie here and in `small`; they are good while both stay as they are.
  std::vector<std::string_view> parts(std::string& small) const;
  /// From the bytes of those parts, one behind the other, at a multiple of eight. They stay where they are,
  /// inside of `file`. Throws Error when they are not what parts() gave.
  static Encoded from_file(const std::shared_ptr<const MappedFile>& file, std::string_view bytes);
  /// XXH3 of ids, labels and boundaries: two runs with the same hash train on the same data.
  std::string fingerprint() const;
};

/// Which rows are held out for evaluation: `count` of `rows`, chosen by seed. Where rows are repeated,
/// `distinct` gives the row of each place (RowMix::distinct_rows); empty: places are rows.
struct HoldOut {
  std::int64_t rows = 0;
  std::int64_t count = 0;
  std::uint64_t seed = 0;
  std::vector<std::int64_t> distinct;
};

/// Moves the documents of the rows that are held out into a second set, each row once; no copy of theirs
/// stays. Returns {training, held out}.
std::pair<Encoded, Encoded> hold_out(const Encoded& all, const HoldOut& options);

/// What a sample order deals out: each item is one or more documents that share a sequence (and do not see
/// each other, unless `shared_context` says so).
struct Items {
  LongArray<std::int64_t> begins{0};  ///< item i owns documents[begins[i] … begins[i + 1])
  LongArray<std::int64_t> documents;
  /// Documents of an item see each other and predict each other's first tokens; positions still begin anew.
  bool shared_context = false;
  std::int64_t size() const { return static_cast<std::int64_t>(begins.size()) - 1; }
  /// Tokens of an item, and of the longest.
  std::int64_t tokens(const Encoded& set, std::int64_t item) const;
  std::int64_t longest(const Encoded& set) const;
  /// Documents of the item that has the most; 1 without items.
  std::int64_t most_documents() const;
};

/// One document an item.
Items one_each(const Encoded& set);

/// Best-fit decreasing over the whole set: each document goes where it leaves the least room free in
/// sequences of `capacity` tokens. Deterministic; ties by document number.
Items pack_best_fit(const Encoded& set, std::int64_t capacity);

}  // namespace octet::data
