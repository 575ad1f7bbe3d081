#pragma once

#include <functional>
#include <string>
#include <typeinfo>
#include <vector>

#include "octet/base/error.h"
#include "octet/config/warnings.h"

namespace octet::cli {

using Arguments = std::vector<std::string>;

/// Which processes of an MPI job run a command.
enum class CommandPlace { all_ranks, one_rank };

/// A command: its name, its summary in `trainer --help`, and the function that runs it.
struct Command {
  std::string name;
  std::string summary;
  std::function<int(const Arguments&)> run;
  CommandPlace place = CommandPlace::all_ranks;
};

int train_command(const Arguments& arguments);
int encode_command(const Arguments& arguments);
int probe_command(const Arguments& arguments);
int inspect_command(const Arguments& arguments);
int export_command(const Arguments& arguments);
int generate_command(const Arguments& arguments);
int plan_command(const Arguments& arguments);
int lint_command(const Arguments& arguments);
int schema_command(const Arguments& arguments);
int verify_command(const Arguments& arguments);
int gpu_info_command(const Arguments& arguments);
int compare_command(const Arguments& arguments);
int bench_command(const Arguments& arguments);
int supervise_command(const Arguments& arguments);
int quickstart_command(const Arguments& arguments);

// Adds the places of configuration keys to the errors of a command.

/// Runs `body` and adds the places of keys to its Errors (config::located). Errors of derived types are not
/// changed.
template <typename Body>
auto with_places(const config::Resolved& resolved, const Body& body) {
  try {
    return body();
  } catch (const Error& e) {
    if (typeid(e) != typeid(Error)) throw;
    throw Error(config::located(e.problem(), resolved));
  }
}

}  // namespace octet::cli
