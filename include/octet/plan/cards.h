// Which GPUs a plan knows without having one.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "octet/plan/time.h"

namespace octet::plan {

/// A GPU as its maker describes it, and the memory that its driver hands out.
struct Card {
  const char* key;     ///< as a setting: "h100"
  const char* name;    ///< as the driver says it: "NVIDIA H100 80GB HBM3"
  const char* spoken;  ///< in a sentence: "an H100"
  std::size_t memory;  ///< bytes that programs can have in all, as cudaMemGetInfo says
  double bf16, fp8;    ///< dense peak in FLOP/s
  double bandwidth;    ///< of its memory, bytes per second
  double host;         ///< bytes per second to the host's memory and back, each way
  const char* host_link;
  const char* host_source;  ///< of its rate, in a sentence
};

/// All that are known, in the order in which messages name them.
std::span<const Card> cards();
std::vector<std::string> card_keys();
/// The card with this key (any case) or with this name of the driver. Throws Error (usage) with a list of the
/// keys if there is none.
const Card& find_card(const std::string& key);
/// The card that a device's description ("GPU 0: NVIDIA H200 (139.8 GiB)") names; nullptr for another GPU.
const Card* described_card(const std::string& description);
/// The rates that the card reaches: its peaks times the share measured on an H200. The link to the host has a
/// separate figure for each kind of link.
Rates rates_of(const Card& card);

}  // namespace octet::plan
