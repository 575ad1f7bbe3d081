#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/data/dataset.h"
#include "octet/data/encoded.h"
#include "octet/data/mix.h"
#include "octet/data/token_cache.h"

namespace octet::data {

/// The result of encoding a sample.
struct EncodedSample {
  struct Document {
    std::vector<std::int32_t> ids, labels;
  };
  std::vector<Document> documents;  ///< one for a conversation; pieces of cutoff_len for plain text
  bool dropped = false;             ///< the template writes nothing for it
  std::string why = {};             ///< why it was dropped
  bool truncated = false;
  bool cut_answer = false;  ///< the last answer lost its end
  bool fragment = false;    ///< part of a later block: kept even if it has no trained token
  bool pair = false;        ///< two documents, a chosen and a rejected answer, which are kept together
};

/// Turns samples into tokens and labels. Thread-safe.
class Encoder {
 public:
  virtual ~Encoder() = default;
  virtual EncodedSample encode(const Sample& sample) const = 0;
  /// The first token of plain texts; -1: none.
  virtual std::int32_t text_bos_id() const { return -1; }
  /// All settings that affect the result of encode(), for a TokenCache. Empty: results are not cached.
  virtual Recipe recipe() const { return {}; }
  /// Returns the text of ids, with special tokens.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
};

/// A share of the rows of a mix, and the number of threads (0: as many as the cores allow).
struct EncodeShare {
  std::int64_t first_row = 0;
  std::int64_t last_row = 0;
  int threads = 0;
  std::int64_t max_broken = 10;                       ///< largest number of unreadable rows
  bool name_truncated = false;                        ///< adds truncated rows to the reasons
  const std::set<RowKey>* left_out = nullptr;         ///< rows that are skipped and not counted
  const std::vector<std::int64_t>* places = nullptr;  ///< if set, first_row and last_row index this list
};

/// Reads and encodes a share of the rows, in order. Skips and counts rows without a trained token, and rows
/// that cannot be used or read. Throws the Error of too_many_broken() if more than `max_broken` rows cannot
/// be read.
Encoded encode_rows(const RowMix& mix, const Encoder& encoder, const EncodeShare& share);

/// Returns the Error for a data set with too many unreadable rows. It names the first of them.
Error too_many_broken(const EncodingCounts& counts, std::int64_t max_broken);

/// Returns the Error for truncated rows where truncation is not allowed (EncodeShare::name_truncated). It
/// names the first of them.
Error truncated_rows(const EncodingCounts& counts, std::int64_t cutoff_len);

}  // namespace octet::data
