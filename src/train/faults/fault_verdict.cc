#include "faults/fault_verdict.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string>

#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/random.h"
#include "octet/base/strings.h"

namespace octet::train {
namespace {

constexpr std::array<std::string_view, 6> kKinds = {"parameters", "masters",   "moments",
                                                    "frozen",     "gradients", "messages"};

[[noreturn]] void refuse(const std::string& found) {
  throw Error({.what = "OCTETRUN_FLIPS has an invalid value",
               .expected = "RANK:STEP:KIND:DRAW, several with commas between them; KIND is parameters, "
                           "masters, moments, frozen, gradients or messages",
               .found = "'" + found + "'",
               .fix = "unset it: it is for tests",
               .code = ExitCode::usage});
}

std::uint64_t number(std::string_view text, const std::string& found) {
  std::uint64_t value = 0;
  const auto [end, trouble] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (trouble != std::errc{} || end != text.data() + text.size()) refuse(found);
  return value;
}

}  // namespace

Flips::Flips(int rank) {
  const char* told = environment_variable("OCTETRUN_FLIPS");
  if (told == nullptr) return;
  for (const auto& one : split(told, ',')) {
    const auto parts = split(one, ':');
    if (parts.size() != 4) refuse(std::string(one));
    const auto kind = std::ranges::find(kKinds, parts[2]);
    if (kind == kKinds.end()) refuse(std::string(one));
    const Flip flip{.step = static_cast<std::int64_t>(number(parts[1], std::string(one))),
                    .kind = static_cast<Kind>(kind - kKinds.begin()),
                    .draw = number(parts[3], std::string(one))};
    if (number(parts[0], std::string(one)) == static_cast<std::uint64_t>(rank)) flips_.push_back(flip);
  }
}

void Flips::strike(std::int64_t step, bool late, store::Hashes& hashes, comm::Seals* seals, Stream& compute) {
  std::erase_if(flips_, [&](const Flip& flip) {
    const bool held = flip.kind <= Kind::frozen;
    if (flip.step != step || late != (!held || flip.draw % 2 != 0)) return false;
    const auto words = philox(flip.draw, RandomUse::data, static_cast<std::uint64_t>(step));
    const std::uint64_t draw = static_cast<std::uint64_t>(words[1]) << 32 | words[0];
    if (held) {
      hashes.flip(static_cast<store::Held>(flip.kind), draw, compute);
    } else if (flip.kind == Kind::gradients) {
      hashes.flip_gradient(draw);
    } else if (seals != nullptr) {
      seals->spoil(draw);
    }
    return true;
  });
}

namespace {

Json hash_json(const ops::Hash& hash) {
  return {hash.first, hash.second};
}
ops::Hash hash_of(const Json& json) {
  return {json.at(0).get<std::uint64_t>(), json.at(1).get<std::uint64_t>()};
}

/// Returns the ranks that differ from the majority, or all ranks if no value has a majority.
std::vector<int> minority(const std::vector<ops::Hash>& by_rank) {
  std::vector<int> everybody;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) everybody.push_back(static_cast<int>(rank));
  for (const ops::Hash& hash : by_rank) {
    if (2 * std::ranges::count(by_rank, hash) <= std::ssize(by_rank)) continue;
    std::erase_if(everybody, [&](int rank) { return by_rank[static_cast<std::size_t>(rank)] == hash; });
    return everybody;
  }
  return everybody;
}

template <typename Of>
void compare(const std::vector<FaultReport>& reports, const std::string& what, Of&& of,
             std::vector<Fault>& faults) {
  std::vector<ops::Hash> by_rank;
  for (const FaultReport& report : reports) by_rank.push_back(of(report));
  std::vector<int> wrong = minority(by_rank);
  if (!wrong.empty()) faults.push_back({std::move(wrong), what + " differ between ranks"});
}

}  // namespace

