#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "help/description.h"
#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "octet/config/key_table.h"

namespace octet::cli {
namespace {

constexpr std::size_t kDescriptionColumn = 26;  ///< column of descriptions
constexpr std::size_t kBelow = 6;               ///< indent of a description below its option
constexpr std::size_t kNarrow = 34;             ///< narrower descriptions go below their options

std::string usage(const CommandText& command) {
  std::string line = "trainer " + command.name;
  const bool optional =
      std::ranges::any_of(command.options, [](const OptionText& o) { return !o.positional; });
  if (optional) line += " [OPTIONS]";
  for (const OptionText& option : command.options) {
    if (!option.positional) continue;
    const std::string name = option.names.front() + (option.repeats ? "..." : "");
    line += option.required ? " " + name : " [" + name + "]";
  }
  if (command.takes_keys) line += " [KEY=VALUE...]";
  return line;
}

std::string details(const OptionText& option) {
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : "; ") + part; };
  if (!option.choices.empty()) {
    std::string all;
    for (const std::string& choice : option.choices) all += (all.empty() ? "" : ", ") + choice;
    add(all);
  }
  if (!option.bounds.empty()) add(option.bounds);
  if (!option.fallback.empty()) add("default " + option.fallback);
  return text.empty() ? "" : " (" + text + ")";
}

