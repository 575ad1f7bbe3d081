#include "octet/device/gpu_choice.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <sstream>
#include <utility>

#include "octet/base/strings.h"
#include "octet/device/device.h"

namespace octet {
namespace {

std::string version(int number) {
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

/// Returns the first driver for all versions of a CUDA major version (NVIDIA's table of minor version
/// compatibility).
std::string least_driver(int program) {
  if (program / 1000 == 13) return ", which needs driver 580 or newer";
  return program / 1000 == 12 ? ", which needs driver 525 or newer" : "";
}

/// Returns "8.9" for 89.
std::string capability_text(int capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

}  // namespace

int code_for(const std::string& built_for, int capability) {
  int machine = 0, ptx = 0;
  std::istringstream words(built_for);
  for (std::string word; words >> word;) {
    const int number = std::stoi(word);
    const bool alone =
        std::isalpha(static_cast<unsigned char>(word[word.find_first_not_of("0123456789")])) != 0;
    if (word.ends_with("-virtual")) {
      if (alone ? number == capability : number <= capability) ptx = std::max(ptx, number);
    } else if (alone ? number == capability : number / 10 == capability / 10 && number <= capability) {
      machine = std::max(machine, number);
    }
  }
  return machine != 0 ? machine : ptx;
}

std::string why_no_fp8(const std::string& gpu, int capability) {
  if (capability >= kLeastFp8Capability) return {};
  return gpu + " has compute capability " + capability_text(capability) + ", but GEMMs in FP8 need " +
         capability_text(kLeastFp8Capability) + " (Ada, Hopper, Blackwell)";
}

std::string why_no_driver(const GpuAnswers& a) {
  if (a.driver == 0) return "no NVIDIA driver was found" + (a.others.empty() ? "" : "; " + a.others);
  // Drivers support all minor versions of their CUDA major version.
  if (a.driver / 1000 >= a.program / 1000) return {};
  return "the NVIDIA driver is too old: it supports CUDA " + version(a.driver) +
         ", and this program was built with CUDA " + version(a.program) + least_driver(a.program);
}

std::string why_not(const GpuAnswers& a) {
  if (std::string why = why_no_driver(a); !why.empty()) return why;
  if (!a.count_error.empty()) return "the NVIDIA driver does not answer: " + a.count_error;
  if (a.count == 0) return "the NVIDIA driver shows no GPU";
  const std::string gpu = "GPU " + std::to_string(a.ordinal);
  if (a.ordinal < 0 || a.ordinal >= a.count) {
    return "there is no " + gpu + ", the driver shows " + std::to_string(a.count);
  }
  if (!a.properties_error.empty()) return gpu + " does not answer: " + a.properties_error;
  const std::string has = gpu + " (" + a.name + ") has compute capability " + capability_text(a.capability);
  if (a.capability < kLeastCapability) {
    return has + ", and " + capability_text(kLeastCapability) + " (Ampere) or more is needed";
  }
  if (code_for(a.built_for, a.capability) >= kLeastCapability) return {};
  return has + ", and this program was built for " + a.built_for +
         " only (cmake -DOCTET_CUDA_ARCHITECTURES=" + std::to_string(a.capability) +
         "-real builds it for this GPU)";
}

GpuRefusalText text_of(GpuRefusal refusal, const std::string& gpu, const std::string& reason) {
  const std::string others =
      "end other programs on it (nvidia-smi shows them), choose another GPU with CUDA_VISIBLE_DEVICES, or "
      "set "
      "device: cpu";
  switch (refusal) {
    case GpuRefusal::full:
      return {gpu + " is too full: its memory has no room for the driver's own data", others};
    case GpuRefusal::taken:
      return {gpu + " is in exclusive use by another program, or is being reset", others};
    case GpuRefusal::other:
      break;
  }
  return {gpu + " cannot be opened: " + reason, "check it with nvidia-smi, or set device: cpu"};
}

namespace {

/// Cards of one kind differ slightly in memory, because firmware reserves some. A difference above 1/64 means
/// different cards.
constexpr std::size_t kMemoryStep = 64;

std::string words_of(int rank, const RankGpus& of) {
  return "rank " + std::to_string(rank) + " on " + of.host;
}

std::string ranks_text(int count) {
  return std::to_string(count) + (count == 1 ? " rank" : " ranks");
}

/// Returns a name that is equal in all processes of a node: the driver's UUID if there is one.
std::string identity(const GpuInfo& gpu) {
  if (!gpu.uuid.empty()) return gpu.uuid;
  return gpu.bus.empty() ? "number " + std::to_string(gpu.ordinal) : gpu.bus;
}

/// The ranks of one node and their visible GPUs.
struct NodeView {
  std::vector<int> members;            ///< ranks, in order
  std::vector<std::vector<int>> sees;  ///< by member: numbers of GPUs, in the order of the rank's list
  int gpus = 0;                        ///< number of different GPUs
  bool alike() const {
    return std::ranges::all_of(sees, [&](const auto& list) { return list == sees.front(); });
  }
};

NodeView view_of(const std::vector<RankGpus>& ranks, int node) {
  NodeView view;
  std::map<std::string, int> numbers;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].node != node) continue;
    view.members.push_back(static_cast<int>(r));
    auto& list = view.sees.emplace_back();
    for (const GpuInfo& gpu : ranks[r].gpus) {
      const auto next = static_cast<int>(numbers.size());
      list.push_back(numbers.emplace(identity(gpu), next).first->second);
    }
  }
  view.gpus = static_cast<int>(numbers.size());
  return view;
}

/// Assigns different GPUs to as many members as possible (augmenting paths), early GPUs of a member's list
/// first. A member with a GPU moves to another visible GPU if that frees a GPU for a member without one.
class Matching {
 public:
  explicit Matching(const NodeView& view)
      : view_(view),
        gpu_of_(view.members.size(), kNone),
        member_of_(static_cast<std::size_t>(view.gpus), kNone) {
    for (std::size_t m = 0; m < view.members.size(); ++m) {
      tried_.assign(member_of_.size(), false);
      if (place(static_cast<int>(m))) ++matched_;
    }
  }

