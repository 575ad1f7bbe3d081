// Descriptions of commands: the single source of --help and completion. help2man makes manual pages from
// --help.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace octet::cli {

/// An option or a positional argument of a command.
struct OptionText {
  std::vector<std::string> names;    ///< "--max-new", "-h"; the name of a positional argument
  std::string value;                 ///< "N", "NUMBER", "TEXT"; "" for a flag
  std::string fallback;              ///< default; "": none
  std::string bounds;                ///< "from 1 to 4096"; "": none
  std::vector<std::string> choices;  ///< all accepted values; empty: any
  std::string words;
  bool positional = false, required = false, repeats = false;
};

struct CommandText {
  std::string name;     ///< "generate"
  std::string summary;  ///< in the list of commands
  std::string words;    ///< description in whole sentences
  std::vector<std::string> examples;
  std::vector<OptionText> options;
  bool takes_keys = false;  ///< configuration keys, as KEY=VALUE
};

/// Returns the options and arguments of a parser in the order of their declaration.
std::vector<OptionText> option_texts(const CLI::App& app);

/// Wraps `text` to lines of at most `width` characters, each indented by `indent` spaces. The first line
/// follows `begun` characters that are already printed. Line feeds in the text are kept; words are not cut.
std::string wrapped(const std::string& text, std::size_t indent, std::size_t width, std::size_t begun = 0);

/// Returns the columns of the terminal at standard output, clamped to 60 to 120; 100 if there is none.
std::size_t terminal_width();

/// Returns the text of `trainer COMMAND --help`.
std::string help_text(const CommandText& command, std::size_t width);
/// Returns the text of `trainer --help`.
std::string overview(const std::vector<CommandText>& commands, std::size_t width);
/// Returns the text of `trainer train --help`: every key with its default, its values and its meaning.
std::string keys_text(std::size_t width);
/// Returns the text of `trainer --help KEY`. Throws Error (usage) with the nearest name for an unknown key.
std::string key_text(const std::string& key, std::size_t width);

/// Returns a script that completes commands, options, keys and their values in `shell`: bash, zsh or fish.
/// Throws Error (usage) for another shell.
std::string completion(const std::string& shell, const std::vector<CommandText>& commands);

}  // namespace octet::cli
