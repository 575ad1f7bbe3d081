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
                                       const std::string& output_dir, const std::string& template_name) {
  std::vector<std::string> commands;
  const std::string first = shell_word(program);
  std::string model = shell_word(output_dir);
  if (setup::trains_adapters(config)) {
    // The adapter's folder names only the base, not adapters that were merged into it.
    std::string adapters;
    for (const std::string& folder : setup::given_adapters(config).added) adapters += folder + ",";
    if (!adapters.empty())
      model = shell_word(config.model_name_or_path) + " --adapter " + shell_word(adapters + output_dir);
    commands.push_back(first + " export " + model + " " + shell_word(output_dir + "-merged") + " --merge");
  }
  std::string asked = first + " generate " + model;
  const bool chats = !template_name.empty();
  if (chats) asked += " --template " + shell_word(template_name);
  commands.push_back(asked + (chats ? " \"your question\"" : " \"the begin of a text\""));
  return commands;
}

}  // namespace octet::train