std::string FaultReport::bytes() const {
  Json json;
  for (std::size_t kind = 0; kind < store::kHeldKinds; ++kind) {
    json["replicas"].push_back(hash_json(replicas[kind]));
    json["changed"].push_back(static_cast<bool>(changed[kind]));
  }
  for (const auto& [name, hash] :
       {std::pair{"scales", scales}, {"sums", sums}, {"own", own}, {"replayed", replayed}})
    json[name] = hash_json(hash);
  json["broken"] = Json::array();
  for (const comm::BrokenMessage& message : broken)
    json["broken"].push_back({message.from, message.to, message.name});
  return json.dump();
}

FaultReport FaultReport::of(const std::string& bytes) {
  const Json json = parse_json(bytes, "what a rank tells of its checks");
  FaultReport report;
  for (std::size_t kind = 0; kind < store::kHeldKinds; ++kind) {
    report.replicas[kind] = hash_of(json.at("replicas").at(kind));
    report.changed[kind] = json.at("changed").at(kind).get<bool>();
  }
  report.scales = hash_of(json.at("scales")), report.sums = hash_of(json.at("sums"));
  report.own = hash_of(json.at("own")), report.replayed = hash_of(json.at("replayed"));
  for (const Json& message : json.at("broken"))
    report.broken.push_back({message.at(0).get<int>(), message.at(1).get<int>(), message.at(2)});
  return report;
}

std::vector<Fault> faults_in(const std::vector<FaultReport>& reports) {
  std::vector<Fault> faults;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    const FaultReport& report = reports[rank];
    for (std::size_t kind = 0; kind < store::kHeldKinds; ++kind) {
      if (!report.changed[kind]) continue;
      faults.push_back(
          {{static_cast<int>(rank)},
           std::string(store::name_of(static_cast<store::Held>(kind))) + " changed between two updates"});
    }
    for (const comm::BrokenMessage& message : report.broken) {
      faults.push_back({{message.to},
                        "a message of " + message.name + " from rank " + std::to_string(message.from) +
                            " was changed on its way"});
    }
  }
  if (!faults.empty()) return faults;
  for (std::size_t kind = 0; kind < store::kHeldKinds; ++kind) {
    compare(
        reports, store::name_of(static_cast<store::Held>(kind)),
        [kind](const FaultReport& report) { return report.replicas[kind]; }, faults);
  }
  compare(
      reports, "scales of activations", [](const FaultReport& report) { return report.scales; }, faults);
  compare(
      reports, "sums of gradients", [](const FaultReport& report) { return report.sums; }, faults);
  return faults;
}

std::vector<int> differing(const std::vector<FaultReport>& reports, int shift) {
  const int world = static_cast<int>(reports.size());
  std::vector<int> ranks;
  for (int rank = 0; rank < world; ++rank) {
    const int again = (rank - shift + world) % world;
    if (reports[static_cast<std::size_t>(rank)].own != reports[static_cast<std::size_t>(again)].replayed)
      ranks.push_back(rank);
  }
  return ranks;
}

std::vector<Fault> faults_of_replays(const std::vector<FaultReport>& reports, int shift,
                                     const std::vector<ops::Hash>& thirds, int second) {
  const int world = static_cast<int>(reports.size());
  std::vector<Fault> faults;
  for (const int rank : differing(reports, shift)) {
    const int again = (rank - shift + world) % world;
    const std::string what = "gradients of a micro-batch of rank " + std::to_string(rank) +
                             " differ when rank " + std::to_string(again) + " computes them";
    std::vector<int> wrong{rank, again};
    if (!thirds.empty()) {
      const ops::Hash& third = thirds[static_cast<std::size_t>((rank - second + world) % world)];
      if (third == reports[static_cast<std::size_t>(rank)].own) wrong = {again};
      if (third == reports[static_cast<std::size_t>(again)].replayed) wrong = {rank};
    }
    if (wrong.size() == 2 && wrong[0] == wrong[1]) wrong.pop_back();
    faults.push_back({std::move(wrong), what});
  }
  return faults;
}

}  // namespace octet::train
