#include "run_commands.h"

#include <string_view>

#include "octet/base/shell.h"
#include "octet/setup/adapters.h"
#include "start.h"

namespace octet::train {

std::string resuming_command(const Launch& launch, const config::SaveKeys& config,
                             const std::string& checkpoint) {
  std::string command;
  if (launch.ranks > 1) {
    command = std::string(launch.supervised       ? "launch/supervise"
                          : launch.hands_on_stops ? "launch/mpirun"
                                                  : "mpirun") +
              " -np " + std::to_string(launch.ranks) + " ";
  } else if (launch.supervised) {
    command = "launch/supervise ";
  }
  // A run with a configured start would start there again.
  const std::string wish = config.resume_from_checkpoint.value_or("");
  const bool elsewhere = names_checkpoint(config) || wish == "false";
  constexpr std::string_view kKey = "resume_from_checkpoint=";
  for (const std::string& word : launch.command_line) {
    const std::size_t key = std::min(word.find_first_not_of('-'), word.size());
    if (!elsewhere || !word.substr(key).starts_with(kKey)) command += shell_word(word) + " ";
  }
  if (elsewhere) command += shell_word(std::string(kKey) + checkpoint) + " ";
  command.pop_back();
  return command;
}

std::vector<std::string> next_commands(const std::string& program, const config::ModelKeys& config,
                                       const FinishedModel& model) {
  std::vector<std::string> commands;
  const std::string first = shell_word(program);
  std::string name = shell_word(model.folder);
  if (setup::trains_adapters(config)) {
    // The adapter's folder names only the base, not adapters that were merged into it.
    std::string adapters;
    for (const std::string& folder : setup::given_adapters(config).added) adapters += folder + ",";
    if (!adapters.empty())
      name = shell_word(config.model_name_or_path) + " --adapter " + shell_word(adapters + model.folder);
    commands.push_back(first + " export " + name + " " + shell_word(model.folder + "-merged") + " --merge");
  }
  std::string asked = first + " generate " + name;
  const bool chats = !model.template_name.empty();
  if (chats) asked += " --template " + shell_word(model.template_name);
  asked += model.scores ? " --reward --file rows.jsonl"
           : chats      ? " \"your question\""
                        : " \"the begin of a text\"";
  commands.push_back(asked);
  return commands;
}

}  // namespace octet::train
