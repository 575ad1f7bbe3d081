#include "octet/plan/cards.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "octet/base/error.h"
#include "octet/base/strings.h"

namespace octet::plan {
namespace {

// Peaks without sparsity from NVIDIA's data sheets for H100 SXM, H200 SXM and GH200. All have the same chip
// with 132 multiprocessors.
constexpr double kBf16 = 989.4e12, kFp8 = 1978.9e12;
// Copies between an H200 and pinned memory reached 55 GB/s in each direction. NVLink-C2C was not measured:
// 450 GB/s in each direction is the data sheet's figure, so a lower bound of time with it is valid.
constexpr double kPcie = 55e9, kC2c = 450e9;

// Memory is the amount that the driver reports as usable, which is less than nvidia-smi shows. Read from
// cards: 79.18 of 79.65 GiB on an H100, 139.8 of 140.4 GiB on an H200. From users' out-of-memory messages:
// 142.5 GiB on a GH200 with 144 GB (153,008,209,920 bytes), 94.5 of 95.6 GiB on a GH200 with 96 GB.
constexpr std::array kCards{Card{.key = "h100",
                                 .name = "NVIDIA H100 80GB HBM3",
                                 .spoken = "an H100",
                                 .memory = 85'017'493'504,
                                 .bf16 = kBf16,
                                 .fp8 = kFp8,
                                 .bandwidth = 3.35e12,
                                 .host = kPcie,
                                 .host_link = "PCIe",
                                 .host_source = "as measured over PCIe 5.0"},
                            Card{.key = "h200",
                                 .name = "NVIDIA H200",
                                 .spoken = "an H200",
                                 .memory = static_cast<std::size_t>(139.8 * 0x1p30),
                                 .bf16 = kBf16,
                                 .fp8 = kFp8,
                                 .bandwidth = 4.8e12,
                                 .host = kPcie,
                                 .host_link = "PCIe",
                                 .host_source = "as measured over PCIe 5.0"},
                            Card{.key = "gh200",
                                 .name = "NVIDIA GH200 480GB",
                                 .spoken = "a GH200",
                                 .memory = static_cast<std::size_t>(94.5 * 0x1p30),
                                 .bf16 = kBf16,
                                 .fp8 = kFp8,
                                 .bandwidth = 4.0e12,
                                 .host = kC2c,
                                 .host_link = "NVLink-C2C",
                                 .host_source = "as NVLink-C2C's data sheet says"},
                            Card{.key = "gh200-144gb",
                                 .name = "NVIDIA GH200 144G HBM3e",
                                 .spoken = "a GH200 with 144 GB",
                                 .memory = 153'008'209'920,
                                 .bf16 = kBf16,
                                 .fp8 = kFp8,
                                 .bandwidth = 4.9e12,
                                 .host = kC2c,
                                 .host_link = "NVLink-C2C",
                                 .host_source = "as NVLink-C2C's data sheet says"}};

}  // namespace

std::span<const Card> cards() {
  return kCards;
}

std::vector<std::string> card_keys() {
  std::vector<std::string> keys;
  for (const Card& card : kCards) keys.emplace_back(card.key);
  return keys;
}

const Card& find_card(const std::string& key) {
  std::string word = key;
  for (char& c : word) c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto found = std::ranges::find_if(kCards, [&](const Card& card) { return word == card.key; });
  if (found != kCards.end()) return *found;
  if (key.starts_with("NVIDIA ")) {
    if (const Card* described = described_card(key)) return *described;
  }
  std::string names;
  for (const std::string& name : card_keys()) names += (names.empty() ? "" : ", ") + name;
  const std::string near = nearest_name(word, card_keys());
  throw Error({.what = "'" + key + "' is not a known card",
               .expected = names,
               .found = key,
               .where = "command line",
               // Names of other generations are near, too.
               .fix = (near.empty() ? "name one of these." : "did you mean '" + near + "'?") +
                      std::string(" For another GPU, give only its memory, such as memory=80GB"),
               .code = ExitCode::usage});
}

const Card* described_card(const std::string& description) {
  const auto names = [&](const char* part) { return description.find(part) != std::string::npos; };
  // The name of a GH200 contains the memory of its CPU, or that of a GPU with 144 GB.
  if (names("GH200")) return &find_card(names("144G") ? "gh200-144gb" : "gh200");
  // Cards for PCIe slots (H200 NVL, H100 NVL, H100 PCIe) have other rates.
  if (names("NVL") || names("PCIe")) return nullptr;
  if (names("H200")) return &find_card("h200");
  return names("H100 80GB HBM3") ? &find_card("h100") : nullptr;
}

Rates rates_of(const Card& card) {
  const Card& measured = find_card("h200");
  const double bf16 = card.bf16 / measured.bf16;
  Rates rates;
  rates.bf16 *= bf16;
  rates.fp32 *= bf16;
  rates.attention_forward *= bf16;
  rates.attention_backward *= bf16;
  rates.fp8 *= card.fp8 / measured.fp8;
  rates.bytes *= card.bandwidth / measured.bandwidth;
  rates.host = card.host;
  rates.card = card.spoken;
  rates.host_link = card.host_link;
  rates.host_source = card.host_source;
  return rates;
}

}  // namespace octet::plan
