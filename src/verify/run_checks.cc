#include "octet/verify/run_checks.h"

#include <vector>

#include "octet/base/json.h"
#include "octet/config/derive.h"
#include "verify_checks.h"

namespace octet::verify {
namespace {

/// A named check.
struct Check {
  std::string name;
  std::function<std::string()> run;
};

// Copies the text of an agreed Error, which one rank has, to all ranks.
Problem shared(comm::Job& job, const Problem& problem) {
  const std::string mine = problem.what.empty() ? ""
                                                : Json{{"what", problem.what},
                                                       {"expected", problem.expected},
                                                       {"found", problem.found},
                                                       {"where", problem.where},
                                                       {"fix", problem.fix}}
                                                      .dump();
  for (const std::string& text : job.all_gather_bytes(mine)) {
    if (text.empty()) continue;
    const Json json = parse_json(text, "a problem");
    return {.what = json["what"],
            .expected = json["expected"],
            .found = json["found"],
            .where = json["where"],
            .fix = json["fix"],
            .code = problem.code};
  }
  return problem;
}

Result result_of(comm::Job& job, const Check& check) {
  Result result{.name = check.name, .found = "", .problem = std::nullopt};
  try {
    result.found = check.run();
  } catch (const Error& e) {
    // An error of this rank alone ends the job, because the others would wait.
    if (!e.problem().agreed) throw;
    result.problem = shared(job, e.problem());
  }
  return result;
}

std::vector<Check> checks_of(runtime::Session& session, const Wish& wish, Leftovers& leftovers) {
  std::vector<Check> checks{
      {"ranks", [&] { return check_ranks(session); }},
      {"sameness", [&] { return check_sameness(session, wish.resolved.config); }},
      {"device", [&] { return check_device(session, wish.unopened); }},
      {"cores", [&] { return check_cores(session); }},
      {"memory", [&] { return check_memory(session); }},
      {"limits", [&] { return check_limits(session); }},
      {"environment",
       [&] {
         const comm::Place& place = session.place();
         return check_environment(session, config::notes_of(wish.resolved, place.size, place.nodes));
       }},
      {"messages", [&] { return check_messages(session); }},
  };
  if (session.device().traits().has_transports)
    checks.push_back({"NCCL", [&] { return check_nccl(session); }});
  if (session.place().size > 1) {
    checks.push_back({"carrier", [&] { return check_carrier(session); }});
    checks.push_back({"links", [&] { return check_links(session); }});
  }
  checks.push_back({"disk", [&] { return check_disk(session, wish.folder, leftovers); }});
  checks.push_back({"checkpoint", [&] { return check_checkpoint(session, wish.folder, leftovers); }});
  checks.push_back({"FP8 step", [&] { return check_step(session); }});
  return checks;
}

}  // namespace

Summary run_checks(runtime::Session& session, const Wish& wish, Leftovers& leftovers,
                   const std::function<void(const Result&)>& tell) {
  const std::vector<Check> checks = checks_of(session, wish, leftovers);
  leftovers.add_missing_folders(wish.folder);
  Summary summary{.checks = static_cast<int>(checks.size())};
  for (const Check& check : checks) {
    const Result result = result_of(session.job(), check);
    session.job().barrier();  // no rank measures while another still runs the check before
    if (result.problem && summary.wrong++ == 0) summary.code = result.problem->code;
    if (session.prints()) tell(result);
  }
  return summary;
}

}  // namespace octet::verify
