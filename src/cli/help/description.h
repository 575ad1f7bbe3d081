// What commands tell of themselves: the one source of --help, manual pages and completion.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace octet::cli {

/// An option or a positional argument of a command.
struct OptionText {
  std::vector<std::string> names;    ///< "--max-new", "-h"; of a positional argument its name alone
  std::string value;                 ///< "N", "NUMBER", "TEXT"; "" for a flag
  std::string fallback;              ///< default; "" : none
  std::string bounds;                ///< "from 1 to 4096"; "" : none
  std::vector<std::string> choices;  ///< all values there are; empty: any
  std::string words;
  bool positional = false, required = false, repeats = false;
};

struct CommandText {
  std::string name;     ///< "generate"
  std::string summary;  ///< in the list of commands
  std::string words;    ///< whole sentences
  std::vector<std::string> examples;
  std::vector<OptionText> options;
  bool takes_keys = false;  ///< configuration keys, as KEY=VALUE
};

/// What a parser takes, in the order in which it was told.
std::vector<OptionText> option_texts(const CLI::App& app);

/// `text` in lines of at most `width` letters, each behind `indent` blanks; the first one stands behind
/// `begun` letters that are there already. Line feeds in the text stay; words are not cut.
std::string wrapped(const std::string& text, std::size_t indent, std::size_t width, std::size_t begun = 0);

/// Columns of the terminal at standard output, from 60 to 120; 100 where there is none.
std::size_t terminal_width();

/// `trainer COMMAND --help`.
std::string help_text(const CommandText& command, std::size_t width);
/// `trainer --help`.
std::string overview(const std::vector<CommandText>& commands, std::size_t width);
/// `trainer train --help`: every key with its default, its values and its meaning.
std::string keys_text(std::size_t width);
/// `trainer --help KEY`. Throws Error (usage) for a key that is not known, with the nearest name.
std::string key_text(const std::string& key, std::size_t width);

/// Manual pages in the macros of man(7): the program, and its configuration.
std::string manual_page(const std::vector<CommandText>& commands);
std::string manual_page_of_keys();

/// A script that completes commands, options, keys and their values in `shell`: bash, zsh or fish. Throws
/// Error (usage) for another one.
std::string completion(const std::string& shell, const std::vector<CommandText>& commands);

}  // namespace octet::cli
