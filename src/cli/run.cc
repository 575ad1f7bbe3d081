#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>

#include "command.h"
#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/cli/cli.h"
#include "octet/comm/job.h"
#include "octet/comm/launchers.h"
#include "octet/config/config.h"
#include "octet/device/gpus.h"
#include "octet/runtime/session.h"

namespace octet::cli {
namespace {

const std::vector<Command>& commands() {
  static const std::vector<Command> all{
      {"train", "fine-tune a model as CONFIG says (the default command)", train_command},
      {"encode", "show what training would see of texts and conversations: JSON lines in, JSON lines out",
       encode_command, CommandPlace::one_rank},
      {"probe", "run one batch through the code of training and write loss, logits and gradients",
       probe_command},
      {"inspect", "show what a checkpoint holds, verify it, or compare it with another", inspect_command,
       CommandPlace::one_rank},
      {"export", "turn a checkpoint into a Hugging Face folder", export_command, CommandPlace::one_rank},
      {"generate", "answer questions from the terminal or a file", generate_command},
      {"plan", "say what a run will hold and how long it takes at least", plan_command,
       CommandPlace::one_rank},
      {"lint", "look for mistakes and doubtful settings in a configuration", lint_command,
       CommandPlace::one_rank},
      {"verify", "check what a run needs of this machine", verify_command},
      {"compare", "show runs side by side, from their logs", compare_command, CommandPlace::one_rank},
      {"bench", "measure training steps of a model's shape on random tokens", bench_command},
      {"gpu-info", "show the GPUs and whether this program can train on them", gpu_info_command,
       CommandPlace::one_rank},
      {"supervise", "start a run again until it is complete (launch/supervise calls it)", supervise_command,
       CommandPlace::one_rank},
      {"quickstart", "make a small task, tokenizer, model and configuration to train at once",
       quickstart_command, CommandPlace::one_rank},
  };
  return all;
}

void print_help() {
  std::printf(
      "trainer CONFIG [key=value …]          fine-tune a model; under `mpirun -np N` or alone\n"
      "trainer COMMAND [options] [key=value …]\n\n");
  for (const Command& command : commands()) {
    std::printf("  %-11s %s\n", command.name.c_str(), command.summary.c_str());
  }
  std::printf(
      "\n`trainer COMMAND --help` says more. Configuration keys: `trainer train --help`.\nEnvironment "
      "variables: "
      "`trainer --help environment`.\n");
}

int printed(const Error& e) {
  // A silent Error says that another rank has printed it.
  if (!e.problem().what.empty()) log::error(e.what());
  return static_cast<int>(e.code());
}

// Ends all ranks with one message when this one failed before it knew the others. Whatever a rank does next,
// it opens a session, and there they meet.
int refuse(const Error& e) {
  if (e.problem().agreed || !comm::launched_by_mpi()) return printed(e);
  try {
    const runtime::Session session(DeviceWish::cpu, std::current_exception());
  } catch (const Error& agreed) {
    return printed(agreed);
  }
  return static_cast<int>(e.code());
}

// A command of one process does its work once, however many a launcher started.
int run_once(const Command& command, const Arguments& arguments) {
  if (comm::launched_by_mpi() && comm::find_place().rank != 0) return 0;
  try {
    return command.run(arguments);
  } catch (const Error& e) {
    return printed(e);
  }
}

// Before anything is touched: processes that a launcher without MPI started would each be a run of their own.
void require_mpi_launcher(const Arguments& arguments) {
  if (std::ranges::find(arguments, "--help") != arguments.end()) return;
  const comm::Launched launched = comm::launched_without_mpi(environment_variable);
  if (launched.size > 1) throw Error(comm::wrong_launcher(launched, comm::command_line()));
}

int dispatch(const Arguments& arguments) {
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h" || arguments[0] == "help") {
    if (arguments.size() > 1 && arguments[1] == "environment") {
      std::printf("%s", environment_help().c_str());
      return 0;
    }
    print_help();
    return arguments.empty() ? static_cast<int>(ExitCode::usage) : 0;
  }
  if (arguments[0] == "--version" || arguments[0] == "version") {
    std::printf("octet %s\n", OCTET_VERSION);
    return 0;
  }
  const auto found = std::ranges::find(commands(), arguments[0], &Command::name);
  if (found != commands().end()) {
    const Arguments rest(arguments.begin() + 1, arguments.end());
    if (found->place == CommandPlace::one_rank) return run_once(*found, rest);
    require_mpi_launcher(rest);
    return found->run(rest);
  }
  const bool is_config =
      arguments[0].find_first_of("./=") != std::string::npos || arguments[0].starts_with('-');
  if (is_config) {
    require_mpi_launcher(arguments);
    return train_command(arguments);
  }
  std::vector<std::string> names;
  for (const Command& command : commands()) names.push_back(command.name);
  const std::string near = nearest_name(arguments[0], names);
  throw Error({.what = "there is no command '" + arguments[0] + "'",
               .expected = "a command, or a configuration ending in .yaml, .yml or .json",
               .where = "command line",
               .fix = near.empty() ? "trainer --help lists the commands" : "did you mean '" + near + "'?",
               .code = ExitCode::usage});
}

}  // namespace

int run(int argc, const char* const* argv) {
  prepare_gpu_environment();
  // A file that meets a size limit is a failed write, with a message.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    require_known_variables(config::process_environment());
    return dispatch(Arguments(argv + 1, argv + std::max(1, argc)));
  } catch (const Error& e) {
    return refuse(e);
  } catch (const std::exception& e) {
    log::error(std::string("internal error: ") + e.what());
    return static_cast<int>(ExitCode::failure);
  }
}

}  // namespace octet::cli
