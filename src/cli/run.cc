#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <thread>

#include "command.h"
#include "help/description.h"
#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/base/process.h"
#include "octet/base/strings.h"
#include "octet/base/terminal.h"
#include "octet/cli/cli.h"
#include "octet/comm/job.h"
#include "octet/comm/launchers.h"
#include "octet/config/config.h"
#include "octet/device/gpus.h"
#include "octet/device/op_threads.h"
#include "octet/memory_tier/memory_folder.h"
#include "octet/runtime/session.h"
#include "octet/runtime/signals.h"
#include "options.h"
#include "version.h"

namespace octet::cli {
namespace {

const std::vector<Command>& commands() {
  static const std::vector<Command> all{
      {"train", "fine-tune a model with the settings of CONFIG (the default command)", train_command},
      {"encode",
       "show the tokens that training makes of texts and conversations: JSON lines in, JSON lines out",
       encode_command, CommandPlace::one_rank},
      {"probe", "run one batch through the training code and write loss, logits and gradients",
       probe_command},
      {"inspect", "show the contents of a checkpoint, verify it, or compare two", inspect_command,
       CommandPlace::one_rank},
      {"export", "turn a checkpoint into a Hugging Face folder", export_command, CommandPlace::one_rank},
      {"generate", "answer questions from the terminal or a file", generate_command},
      {"plan", "compute the memory and the least time of a run", plan_command, CommandPlace::one_rank},
      {"lint", "look for mistakes and doubtful settings in a configuration", lint_command,
       CommandPlace::one_rank},
      {"schema", "print a JSON Schema of the configuration, for editors", schema_command,
       CommandPlace::one_rank},
      {"verify", "check this machine for training", verify_command},
      {"compare", "show runs side by side, from their logs", compare_command, CommandPlace::one_rank},
      {"bench", "measure training steps of a model's shape on random tokens", bench_command},
      {"gpu-info", "show the GPUs and whether this program can train on them", gpu_info_command,
       CommandPlace::one_rank},
      {"supervise", "start a run again until it is complete (launch/supervise calls it)", supervise_command,
       CommandPlace::one_rank},
      {"quickstart", "make a small task, tokenizer, model and configuration for a first training run",
       quickstart_command, CommandPlace::one_rank},
  };
  return all;
}

// Calls every command while a Describing exists, and returns the descriptions of their options.
std::vector<CommandText> command_texts() {
  std::vector<CommandText> texts;
  for (const Command& command : commands()) {
    CommandText text;
    {
      const Describing describing(text);
      command.run({});
    }
    text.name = command.name;
    text.summary = command.summary;
    texts.push_back(std::move(text));
  }
  return texts;
}

// `trainer --help [COMMAND | KEY | environment | completion SHELL]`
std::string help(const Arguments& topic) {
  if (topic.empty()) return overview(command_texts(), terminal_width());
  if (topic[0] == "environment") return environment_help();
  if (topic[0] == "completion") return completion(topic.size() > 1 ? topic[1] : "", command_texts());
  for (const CommandText& command : command_texts()) {
    if (command.name == topic[0]) return help_text(command, terminal_width());
  }
  return key_text(topic[0], terminal_width());
}

int printed(const Error& e) {
  note_ending(static_cast<int>(e.code()));
  if (e.problem().what.empty()) {
    // Another rank prints the error. mpirun ends all ranks when one fails, so this rank waits until the other
    // rank has printed.
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  } else {
    log::error(e.what());
  }
  return static_cast<int>(e.code());
}

// Ends all ranks with one message if this rank fails before it opens its session. The other ranks open a
// session too, and the sessions exchange the error.
int refuse(const Error& e) {
  if (e.problem().agreed || !comm::launched_by_mpi()) return printed(e);
  try {
    const runtime::Session session(kWithoutGpus, std::current_exception());
  } catch (const Error& met) {
    // If the session could not be opened, the ranks did not exchange the error. This rank prints its own.
    return printed(met.problem().agreed ? met : e);
  }
  return static_cast<int>(e.code());
}

// Throws Error if a launcher started several processes without MPI: each process would start a separate run.
// Call it before any other work.
void require_mpi_launcher(const Arguments& arguments) {
  if (std::ranges::find(arguments, "--help") != arguments.end()) return;
  const comm::Launched launched =
      comm::launched_without_mpi(environment_variable, [] { return comm::program_mpi().speaks_pmi2; });
  if (launched.size > 1)
    throw Error(comm::wrong_launcher(launched, comm::command_line(), comm::program_mpi()));
}

// Throws Error if a platform started several hosts without MPI: each host would start a separate run.
void require_mpi_between_hosts(const Arguments& arguments) {
  if (std::ranges::find(arguments, "--help") != arguments.end()) return;
  const comm::Launched launched = comm::hosts_without_mpi(environment_variable);
  if (launched.size > 1)
    throw Error(comm::wrong_launcher(launched, comm::command_line(), comm::program_mpi()));
}

// Runs a single-process command on rank 0 only. Other ranks that a launcher started do nothing.
int run_once(const Command& command, const Arguments& arguments) {
  try {
    if (comm::launched_by_mpi()) {
      const comm::Place place = comm::find_place();
      if (std::ranges::find(arguments, "--help") == arguments.end()) comm::require_whole_job(place.size);
      if (place.rank != 0) return 0;
    }
    return command.run(arguments);
  } catch (const Error& e) {
    return printed(e);
  }
}

bool names_configuration(const std::string& word) {
  return word.find_first_of("./=") != std::string::npos || word.starts_with('-');
}

// Handles stop signals from the start of the program until the run installs its own handlers. launch/mpirun
// sends stop signals only to ranks that have a handler.
void answer_stops(const Arguments& arguments) {
  if (arguments.empty() || arguments[0].starts_with("--")) return;
  const bool handed_on = comm::stops_are_handed_on(environment_variable);
  const char* rank = environment_variable("OMPI_COMM_WORLD_RANK");
  if (rank == nullptr) rank = environment_variable("PMI_RANK");
  const bool prints = rank == nullptr || std::string_view(rank) == "0";
  if (arguments[0] == "train" || names_configuration(arguments[0])) {
    runtime::answer_stops_at_start(prints, handed_on);
  } else if (handed_on) {
    runtime::answer_stops_of_a_command(prints);
  }
}

/// Commands of other programs, and their equivalent here.
struct Instead {
  std::vector<std::string_view> words;
  const char* fix;
};

/// Returns advice for a command of another program; null for other words.
const char* instead_of(std::string_view word) {
  static const std::vector<Instead> all{
      {{"chat"}, "trainer generate MODEL answers questions in the terminal"},
      {{"serve", "api"},
       "trainer generate MODEL --file QUESTIONS --out ANSWERS answers a file; to serve a model over HTTP, "
       "load the output folder with vLLM: vllm serve FOLDER"},
      {{"eval", "evaluate"},
       "trainer generate MODEL --file QUESTIONS --exact-match compares answers; eval_dataset and "
       "eval_strategy evaluate the loss while training"},
      {{"merge", "merge-lora"},
       "trainer export ADAPTER FOLDER --merge writes the model with its adapter merged"},
      {{"sft", "finetune", "fine-tune"}, "trainer train CONFIG fine-tunes a model"},
      {{"predict", "infer", "inference", "ask", "test"},
       "trainer generate MODEL answers questions in the terminal, and with --file the rows of a file"},
      {{"convert"}, "trainer export CHECKPOINT FOLDER writes a model for transformers"},
      {{"push", "upload"}, "hf upload OWNER/NAME FOLDER uploads the output folder of a run"},
      {{"download", "pull"}, "hf download OWNER/NAME fetches a model; then model_name_or_path: OWNER/NAME"},
      {{"init"}, "trainer quickstart makes a small task, model and configuration"},
      {{"tokenize"}, "trainer encode shows what training sees of a file"},
      {{"preprocess"}, "trainer encode shows what training sees of a file; tokenized_path keeps its tokens"},
      {{"resume"}, "trainer train CONFIG: the same command resumes from the newest checkpoint"},
      {{"webui"}, "there is no web page; trainer train CONFIG fine-tunes a model"},
  };
  for (const Instead& instead : all) {
    if (std::ranges::find(instead.words, word) != instead.words.end()) return instead.fix;
  }
  return nullptr;
}

int dispatch(const Arguments& arguments) {
  // Internal: only the program itself starts this process.
  if (arguments.size() == 2 && arguments[0] == "--keep-memory") return memory_tier::keep_memory(arguments[1]);
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h" || arguments[0] == "help") {
    const Arguments topic(arguments.begin() + (arguments.empty() ? 0 : 1), arguments.end());
    std::printf("%s", help(topic).c_str());
    return arguments.empty() ? static_cast<int>(ExitCode::usage) : 0;
  }
  if (arguments[0] == "--version" || arguments[0] == "version") {
    std::printf("%s", version_text().c_str());
    return 0;
  }
  const auto found = std::ranges::find(commands(), arguments[0], &Command::name);
  if (found != commands().end()) {
    const Arguments rest(arguments.begin() + 1, arguments.end());
    require_mpi_launcher(rest);
    if (found->name == "train") require_mpi_between_hosts(rest);
    return found->place == CommandPlace::one_rank ? run_once(*found, rest) : found->run(rest);
  }
  if (names_configuration(arguments[0])) {
    require_mpi_launcher(arguments);
    require_mpi_between_hosts(arguments);
    return train_command(arguments);
  }
  if (const char* fix = instead_of(arguments[0])) {
    throw Error({.what = "there is no command '" + arguments[0] + "'",
                 .expected = "a command, or a configuration ending in .yaml, .yml or .json",
                 .where = "command line",
                 .fix = fix,
                 .code = ExitCode::usage});
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
  const EndsItself ends_itself;
  const Arguments arguments(argv + 1, argv + std::max(1, argc));
  // Under launch/mpirun the launcher reports the signal.
  runtime::tell_of_faults(!comm::stops_are_handed_on(environment_variable));
  answer_stops(arguments);
  cpu::spare_limited_memory();
  // Read before prepare_gpu_environment() changes variables.
  const config::Environment environment = config::process_environment();
  // `supervise` changes no variables, because the processes that it starts need the user's values.
  const bool starts_others = argc > 1 && argv[1] == std::string_view("supervise");
  if (!starts_others) prepare_gpu_environment();
  if (comm::output_reaches_terminal(environment_variable)) protect_terminal();
  // A write beyond a file size limit then fails with an error, and the program reports it.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    require_known_variables(environment);
    return dispatch(arguments);
  } catch (const Error& e) {
    return refuse(e);
  } catch (const std::exception& e) {
    // This rank prints the error alone. refuse() would open a second session or need more memory.
    if (const auto problem = problem_of(e)) return printed(Error(*problem));
    log::error(std::string("internal error: ") + e.what());
    return static_cast<int>(ExitCode::failure);
  }
}

}  // namespace octet::cli
