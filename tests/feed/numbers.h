// An encoder that needs no tokenizer: rows are numbers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "octet/data/encoder.h"

namespace octet::feed {

/// The row's number, as often as it says; every seventh gives nothing. Documents begin with the number.
class Numbers : public data::Encoder {
 public:
  data::EncodedSample encode(const data::Sample& sample) const override {
    const int number = std::stoi(sample.text);
    const std::vector<std::int32_t> ids(static_cast<std::size_t>(2 + number % 5), number);
    data::EncodedSample out;
    if (number % 7 != 6) out.documents.push_back({ids, ids});
    out.truncated = number >= 1000;
    return out;
  }
  std::int32_t text_bos_id() const override { return bos; }
  data::Recipe recipe() const override { return {{"words", words}}; }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) text += static_cast<char>('a' + id % 26);
    return text;
  }
  std::string words = "numbers";
  std::int32_t bos = -1;
};

}  // namespace octet::feed
