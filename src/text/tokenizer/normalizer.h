// The `normalizer` of a tokenizer file: changes of a text before it is split.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "octet/base/json_fwd.h"
#include "unicode/utf8.h"

namespace octet::text {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// Returns true if the normalizer certainly does not change `text`.
  virtual bool keeps(std::string_view text) const = 0;
  virtual AlignedText apply(const TextView& view) const = 0;
};

/// Returns null for a null `json` and for an empty Sequence. Throws Error that names an unknown component.
std::unique_ptr<const Normalizer> make_normalizer(const Json& json, const std::string& where);

}  // namespace octet::text
