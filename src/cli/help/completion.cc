#include <algorithm>
#include <iterator>

#include "help/description.h"
#include "octet/base/error.h"
#include "octet/base/shell.h"
#include "octet/config/key_table.h"

namespace octet::cli {
namespace {

using config::Field;

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::vector<std::string> option_names(const CommandText& command) {
  std::vector<std::string> names;
  for (const OptionText& option : command.options) {
    if (!option.positional) std::ranges::copy(option.names, std::back_inserter(names));
  }
  return names;
}

std::vector<const Field*> used_keys() {
  std::vector<const Field*> keys;
  for (const Field& field : config::schema()) {
    if (field.status == config::Status::used) keys.push_back(&field);
  }
  return keys;
}

std::vector<std::string> values_of(const Field& field) {
  if (field.kind == config::Kind::boolean) return {"true", "false"};
  std::vector<std::string> values;
  for (const std::string& choice : field.choices) {
    const bool refused =
        std::ranges::any_of(field.refused_values, [&](const auto& entry) { return entry.first == choice; });
    if (!refused) values.push_back(choice);
  }
  return values;
}

// Returns the branches of a `case` in bash and zsh, which map options to their values.
std::string value_cases(const std::vector<CommandText>& commands) {
  std::string cases;
  for (const CommandText& command : commands) {
    for (const OptionText& option : command.options) {
      if (option.choices.empty()) continue;
      for (const std::string& name : option.names) {
        cases += "    " + quoted_for_shell(command.name + " " + name) + ") echo " +
                 quoted_for_shell(joined(option.choices)) + " ;;\n";
      }
    }
  }
  return cases;
}

std::string key_cases() {
  std::string cases;
  for (const Field* field : used_keys()) {
    const std::vector<std::string> values = values_of(*field);
    if (!values.empty())
      cases += "    " + field->name + ") echo " + quoted_for_shell(joined(values)) + " ;;\n";
  }
  return cases;
}

// Returns shell functions for both bash and zsh: the possible words of each command.
std::string tables(const std::vector<CommandText>& commands) {
  std::vector<std::string> names, keys;
  std::string options, takers;
  for (const CommandText& command : commands) {
    names.push_back(command.name);
    options += "    " + command.name + ") echo " + quoted_for_shell(joined(option_names(command))) + " ;;\n";
    if (command.takes_keys) takers += (takers.empty() ? "" : "|") + command.name;
  }
  for (const Field* field : used_keys()) keys.push_back(field->name);
  return "_trainer_commands() { echo " + quoted_for_shell(joined(names)) +
         "; }\n_trainer_options() {\n  case $1 in\n" + options +
         "  esac\n}\n_trainer_values() { # command, option\n  case \"$1 $2\" in\n" + value_cases(commands) +
         "  esac\n}\n_trainer_key_values() {\n  case $1 in\n" + key_cases() +
         "  esac\n}\n_trainer_keys() { echo " + quoted_for_shell(joined(keys)) +
         "; }\n_trainer_takes_keys() {\n  case $1 in\n    " + takers +
         "|*.yaml|*.yml|*.json) return 0 ;;\n  esac\n  return 1\n}\n";
}

constexpr const char* kBash = R"sh(_trainer() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}
  COMPREPLY=()
  # Bash cuts words at "=": KEY, =, VALUE.
  local key=''
  if [ "$cur" = = ]; then
    key=$prev cur=''
  elif [ "$prev" = = ]; then
    key=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  if [ -n "$key" ]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_trainer_key_values "$key")" -- "$cur")
    [ ${#COMPREPLY[@]} -gt 0 ] || mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    return
  fi
  if [ "$COMP_CWORD" -eq 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_trainer_commands) --help --version" -- "$cur"; compgen -f -- "$cur")
    return
  fi
  local values
  values=$(_trainer_values "$command" "$prev")
  if [ -n "$values" ]; then
    mapfile -t COMPREPLY < <(compgen -W "$values" -- "$cur")
  elif [[ $cur == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(_trainer_options "$command")" -- "$cur")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    if _trainer_takes_keys "$command" && [ -n "$cur" ]; then
      local name
      for name in $(compgen -W "$(_trainer_keys)" -- "$cur"); do
        COMPREPLY+=("$name=")
        compopt -o nospace 2>/dev/null
      done
    fi
  fi
}
complete -o filenames -F _trainer trainer
)sh";

std::string for_bash(const std::vector<CommandText>& commands) {
  return "# Completion of trainer for bash.\n" + tables(commands) + kBash;
}

std::string for_zsh(const std::vector<CommandText>& commands) {
  return "#compdef trainer\n# Completion of trainer for zsh.\n" + tables(commands) + R"sh(_trainer() {
  local command=${words[2]} before=${words[CURRENT - 1]} current=${words[CURRENT]}
  local -a found
  if (( CURRENT == 2 )); then
    found=(${=$(_trainer_commands)} --help --version)
    compadd -a found
    _files
    return
  fi
  if [[ $current == *=* ]]; then
    found=(${=$(_trainer_key_values ${current%%=*})})
    compset -P '*='
    (( $#found )) && compadd -a found || _files
    return
  fi
  found=(${=$(_trainer_values $command $before)})
  if (( $#found )); then
    compadd -a found
  elif [[ $current == -* ]]; then
    found=(${=$(_trainer_options $command)})
    compadd -a found
  else
    if _trainer_takes_keys $command; then
      found=(${=$(_trainer_keys)})
      compadd -q -S = -a found
    fi
    _files
  fi
}
_trainer "$@"
)sh";
}

std::string for_fish(const std::vector<CommandText>& commands) {
  std::string text = "# Completion of trainer for fish.\n";
  std::string takers;
  for (const CommandText& command : commands) {
    if (command.takes_keys) takers += " " + command.name;
    text += "complete -c trainer -n __fish_use_subcommand -a " + command.name + " -d " +
            quoted_for_shell(command.summary) + "\n";
    for (const OptionText& option : command.options) {
      if (option.positional) continue;
      text += "complete -c trainer -n '__fish_seen_subcommand_from " + command.name + "'";
      for (const std::string& name : option.names)
        text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      if (!option.value.empty()) text += " -r";
      if (!option.choices.empty()) text += " -f -a " + quoted_for_shell(joined(option.choices));
      text += " -d " + quoted_for_shell(option.words) + "\n";
    }
  }
  for (const Field* field : used_keys()) {
    std::vector<std::string> words;
    for (const std::string& value : values_of(*field)) words.push_back(field->name + "=" + value);
    if (words.empty()) words.push_back(field->name + "=");
    text += "complete -c trainer -n '__fish_seen_subcommand_from" + takers +
            "; or string match -rq \"\\.(ya?ml|json)\\$\" -- (commandline -opc)' -a " +
            quoted_for_shell(joined(words)) + " -d " + quoted_for_shell(field->group) + "\n";
  }
  return text;
}

}  // namespace

std::string completion(const std::string& shell, const std::vector<CommandText>& commands) {
  if (shell == "bash") return for_bash(commands);
  if (shell == "zsh") return for_zsh(commands);
  if (shell == "fish") return for_fish(commands);
  throw Error({.what = "there is no completion for this shell",
               .expected = "bash, zsh or fish",
               .found = shell.empty() ? "nothing" : shell,
               .where = "command line",
               .fix = "name one of these",
               .code = ExitCode::usage});
}

}  // namespace octet::cli
