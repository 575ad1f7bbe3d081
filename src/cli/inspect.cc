#include <cstdio>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/terminal.h"
#include "octet/checkpoint/folder.h"
#include "octet/checkpoint/inspection.h"
#include "options.h"

namespace octet::cli {
namespace {

/// Compares two checkpoints. Read errors get exit code usage, because exit code 1 means a difference.
checkpoint::Difference difference_of(const std::string& path, const std::string& other,
                                     const std::string& filter) {
  try {
    return checkpoint::diff(path, other, filter);
  } catch (const Error& error) {
    Problem problem = error.problem();
    if (problem.code == ExitCode::failure) problem.code = ExitCode::usage;
    throw Error(problem);
  }
}

/// Throws Error unless a checkpoint is undamaged. A comparison trusts the hashes of both checkpoints and
/// reads tensors only if their hashes differ.
void require_whole(const std::string& path) {
  const checkpoint::Inspection inspection = checkpoint::inspect(path, "", true);
  if (inspection.problems.empty()) return;
  throw Error({.what = inspection.problems.front(),
               .fix = "compare undamaged checkpoints; trainer inspect PATH --verify lists all faults of one",
               .code = ExitCode::no_valid_checkpoint});
}

}  // namespace

int inspect_command(const Arguments& arguments) {
  Options options("inspect",
                  "Shows the contents of a checkpoint (tensors with shapes, dtypes, norms and content "
                  "hashes, step, configuration, integrity), or compares two checkpoints");
  options.example("trainer inspect runs/first/checkpoint-500 --verify");
  options.example("trainer inspect runs/first/checkpoint-500 --diff runs/second/checkpoint-500");
  std::string path, other, filter;
  bool verify = false, json = false;
  options.add_option("CHECKPOINT", path, "folder checkpoint-N, or that of a run, for its newest checkpoint")
      .required();
  options.add_option("--filter", filter,
                     "only tensors with a name that matches this glob, or contains this text");
  options.add_flag("--verify", verify,
                   "hash every byte, also of tensors that are not shown; with --diff, of both");
  options.add_flag("--json", json, "print JSON");
  options.add_option(
      "--diff", other,
      "another checkpoint: compares parameters, moments and FP8 state by name, whatever stage or "
      "world size wrote them; exit code 0 if all bits agree, 1 if not, and another code if a checkpoint "
      "cannot be read");
  if (!options.parse(arguments)) return 0;
  path = checkpoint::checkpoint_of_run(path);
  if (!other.empty()) other = checkpoint::checkpoint_of_run(other);
  if (!other.empty()) {
    if (verify) {
      require_whole(path);
      require_whole(other);
    }
    const checkpoint::Difference difference = difference_of(path, other, filter);
    std::printf(
        "%s\n",
        (json ? checkpoint::to_json(difference).dump(2) : printable(checkpoint::render(difference))).c_str());
    return difference.identical() ? 0 : 1;
  }
  const checkpoint::Inspection inspection = checkpoint::inspect(path, filter, verify);
  std::printf(
      "%s\n",
      (json ? checkpoint::to_json(inspection).dump(2) : printable(checkpoint::render(inspection))).c_str());
  return static_cast<int>(inspection.problems.empty() ? ExitCode::ok : ExitCode::no_valid_checkpoint);
}

}  // namespace octet::cli
