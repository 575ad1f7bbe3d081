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

/// What encoding a sample gave.
struct EncodedSample {
  struct Document {
    std::vector<std::int32_t> ids, labels;
  };
  std::vector<Document> documents;  ///< one for a conversation; pieces of cutoff_len for plain text
  bool dropped = false;             ///< the template gives nothing for it
  std::string why = {};             ///< why it was dropped
  bool truncated = false;
  bool cut_answer = false;  ///< the last answer lost its end
  bool fragment = false;    ///< part of a block that is cut later: kept even where it trains nothing alone
};

/// Turns samples into tokens and labels. Thread-safe.
class Encoder {
 public:
  virtual ~Encoder() = default;
  virtual EncodedSample encode(const Sample& sample) const = 0;
  /// What begins plain texts: -1 for nothing.
  virtual std::int32_t text_bos_id() const { return -1; }
  /// All that decides what encode gives, for a TokenCache; an encoder that says nothing is not cached.
  virtual Recipe recipe() const { return {}; }
  /// Text of ids, special tokens kept.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
};

/// Which rows of a mix, and on how many threads (0: what the cores allow).
struct EncodeShare {
  std::int64_t first_row = 0;
  std::int64_t last_row = 0;
  int threads = 0;
  std::int64_t max_broken = 10;                       ///< rows that may be unreadable
  bool name_truncated = false;                        ///< rows that are cut stand among the reasons
  const std::set<RowKey>* left_out = nullptr;         ///< rows that are passed over, uncounted
  const std::vector<std::int64_t>* places = nullptr;  ///< if given, first_row and last_row count these places
};

/// Reads and encodes a share of the rows, in order. Rows without a trained token, and rows that cannot be
/// used or read, are counted and left out; throws the Error of too_many_broken when more than `max_broken`
/// cannot be read.
Encoded encode_rows(const RowMix& mix, const Encoder& encoder, const EncodeShare& share);

/// The Error for a data set with more unreadable rows than allowed; names the first of them.
Error too_many_broken(const EncodingCounts& counts, std::int64_t max_broken);

/// The Error for rows that were cut where none may be (EncodeShare::name_truncated); names the first of them.
Error truncated_rows(const EncodingCounts& counts, std::int64_t cutoff_len);

}  // namespace octet::data
