// Converts rows to tokens: on all ranks together, or from tokenized_path.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/config/keys.h"
#include "octet/data/encode.h"
#include "octet/runtime/session.h"

namespace octet::feed {

/// Rows of a mix: all rows, or the rows at `places`.
struct Rows {
  const data::RowMix& mix;
  const std::vector<std::int64_t>* places = nullptr;
  std::int64_t size() const { return places ? static_cast<std::int64_t>(places->size()) : mix.size(); }
};

/// Tokenises a contiguous share of the rows on each rank and returns all tokens on every rank. Throws Error
/// if more rows than allowed cannot be read.
data::Encoded encode_together(runtime::Session& session, const config::DataKeys& config, const Rows& rows,
                              const data::Encoder& encoder);

/// Returns all rows of a mix as tokens, from tokenized_path if it has them; otherwise tokenises and stores
/// them there. Logs events of the rows; `what` is their name.
data::Encoded tokens_of(runtime::Session& session, const config::DataKeys& config, const data::RowMix& mix,
                        const data::Encoder& encoder, const std::string& what);

}  // namespace octet::feed
