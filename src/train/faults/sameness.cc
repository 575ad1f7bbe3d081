#include "faults/sameness.h"

#include <boost/serialization/map.hpp>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <vector>

#include "octet/base/build.h"
#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/comm/serialize.h"
#include "octet/config/key_table.h"
#include "octet/text/template_match.h"
#include "octet/train/trainer.h"

namespace octet::train {
namespace {

constexpr std::size_t kMostShown = 5;

struct Difference {
  std::string name, first, other;
};

std::vector<Difference> differences(const Facts& first, const Facts& other) {
  std::set<std::string> names;
  for (const auto& [name, value] : first) names.insert(name);
  for (const auto& [name, value] : other) names.insert(name);
  const auto value_in = [](const Facts& facts, const std::string& name) {
    const auto found = facts.find(name);
    return found == facts.end() ? std::string("not set") : found->second;
  };
  std::vector<Difference> all;
  for (const std::string& name : names) {
    const std::string a = value_in(first, name), b = value_in(other, name);
    if (a != b) all.push_back({name, a, b});
  }
  return all;
}

[[noreturn]] void refuse(const std::vector<Facts>& facts, const std::vector<std::string>& hosts,
                         std::size_t rank) {
  const std::vector<Difference> all = differences(facts[0], facts[rank]);
  std::string expected, found;
  for (std::size_t i = 0; i < std::min(all.size(), kMostShown); ++i) {
    expected += (i > 0 ? ", " : "") + all[i].name + ": " + all[i].first;
    found += (i > 0 ? ", " : "") + all[i].name + ": " + all[i].other;
  }
  if (all.size() > kMostShown) found += " and " + std::to_string(all.size() - kMostShown) + " more";
  throw Error({.what = "the ranks have different programs or settings",
               .expected = expected + " (rank 0 on " + hosts[0] + ")",
               .found = found + " (rank " + std::to_string(rank) + " on " + hosts[rank] + ")",
               .fix = "start the same program with the same configuration and variables on all hosts",
               .code = ExitCode::usage});
}

}  // namespace

Facts facts_of_start(const std::string& version, const config::Config& config,
                     const config::Environment& environment) {
  static constexpr std::array kOwn{"OCTETRUN_BAR_COLUMNS", "OCTETRUN_CACHE", "OCTETRUN_FAILPOINT",
                                   "OCTETRUN_LAUNCHER"};
  Facts facts{{"the program's version", version}, {"the program's build", build_id()}};
  for (const config::Field& field : config::schema()) {
    if (field.status == config::Status::used) facts[field.name] = config::value_text(field, config);
  }
  // Each rank reads its copy of the file.
  if (config.template_name && text::is_template_file(*config.template_name)) {
    std::error_code ignored;
    facts["the file of the template"] = std::filesystem::is_regular_file(*config.template_name, ignored)
                                            ? hash128_hex(read_file(*config.template_name))
                                            : "not there";
  }
  for (const auto& [name, value] : environment) {
    const bool counts = name.starts_with("OCTET_") || name.starts_with(kOwnPrefix);
    if (counts && std::ranges::find(kOwn, name) == kOwn.end()) facts["environment " + name] = value;
  }
  return facts;
}

void require_same(comm::Channel& channel, const Facts& own) {
  const std::string bytes = comm::to_bytes(own);
  const std::vector<std::string> hashes = channel.all_gather_bytes(hash128_hex(bytes));
  const auto other = std::ranges::find_if(hashes, [&](const std::string& hash) { return hash != hashes[0]; });
  if (other == hashes.end()) return;
  const std::vector<std::string> hosts = channel.all_gather_bytes(channel.place().host);
  std::vector<Facts> facts;
  for (const std::string& text : channel.all_gather_bytes(bytes))
    facts.push_back(comm::from_bytes<Facts>(text));
  channel.together([&] {
    if (channel.rank() == 0) refuse(facts, hosts, static_cast<std::size_t>(other - hashes.begin()));
  });
}

void require_same_start(runtime::Session& session, const std::string& version, const config::Config& config,
                        const std::vector<std::string>& arguments) {
  Facts facts = facts_of_start(version, config, config::process_environment());
  std::string line;
  for (const std::string& argument : arguments) line += (line.empty() ? "" : " ") + argument;
  if (!line.empty()) facts["arguments"] = line;
  require_same(session.job(), facts);
}

}  // namespace octet::train