  int matched() const { return matched_; }
  /// The GPU of a member; kNone: it has no GPU.
  int gpu_of(std::size_t member) const { return gpu_of_[member]; }
  static constexpr int kNone = -1;

 private:
  bool place(int member) {
    const auto& list = view_.sees[static_cast<std::size_t>(member)];
    // Takes a free GPU before moving other members.
    for (const int gpu : list) {
      if (member_of_[static_cast<std::size_t>(gpu)] == kNone) return take(member, gpu);
    }
    for (const int gpu : list) {
      const auto g = static_cast<std::size_t>(gpu);
      if (tried_[g]) continue;
      tried_[g] = true;
      if (place(member_of_[g])) return take(member, gpu);
    }
    return false;
  }
  bool take(int member, int gpu) {
    gpu_of_[static_cast<std::size_t>(member)] = gpu;
    member_of_[static_cast<std::size_t>(gpu)] = member;
    return true;
  }

  const NodeView& view_;
  std::vector<int> gpu_of_, member_of_;
  std::vector<bool> tried_;
  int matched_ = 0;
};

/// Returns by member the index of its GPU in the member's list. kNone for the excess members if there are
/// more ranks than GPUs and ranks do not share.
std::vector<int> places_of(const NodeView& view, bool shares, int* matched) {
  const std::size_t count = view.members.size();
  std::vector<int> places(count, Matching::kNone);
  if (view.alike()) {
    const std::size_t gpus = view.sees.front().size();
    *matched = static_cast<int>(std::min(count, gpus));
    for (std::size_t m = 0; m < count; ++m) {
      if (m < gpus || shares) places[m] = static_cast<int>(m % gpus);
    }
    return places;
  }
  const Matching matching(view);
  *matched = matching.matched();
  std::vector<int> load(static_cast<std::size_t>(view.gpus));
  const auto put = [&](std::size_t m, int gpu) {
    places[m] = static_cast<int>(std::ranges::find(view.sees[m], gpu) - view.sees[m].begin());
    ++load[static_cast<std::size_t>(gpu)];
  };
  for (std::size_t m = 0; m < count; ++m) {
    if (matching.gpu_of(m) != Matching::kNone) put(m, matching.gpu_of(m));
  }
  for (std::size_t m = 0; shares && m < count; ++m) {
    if (places[m] != Matching::kNone) continue;
    put(m, *std::ranges::min_element(view.sees[m], {},
                                     [&](int gpu) { return load[static_cast<std::size_t>(gpu)]; }));
  }
  return places;
}

Problem too_many_ranks(const std::vector<RankGpus>& ranks, const NodeView& view, int matched) {
  const std::string& host = ranks[static_cast<std::size_t>(view.members.front())].host;
  const auto members = static_cast<int>(view.members.size());
  const bool one_node = view.members.size() == ranks.size();
  const std::string start = one_node ? "start it with `launch/mpirun -np " + std::to_string(matched) + "`"
                                     : "give " + host + " no more than " + ranks_text(matched) +
                                           " (its slots in the hostfile; `-np " + std::to_string(matched) +
                                           "` on that host alone)";
  return {.what = "there are more ranks than GPUs on " + host,
          .expected = "at most " + ranks_text(matched) + " on host " + host,
          .found = ranks_text(members) + " and " + std::to_string(view.gpus) +
                   (view.gpus == 1 ? " GPU" : " GPUs") + " that are visible to them",
          .fix = start + "; OCTETRUN_SHARE_GPUS=1 lets several ranks share a GPU, for tests: it is slower",
          .code = ExitCode::usage};
}

std::string card_text(const GpuInfo& gpu) {
  return gpu.name + " (" + human_bytes(static_cast<double>(gpu.memory)) + ")";
}

bool same_kind(const GpuInfo& a, const GpuInfo& b) {
  const auto [less, more] = std::minmax(a.memory, b.memory);
  return a.name == b.name && more - less <= more / kMemoryStep;
}

void doubt_different_cards(const std::vector<RankGpus>& ranks, GpuChoice& choice) {
  const GpuInfo& first = chosen_gpu(ranks, choice, 0);
  for (int r = 1; r < static_cast<int>(ranks.size()); ++r) {
    const GpuInfo& other = chosen_gpu(ranks, choice, r);
    if (same_kind(first, other)) continue;
    choice.doubts.push_back("the ranks' GPUs differ: " + words_of(0, ranks.front()) + " has " +
                            card_text(first) + ", " + words_of(r, ranks[static_cast<std::size_t>(r)]) +
                            " has " + card_text(other) +
                            "; all ranks get the same work and wait for the slowest");
    return;
  }
}

/// Nodes that are containers of one machine see the same GPUs, but are different nodes.
void doubt_same_gpu(const std::vector<RankGpus>& ranks, GpuChoice& choice) {
  std::map<std::string, int> first;
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
    const RankGpus& of = ranks[static_cast<std::size_t>(r)];
    const std::string& uuid = chosen_gpu(ranks, choice, r).uuid;
    if (uuid.empty()) continue;
    const int other = first.emplace(uuid, r).first->second;
    const RankGpus& its = ranks[static_cast<std::size_t>(other)];
    if (its.node == of.node) continue;
    choice.doubts.push_back(words_of(other, its) + " and " + words_of(r, of) +
                            " compute on the same GPU; CUDA_VISIBLE_DEVICES can give each its own");
    return;
  }
}

