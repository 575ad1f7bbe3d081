// `trainer verify`: checks whether this machine and its ranks can train.
#include <cstdio>
#include <functional>
#include <optional>
#include <vector>

#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/comm/libraries.h"
#include "octet/config/derive.h"
#include "octet/setup/setup.h"
#include "options.h"
#include "verify/checks.h"

namespace octet::cli {
namespace {

/// A named check.
struct Check {
  std::string name;
  std::function<std::string()> run;
};

struct Result {
  std::string name;
  std::string found;  ///< findings of a check that passed
  std::optional<Problem> problem;
};

Json json_of(const Result& result) {
  Json json{{"name", result.name}, {"ok", !result.problem}};
  if (!result.problem) {
    json["found"] = result.found;
    return json;
  }
  const Problem& p = *result.problem;
  json["problem"] = {
      {"what", p.what}, {"expected", p.expected}, {"found", p.found}, {"where", p.where}, {"to_do", p.fix}};
  return json;
}

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

void print(const Result& result) {
  std::printf("%s %-11s ", result.problem ? "✗" : "✓", result.name.c_str());
  if (!result.problem) {
    std::printf("%s\n", result.found.c_str());
    return;
  }
  const Problem& p = *result.problem;
  std::printf("%s\n", p.what.c_str());
  for (const auto& [word, text] :
       {std::pair{"expected", p.expected}, {"found", p.found}, {"where", p.where}, {"to do", p.fix}}) {
    if (!text.empty())
      std::printf("              %-9s %s\n", (std::string(word) + ":").c_str(), text.c_str());
  }
}

/// Options of the command, and the error of opening its session, if any.
struct Wish {
  config::Resolved resolved;
  std::string folder;
  bool json = false;
  std::optional<Problem> unopened;
};

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

int verify(runtime::Session& session, const Wish& wish, Leftovers& leftovers) {
  const std::vector<Check> checks = checks_of(session, wish, leftovers);
  leftovers.add_missing_folders(wish.folder);
  Json all = Json::array();
  int wrong = 0;
  ExitCode code = ExitCode::ok;
  for (const Check& check : checks) {
    const Result result = result_of(session.job(), check);
    session.job().barrier();  // no rank measures while another still runs the check before
    if (result.problem && wrong++ == 0) code = result.problem->code;
    if (!session.prints()) continue;
    all.push_back(json_of(result));
    if (wish.json) continue;
    print(result);
    std::fflush(stdout);  // the next check may hang
  }
  if (!session.prints()) return static_cast<int>(code);
  if (wish.json) {
    std::printf("%s\n", Json{{"ok", wrong == 0}, {"checks", all}}.dump(2).c_str());
  } else if (wrong == 0) {
    std::printf("all %zu checks pass\n", checks.size());
  } else {
    std::printf("%d of %zu checks fail: see ✗ above\n", wrong, checks.size());
  }
  return static_cast<int>(code);
}

}  // namespace

int verify_command(const Arguments& arguments) {
  Options options("verify",
                  "Checks a machine and its ranks for training, under `mpirun -np N` or alone: equal ranks, "
                  "device, cores, memory, limits, variables, messages and their rates, disk, a checkpoint, "
                  "and a small FP8 step against the CPU. Continues after a failed check, says what to do, "
                  "and removes its files; exits with 0 if all checks pass");
  options.example("trainer verify");
  options.example("launch/mpirun -np 8 build/bin/trainer verify --json");
  options.take_overrides();
  Wish wish{.resolved = {}, .folder = ".", .json = false, .unopened = std::nullopt};
  options.add_option("--folder", wish.folder, "where checkpoints would be written").shows_default();
  options.add_flag("--json", wish.json, "print JSON");
  if (!options.parse(arguments)) return 0;
  wish.resolved = config::load(options.overrides(), {.for_training = false});
  const setup::SessionWish wanted = setup::session_wish(wish.resolved.config);
  Leftovers leftovers;  // before the session: its threads inherit the signal mask
  comm::let_few_threads_pass();
  runtime::Session session(wanted.device, nullptr, wanted.carrying, &wish.unopened);
  return session.run([&] {
    try {
      return verify(session, wish, leftovers);
    } catch (...) {  // only on this rank; the process ends without running destructors
      leftovers.remove_all();
      throw;
    }
  });
}

}  // namespace octet::cli
