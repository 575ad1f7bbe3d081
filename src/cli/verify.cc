// `trainer verify`: checks whether this machine and its ranks can train.
#include "octet/verify/run_checks.h"

#include <cstdio>

#include "octet/base/json.h"
#include "octet/comm/libraries.h"
#include "octet/setup/setup.h"
#include "options.h"

namespace octet::cli {
namespace {

using verify::Result;

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

int run_and_print(runtime::Session& session, const verify::Wish& wish, verify::Leftovers& leftovers,
                  bool json) {
  Json all = Json::array();
  const verify::Summary summary = verify::run_checks(session, wish, leftovers, [&](const Result& result) {
    all.push_back(json_of(result));
    if (json) return;
    print(result);
    std::fflush(stdout);  // the next check may hang
  });
  if (!session.prints()) return static_cast<int>(summary.code);
  if (json) {
    std::printf("%s\n", Json{{"ok", summary.wrong == 0}, {"checks", all}}.dump(2).c_str());
  } else if (summary.wrong == 0) {
    std::printf("all %d checks pass\n", summary.checks);
  } else {
    std::printf("%d of %d checks fail: see ✗ above\n", summary.wrong, summary.checks);
  }
  return static_cast<int>(summary.code);
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
  verify::Wish wish{.resolved = {}, .folder = ".", .unopened = std::nullopt};
  bool json = false;
  options.add_option("--folder", wish.folder, "where checkpoints would be written").shows_default();
  options.add_flag("--json", json, "print JSON");
  if (!options.parse(arguments)) return 0;
  wish.resolved = config::load(options.overrides(), {.for_training = false});
  const setup::SessionWish wanted = setup::session_wish(wish.resolved.config);
  verify::Leftovers leftovers;  // before the session: its threads inherit the signal mask
  comm::let_few_threads_pass();
  runtime::Session session(wanted.device, nullptr, wanted.carrying, &wish.unopened);
  return session.run([&] {
    try {
      return run_and_print(session, wish, leftovers, json);
    } catch (...) {  // only on this rank; the process ends without running destructors
      leftovers.remove_all();
      throw;
    }
  });
}

}  // namespace octet::cli
