#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "help/description.h"
#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "octet/config/schema.h"

namespace octet::cli {
namespace {

constexpr std::size_t kWords = 26;  ///< column at which what options do begins

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

// Letters, not bytes: a byte of UTF-8 that goes on with one is none.
std::size_t letters(const std::string& word) {
  return static_cast<std::size_t>(
      std::ranges::count_if(word, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// A term at the left, what it means at the right, or below it where it is long.
std::string entry(const std::string& term, const std::string& words, std::size_t width) {
  std::string text = "  " + term;
  if (text.size() + 2 > kWords) {
    text += "\n";
    return text + wrapped(words, kWords, width);
  }
  text.append(kWords - text.size(), ' ');
  return text + wrapped(words, kWords, width, kWords);
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
  return "  " + field.name + "\n" + wrapped(config::meaning_text(field), 6, width) +
         wrapped("(" + values + ")", 6, width);
}

}  // namespace

std::string wrapped(const std::string& text, std::size_t indent, std::size_t width, std::size_t begun) {
  std::string out;
  std::size_t column = begun;
  for (const std::string& line : split(text, '\n')) {
    for (const std::string& word : split(line, ' ')) {
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
  return std::clamp<std::size_t>(size.ws_col, 60, 120);
}

std::string help_text(const CommandText& command, std::size_t width) {
  const bool whole = command.words.ends_with('.');
  std::string text = wrapped(command.words + (whole ? "" : "."), 0, width) + "\n" + usage(command) + "\n\n";
  for (const OptionText& option : command.options) text += entry(option, width);
  if (command.takes_keys) {
    text += entry("KEY=VALUE", "a key of the configuration, as in a file; `trainer train --help` lists them",
                  width);
  }
  if (!command.examples.empty()) text += "\nExamples:\n";
  for (const std::string& example : command.examples) text += "  " + example + "\n";
  return text;
}

std::string overview(const std::vector<CommandText>& commands, std::size_t width) {
  std::string text =
      "trainer CONFIG [KEY=VALUE...]              fine-tune a model; under `mpirun -np N` or alone\n"
      "trainer COMMAND [OPTIONS] [KEY=VALUE...]\n\n";
  for (const CommandText& command : commands) text += entry(command.name, command.summary, width);
  text += "\n";
  for (const auto& [call, shows] :
       {std::pair{"trainer COMMAND --help", "options of a command, with examples"},
        {"trainer train --help", "all keys of the configuration"},
        {"trainer --help KEY", "one of them"},
        {"trainer --help environment", "environment variables"},
        {"trainer --version", "version, commit, and what was built in"}}) {
    std::string line = "  " + std::string(call);
    line.append(line.size() < 30 ? 30 - line.size() : 1, ' ');
    text += line + shows + "\n";
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
  if (const config::Field* field = config::find_field(key)) {
    return field->group + ":\n" + key_entry(*field, width);
  }
  const std::string near = nearest_name(key, config::field_names());
  throw Error({.what = "there is no command, key or page '" + key + "'",
               .where = "command line",
               .fix = near.empty() ? "trainer --help lists the commands, trainer train --help the keys"
                                   : "did you mean '" + near + "'?",
               .code = ExitCode::usage});
}

}  // namespace octet::cli
