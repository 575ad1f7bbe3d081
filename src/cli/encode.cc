// `trainer encode`: reads JSON lines and writes one JSON line for each.
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <system_error>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/data/line_encoder.h"
#include "options.h"

namespace octet::cli {

int encode_command(const Arguments& arguments) {
  Options options(
      "encode",
      "Reads JSON lines and writes one for each: what training would see of it. {\"text\"} becomes ids, "
      "ids_plain, offsets, decoded, decoded_skip; {\"ids\"} becomes decoded, decoded_skip; {\"messages\", "
      "\"system\", \"tools\", \"options\"}, or any other row of a data set, becomes input_ids, labels, and "
      "with \"generate\": true prompt_ids, response_ids; or refused or dropped with the reason; not_read "
      "lists fields that are not read. template_date=YYYY-MM-DD replaces today's date in templates");
  options.example("trainer encode models/qwen3-8b --template qwen3 < rows.jsonl");
  std::string model, template_name, input, date;
  options.take_overrides();
  options.add_option("MODEL", model, "Hugging Face folder with tokenizer.json").required();
  options.add_option("--template", template_name,
                     "chat template for lines with messages, or its file (.jinja); default: a template equal "
                     "to that of the model");
  options.add_option("--input", input, "file to read instead of standard input");
  if (!options.parse(arguments)) return 0;
  for (const std::string& word : options.overrides()) {
    const std::size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    if (equals != std::string::npos && (key == "template_date" || key == "--template_date")) {
      date = word.substr(equals + 1);
    } else if (equals != std::string::npos && key == "template") {
      template_name = word.substr(equals + 1);
    } else {
      throw Error({.what = "argument '" + word + "' is not known",
                   .expected = "template=NAME or template_date=YYYY-MM-DD",
                   .where = "command line",
                   .fix = "remove it; 'trainer encode --help' lists the options",
                   .code = ExitCode::usage});
    }
  }
  data::LineEncoder encoder(model, template_name, date);
  std::ifstream file;
  if (!input.empty()) {
    file.open(input);
    // Opening a folder succeeds; reading it fails.
    std::error_code ignored;
    const bool folder = std::filesystem::is_directory(input, ignored);
    if (!file || folder)
      throw Error({.what = "cannot open a file",
                   .found = folder ? "a folder" : std::generic_category().message(errno),
                   .where = input,
                   .fix = "check the path of --input and its permissions",
                   .code = ExitCode::usage});
  }
  std::istream& in = input.empty() ? std::cin : file;
  std::ios::sync_with_stdio(false);
  std::string line;
  for (std::int64_t number = 1; std::getline(in, line); ++number) {
    const std::string where = (input.empty() ? "standard input" : input) + ":" + std::to_string(number);
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      std::puts("");
      continue;
    }
    const Json parsed = parse_json_digits(line, where);
    if (!parsed.is_object())
      throw Error({.what = "a line is not a JSON object",
                   .expected = "an object in braces",
                   .found = parsed.dump().substr(0, 80),
                   .where = where,
                   .fix = "write {\"text\": \"...\"}; 'trainer encode --help' lists what a line may hold",
                   .code = ExitCode::usage});
    std::printf("%s\n", encoder.encode(parsed, where).dump().c_str());
  }
  std::fflush(stdout);
  return 0;
}

}  // namespace octet::cli
