#pragma once

#include <cstdint>
#include <vector>

#include "octet/model/architecture.h"

namespace octet::runtime {

/// The routers of a mixture of experts.
struct Routers {
  std::vector<std::int64_t> blocks;  ///< blocks with experts
  std::int64_t experts = 0;          ///< of a block
  std::int64_t taken = 0;            ///< experts per token
  /// Returns the number of experts that a token takes in all blocks.
  std::size_t each_token() const { return blocks.size() * static_cast<std::size_t>(taken); }
};

inline Routers routers_of(const model::Architecture& a) {
  Routers routers{.blocks = {}, .experts = a.experts.count, .taken = a.experts.taken};
  for (std::size_t block = 0; block < a.blocks.size(); ++block) {
    if (a.blocks[block].mixes_experts) routers.blocks.push_back(static_cast<std::int64_t>(block));
  }
  return routers;
}

}  // namespace octet::runtime