/// Returns the first rank for which `holds` is true.
template <typename Holds>
std::optional<int> first_rank(const std::vector<RankGpus>& ranks, const Holds& holds) {
  const auto found = std::ranges::find_if(ranks, holds);
  if (found == ranks.end()) return std::nullopt;
  return static_cast<int>(found - ranks.begin());
}

}  // namespace

const char* name_of(DeviceWish wish) {
  if (wish == DeviceWish::cpu) return "cpu";
  return wish == DeviceWish::cuda ? "cuda" : "auto";
}

DeviceWish wish_named(std::string_view word) {
  if (word == "cpu") return DeviceWish::cpu;
  return word == "cuda" ? DeviceWish::cuda : DeviceWish::automatic;
}

bool leads_to_gpu(DeviceWish wish) {
  return wish == DeviceWish::cuda || (wish == DeviceWish::automatic && cuda_available(0));
}

GpuChoice choose_gpus(const std::vector<RankGpus>& ranks) {
  GpuChoice choice;
  if (ranks.empty()) return choice;
  const DeviceWish device = ranks.front().device;
  const auto refuse = [&](int concerned, Problem problem) {
    choice.ordinals.clear();
    choice.problem = std::move(problem);
    choice.concerned = concerned;
    return choice;
  };
  if (const auto other = first_rank(ranks, [&](const RankGpus& r) { return r.device != device; })) {
    const RankGpus& of = ranks[static_cast<std::size_t>(*other)];
    return refuse(*other, {.what = "the ranks have different settings of device",
                           .expected = std::string("device: ") + name_of(device) + ", as " +
                                       words_of(0, ranks.front()) + " has it",
                           .found = std::string("device: ") + name_of(of.device),
                           .fix = "set OCTET_DEVICE for all ranks (mpirun -x OCTET_DEVICE) or for none",
                           .code = ExitCode::usage});
  }
  if (device == DeviceWish::cpu) return choice;
  if (const auto without = first_rank(ranks, [](const RankGpus& r) { return r.gpus.empty(); })) {
    const RankGpus& of = ranks[static_cast<std::size_t>(*without)];
    const std::string why =
        ranks.size() == 1 ? of.why_not : words_of(*without, of) + " has no GPU to compute on: " + of.why_not;
    if (device == DeviceWish::cuda) {
      return refuse(*without,
                    {.what = why,
                     .expected = "a program built with CUDA, and on every rank a driver and an NVIDIA GPU of "
                                 "compute capability 8.0 or more",
                     .fix = "use device: cpu, or leave it auto",
                     .code = ExitCode::usage});
    }
    if (std::ranges::any_of(ranks, &RankGpus::driver)) choice.why_cpu = why;
    return choice;
  }
  const bool shares = std::ranges::any_of(ranks, &RankGpus::shares);
  choice.ordinals.assign(ranks.size(), Matching::kNone);
  int shared_nodes = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (choice.ordinals[r] != Matching::kNone) continue;  // its node was already handled
    const NodeView view = view_of(ranks, ranks[r].node);
    int matched = 0;
    const std::vector<int> places = places_of(view, shares, &matched);
    if (matched < static_cast<int>(view.members.size())) {
      if (!shares) return refuse(static_cast<int>(r), too_many_ranks(ranks, view, matched));
      ++shared_nodes;
    }
    for (std::size_t m = 0; m < places.size(); ++m) {
      const auto member = static_cast<std::size_t>(view.members[m]);
      choice.ordinals[member] = ranks[member].gpus[static_cast<std::size_t>(places[m])].ordinal;
    }
  }
  if (shared_nodes > 0) {
    choice.doubts.push_back(
        "OCTETRUN_SHARE_GPUS is set: several ranks share a GPU, which is slower than one rank");
  }
  doubt_same_gpu(ranks, choice);
  doubt_different_cards(ranks, choice);
  return choice;
}

