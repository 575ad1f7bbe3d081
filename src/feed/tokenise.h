// Rows become tokens: made by all ranks together, or found in tokenized_path.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/config/config.h"
#include "octet/data/encode.h"
#include "octet/runtime/session.h"

namespace octet::feed {

/// Rows of a mix: all of them, or these places.
struct Rows {
  const data::RowMix& mix;
  const std::vector<std::int64_t>* places = nullptr;
  std::int64_t size() const { return places ? static_cast<std::int64_t>(places->size()) : mix.size(); }
};

/// Tokenises each rank's contiguous share of the rows and gives all ranks the whole. Throws Error when more
/// rows than allowed cannot be read.
data::Encoded encode_together(runtime::Session& session, const config::Config& config, const Rows& rows,
                              const data::Encoder& encoder);

/// All rows of a mix as tokens: those that tokenized_path holds for them, or made and kept there. Logs what
/// happened to the rows, `what` being their name.
data::Encoded tokens_of(runtime::Session& session, const config::Config& config, const data::RowMix& mix,
                        const data::Encoder& encoder, const std::string& what);

}  // namespace octet::feed
