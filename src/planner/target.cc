#include "octet/planner/target.h"

#include <algorithm>
#include <memory>

#include "octet/base/error.h"
#include "octet/device/cpu.h"
#include "octet/plan/cards.h"
#include "octet/plan/memory.h"
#include "octet/setup/setup.h"

namespace octet::planner {
namespace {

comm::Place place_of(const TargetWish& s) {
  comm::Place place;
  place.size = static_cast<int>(s.world);
  const std::int64_t each = s.ranks_per_node > 0 ? s.ranks_per_node : std::min<std::int64_t>(8, s.world);
  place.node_of.clear();
  for (std::int64_t r = 0; r < s.world; ++r) place.node_of.push_back(static_cast<int>(r / each));
  place.nodes = place.node_of.back() + 1;
  place.local_size = static_cast<int>(std::min(each, s.world));
  return place;
}

void take_card(PlanTarget& t, const plan::Card& card) {
  t.name = card.name;
  t.card = card.key;
  t.memory = card.memory;
  t.rates = plan::rates_of(card);
}

/// Takes the named card, else the card of this machine, else an H200.
void take_gpu(PlanTarget& t, const std::string& card) {
  t.kind = kGpuKind;
  take_card(t, plan::find_card(card.empty() ? "h200" : card));
  if (!card.empty() || !cuda_available(0)) return;
  const std::unique_ptr<Device> device = make_cuda_device(0);
  if (const plan::Card* described = plan::described_card(device->description())) {
    take_card(t, *described);
  } else {
    t.card.clear();
  }
  t.name = device->description();
  t.memory = device->memory().total;
}

}  // namespace

PlanTarget target_of(const config::Config& config, const TargetWish& s) {
  PlanTarget t;
  t.place = place_of(s);
  const DeviceWish wish = setup::session_wish(config).device;
  if (!s.card.empty() && wish == kWithoutGpus) {
    throw Error({.what = "a card is a GPU, but this configuration computes on CPUs",
                 .expected = "device=cuda, or no card",
                 .found = "card=" + s.card + " and device=cpu",
                 .where = "command line",
                 .fix = "leave one of them out",
                 .code = ExitCode::usage});
  }
  const bool gpu = !s.card.empty() || leads_to_gpu(wish);
  if (gpu) {
    take_gpu(t, s.card);
  } else {
    t.name = "CPU";
    // The scratch memory of ops depends on the threads of a rank.
    const int node_ranks = std::max(t.place.local_size, s.replica);
    cpu::set_op_threads(cpu::claim_cores(0, node_ranks));
    t.memory = make_cpu_device({.threads = cpu::op_threads()})->memory().total /
               static_cast<std::size_t>(node_ranks);
  }
  if (s.memory.empty()) return t;
  t.memory = plan::parse_bytes(s.memory, "memory");
  if (gpu && s.card.empty()) t.name = "GPU";
  return t;
}

std::vector<std::string> with_bf16(std::vector<std::string> words) {
  const auto decides = [](const std::string& word) {
    const std::size_t begin = std::min(word.find_first_not_of('-'), word.size());
    const std::string key = word.substr(begin, word.find('=') - begin);
    return key == "bf16" || key == "pure_bf16";
  };
  if (std::ranges::none_of(words, decides)) words.push_back("bf16=true");
  return words;
}

}  // namespace octet::planner