void refuse_survivors_on_gpus(GpuChoice& choice) {
  if (choice.problem || choice.ordinals.empty()) return;
  choice.problem = {.what = "ranks on GPUs cannot continue without lost ranks (--survive)",
                    .expected = "--survive with ranks on CPUs",
                    .found = ranks_text(static_cast<int>(choice.ordinals.size())) + " on GPUs",
                    .fix =
                        "leave --survive out, and all ranks restart from the newest checkpoint when one "
                        "ends; or set device: cpu",
                    .code = ExitCode::usage};
  choice.concerned = 0;
  choice.ordinals.clear();
}

bool shares_gpus(const char* value) {
  const std::string_view text = value == nullptr ? "" : value;
  if (text.empty() || text == "0") return false;
  if (text == "1") return true;
  throw Error({.what = "OCTETRUN_SHARE_GPUS has an invalid value",
               .expected = "1 (several ranks may share a GPU) or 0",
               .found = "'" + std::string(text) + "'",
               .where = "environment",
               .fix = "set it to 1, or unset it",
               .code = ExitCode::usage});
}

const GpuInfo& chosen_gpu(const std::vector<RankGpus>& ranks, const GpuChoice& choice, int rank) {
  const auto r = static_cast<std::size_t>(rank);
  check(r < choice.ordinals.size(), "the rank has chosen a GPU");
  const auto found = std::ranges::find(ranks[r].gpus, choice.ordinals[r], &GpuInfo::ordinal);
  check(found != ranks[r].gpus.end(), "a rank chooses among the GPUs that it sees");
  return *found;
}

int ranks_at_numa_node(const std::vector<RankGpus>& ranks, const GpuChoice& choice, int rank) {
  if (choice.ordinals.empty()) return 0;
  const int numa_node = chosen_gpu(ranks, choice, rank).numa_node;
  if (numa_node < 0) return 0;
  int count = 0;
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
    if (ranks[static_cast<std::size_t>(r)].node != ranks[static_cast<std::size_t>(rank)].node) continue;
    if (chosen_gpu(ranks, choice, r).numa_node == numa_node) ++count;
  }
  return count;
}

}  // namespace octet
