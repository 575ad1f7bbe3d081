#include "help/description.h"
#include "octet/base/environment.h"
#include "octet/base/strings.h"
#include "octet/config/schema.h"

namespace octet::cli {
namespace {

// Escapes text for roff: backslashes, minus signs, and a dot or an apostrophe at the start of a line.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

std::string heading(const std::string& title, const std::string& section) {
  return ".TH " + title + " " + section + " \"\" \"octet " OCTET_VERSION "\" \"Octet\"\n";
}

std::string term(const OptionText& option) {
  std::string text;
  for (const std::string& name : option.names) {
    text += (text.empty() ? "" : ", ") + ("\\fB" + roff(name) + "\\fR");
  }
  if (!option.positional && !option.value.empty()) text += " \\fI" + option.value + "\\fR";
  return text;
}

std::string entry(const OptionText& option) {
  std::string text = ".TP\n" + term(option) + "\n" + roff(option.words) + "\n";
  std::string values;
  for (const std::string& choice : option.choices) values += (values.empty() ? "" : ", ") + choice;
  if (!option.bounds.empty()) values += (values.empty() ? "" : "; ") + option.bounds;
  if (!option.fallback.empty()) values += (values.empty() ? "default " : "; default ") + option.fallback;
  return values.empty() ? text : text + "(" + roff(values) + ")\n";
}

std::string section(const CommandText& command) {
  std::string text = ".SS trainer " + roff(command.name) + "\n" + roff(command.words) + "\n";
  for (const OptionText& option : command.options) text += entry(option);
  if (command.examples.empty()) return text;
  text += ".PP\nExamples:\n.PP\n.nf\n.RS\n";
  for (const std::string& example : command.examples) text += roff(example) + "\n";
  return text + ".RE\n.fi\n";
}

}  // namespace

std::string manual_page(const std::vector<CommandText>& commands) {
  std::string text = heading("TRAINER", "1");
  text +=
      ".SH NAME\ntrainer \\- fine\\-tune language models in FP8, on any number of MPI ranks\n"
      ".SH SYNOPSIS\n.B trainer\n\\fICONFIG\\fR [\\fIKEY\\fR=\\fIVALUE\\fR...]\n.br\n.B "
      "trainer\n\\fICOMMAND\\fR "
      "[\\fIOPTIONS\\fR] [\\fIKEY\\fR=\\fIVALUE\\fR...]\n.br\n.B mpirun \\-np\n\\fIN\\fR \\fBtrainer\\fR "
      "\\fICONFIG\\fR\n"
      ".SH DESCRIPTION\nTrains a model as a configuration in YAML or JSON says, alone or as one of the ranks "
      "that "
      "mpirun started.\n.BR octet\\-mpirun (1)\nis mpirun with the options of a run. Keys of the "
      "configuration "
      "are in\n.BR trainer\\-config (5).\n.SH COMMANDS\n";
  for (const CommandText& command : commands) text += section(command);
  text += ".SH ENVIRONMENT\n.nf\n";
  for (const std::string& line : split(environment_help(), '\n')) text += roff(line) + "\n";
  text +=
      ".fi\n"
      ".SH EXIT STATUS\n"
      ".TP\n"
      "0\n"
      "the work is done\n"
      ".TP\n"
      "1\n"
      "something else: read the message\n"
      ".TP\n"
      "64\n"
      "the configuration, the command line, the model or the data cannot be used\n"
      ".TP\n"
      "73\n"
      "another run uses the output folder\n"
      ".TP\n"
      "74\n"
      "a disk is full, over its quota, read\\-only, or fails\n"
      ".TP\n"
      "75\n"
      "a rank, a host, a disk or a GPU did not answer\n"
      ".TP\n"
      "76\n"
      "stopped as asked, with a checkpoint\n"
      ".TP\n"
      "77\n"
      "a checkpoint that was asked for is not there, or is damaged\n"
      ".TP\n"
      "78\n"
      "what was trained since the newest checkpoint could not be saved\n"
      ".TP\n"
      "128 + N\n"
      "signal N ended a rank\n"
      ".SH SEE ALSO\n"
      ".BR trainer\\-config (5),\n"
      ".BR octet\\-mpirun (1)\n";
  return text;
}

std::string manual_page_of_keys() {
  std::string text = heading("TRAINER\\-CONFIG", "5");
  text +=
      ".SH NAME\ntrainer\\-config \\- keys of a training configuration\n.SH DESCRIPTION\nA configuration is "
      "a "
      "YAML or JSON file of these keys; on the command line they are written KEY=VALUE. Values are taken "
      "from, "
      "strongest first: command line, YAML, DeepSpeed's JSON, environment (OCTET_KEY), default. Unknown keys "
      "are "
      "errors. Files of LLaMA\\-Factory, SFT\\-Play, verl and DeepSpeed are read as they are.\n";
  std::string group;
  for (const config::Field& field : config::schema()) {
    if (field.status != config::Status::used) continue;
    if (field.group != group) text += ".SH " + roff(group = field.group) + "\n";
    text += ".TP\n.B " + roff(field.name) + "\n" + roff(config::meaning_text(field)) + "\n(" +
            roff(config::expected_text(field) + "; default " + config::default_text(field)) + ")\n";
  }
  return text + ".SH SEE ALSO\n.BR trainer (1)\n";
}

}  // namespace octet::cli