// Returns the number of code points of a UTF-8 text.
std::size_t letters(const std::string& word) {
  return static_cast<std::size_t>(
      std::ranges::count_if(word, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// Wraps a line and indents its continuations by two more columns.
std::string hanging(const std::string& line, std::size_t indent, std::size_t width) {
  return std::string(indent, ' ') + wrapped(line, indent + 2, width, indent + 2);
}

// Formats a term at the left and its meaning at the right. The meaning goes below a long term, and in a
// narrow terminal.
std::string entry(const std::string& term, const std::string& words, std::size_t width,
                  std::size_t indent = 2, std::size_t column = kDescriptionColumn) {
  const bool narrow = width < column + kNarrow;
  if (narrow) return hanging(term, indent, width) + wrapped(words, kBelow, width);
  std::string text = std::string(indent, ' ') + term;
  if (text.size() + 2 > column) return text + "\n" + wrapped(words, column, width);
  text.append(column - text.size(), ' ');
  return text + wrapped(words, column, width, column);
}

// Formats a command line. Long lines are split with backslashes, so that a shell still reads one command.
std::string example_text(const std::string& line, std::size_t width) {
  if (letters(line) + 2 <= width) return "  " + line + "\n";
  std::string text, row = "  ";
  for (const std::string& word : split(line, ' ')) {
    const bool fits = letters(row) + letters(word) + 3 <= width;
    if (!fits && row.find_first_not_of(' ') != std::string::npos) {
      text += row + "\\\n";
      row = "    ";
    }
    row += word + " ";
  }
  row.pop_back();
  return text + row + "\n";
}

std::string entry(const OptionText& option, std::size_t width) {
  std::string term;
  for (const std::string& name : option.names) term += (term.empty() ? "" : ", ") + name;
  if (!option.positional && !option.value.empty()) term += " " + option.value;
  return entry(term, option.words + details(option), width);
}

std::string key_entry(const config::Field& field, std::size_t width) {
  const std::string values = field.status == config::Status::refused
                                 ? "accepted: " + config::default_text(field)
                                 : config::expected_text(field) + "; default " + config::default_text(field);
  return "  " + field.name + "\n" + wrapped(config::meaning_text(field), kBelow, width) +
         wrapped("(" + values + ")", kBelow, width);
}

// Describes a key of another trainer's configuration and the keys that it is converted to.
std::string foreign_entry(const config::ForeignKey& key, std::size_t width) {
  const std::string head = "In configurations of " + key.trainer + ":\n  " + key.path + "\n";
  if (key.becomes.empty())
    return head + wrapped("Changes nothing, or is refused: " + key.reason, kBelow, width);
  std::string text, names;
  for (const std::string& name : split(key.becomes, ' ')) {
    names += (names.empty() ? "" : ", ") + name;
    if (name != key.path) text += key_entry(*config::find_field(name), width);
  }
  return head + wrapped("Becomes " + names + ".", kBelow, width) + text;
}

}  // namespace

std::string wrapped(const std::string& text, std::size_t indent, std::size_t width, std::size_t begun) {
  std::string out;
  std::size_t column = begun;
  for (const std::string& line : split(text, '\n')) {
    for (std::string word : split(line, ' ')) {
      if (word.empty()) continue;
      if (column > indent && column + 1 + letters(word) > width) {
        out += "\n";
        column = 0;
      }
      if (column < indent) {
        out.append(indent - column, ' ');
        column = indent;
      } else if (column > indent) {
        out += ' ';
        ++column;
      }
      while (column + letters(word) > width && word.size() > width - indent) {
        out += word.substr(0, width - column) + "\n" + std::string(indent, ' ');
        word.erase(0, width - column);
        column = indent;
      }
      out += word;
      column += letters(word);
    }
    out += "\n";
    column = 0;
  }
  return out;
}

std::size_t terminal_width() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 100;
  return std::clamp<std::size_t>(size.ws_col, 40, 120);
}

std::string help_text(const CommandText& command, std::size_t width) {
  const bool whole = command.words.ends_with('.');
  std::string text =
      wrapped(command.words + (whole ? "" : "."), 0, width) + "\n" + hanging(usage(command), 0, width) + "\n";
  for (const OptionText& option : command.options) text += entry(option, width);
  if (command.takes_keys) {
    text += entry("KEY=VALUE", "a key of the configuration, as in a file; `trainer train --help` lists them",
                  width);
  }
  if (!command.examples.empty()) text += "\nExamples:\n";
  for (const std::string& example : command.examples) text += example_text(example, width);
  return text;
}

std::string overview(const std::vector<CommandText>& commands, std::size_t width) {
  std::string text = entry("trainer CONFIG [KEY=VALUE...]",
                           "fine-tune a model; under `mpirun -np N` or alone", width, 0, 43) +
                     hanging("trainer COMMAND [OPTIONS] [KEY=VALUE...]", 0, width) + "\n";
  for (const CommandText& command : commands) text += entry(command.name, command.summary, width);
  text += "\n";
  for (const auto& [call, shows] :
       {std::pair{"trainer COMMAND --help", "options of a command, with examples"},
        {"trainer train --help", "all keys of the configuration"},
        {"trainer --help KEY", "one of them"},
        {"trainer --help environment", "environment variables"},
        {"trainer --version", "version, commit, and built-in features"}}) {
    text += entry(call, shows, width, 2, 30);
  }
  return text;
}

std::string keys_text(std::size_t width) {
  std::string text, group;
  for (const config::Field& field : config::schema()) {
    if (field.status != config::Status::used) continue;
    if (field.group != group) text += "\n" + (group = field.group) + ":\n";
    text += key_entry(field, width);
  }
  return text;
}

std::string key_text(const std::string& key, std::size_t width) {
  const config::Field* field = config::find_field(key);
  std::string text = field == nullptr ? "" : field->group + ":\n" + key_entry(*field, width);
  std::vector<std::string> names = config::field_names();
  for (const config::ForeignKey& foreign : config::dialect_keys()) {
    names.push_back(foreign.path);
    if (foreign.path == key) text += foreign_entry(foreign, width);
  }
  if (!text.empty()) return text;
  const std::string near = nearest_name(key, names);
  throw Error({.what = "there is no command, key or page '" + key + "'",
               .where = "command line",
               .fix = near.empty() ? "trainer --help lists the commands, trainer train --help the keys"
                                   : "did you mean '" + near + "'?",
               .code = ExitCode::usage});
}

}  // namespace octet::cli
