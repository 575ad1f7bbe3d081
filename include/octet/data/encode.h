#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "octet/data/dataset.h"
#include "octet/data/encoded.h"

namespace octet::data {

/// What encoding a sample gave.
struct EncodedSample {
  struct Document {
    std::vector<std::int32_t> ids, labels;
  };
  std::vector<Document> documents;  ///< one for a conversation; pieces of cutoff_len for plain text
  bool dropped = false;             ///< the template gives nothing for it
  bool truncated = false;
  bool cut_answer = false;  ///< the last answer lost its end
};

/// Turns samples into tokens and labels. Thread-safe.
class Encoder {
 public:
  virtual ~Encoder() = default;
  virtual EncodedSample encode(const Sample& sample) const = 0;
  /// Text of ids, special tokens kept.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
};

/// Which rows, of all data sets one behind the other, and on how many threads (0: what the cores allow).
struct EncodeShare {
  std::int64_t first_row = 0;
  std::int64_t last_row = 0;
  int threads = 0;
};

/// Reads and encodes a share of the rows, in order. Rows without a trained token are counted and left out.
Encoded encode_rows(const std::vector<DataSource>& sources, const Encoder& encoder, const EncodeShare& share);

}  // namespace octet::data
