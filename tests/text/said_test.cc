// Exact texts for tokenizers of a few pieces, component by component: the ids of a text, the text of ids (all
// at once and one by one), and the errors of unusable files.
#include <gtest/gtest.h>

#include "../src/text/templates/tool_format.h"
#include "folder.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/text/chat_template.h"
#include "octet/text/jinja.h"
#include "octet/text/tokenizer.h"
#include "support/page.h"

namespace octet::text::said_test {
namespace {

/// Returns a small file with some members, and members of its model, replaced. null removes a member of the
/// model.
std::string file_with(const Json& changes) {
  Json file = parse_json(R"({"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
      "post_processor": null, "decoder": {"type": "Fuse"}, "model": {"type": "BPE",
      "vocab": {"a": 0, "b": 1, "ab": 2, " ": 3, "abb": 4}, "merges": ["a b", ["ab", "b"]]}})",
                         "file");
  for (const auto& [key, value] : changes.items()) {
    if (key != "model" || !value.is_object()) {
      file[key] = value;
      continue;
    }
    for (const auto& [inner, other] : value.items()) file["model"][inner] = other;
  }
  return file.dump();
}

std::string encoded(const Tokenizer& tokenizer, const std::string& text) {
  try {
    const Encoding plain = tokenizer.encode(text, {.offsets = true});
    std::string line = Json(plain.ids).dump() + " at";
    for (const Span& span : plain.offsets)
      line += " " + std::to_string(span.begin) + "-" + std::to_string(span.end);
    const auto whole = tokenizer.encode(text, {.add_special = true}).ids;
    if (whole != plain.ids) line += ", whole " + Json(whole).dump();
    const auto split = tokenizer.encode(text, {.split_special = true}).ids;
    if (split != plain.ids) line += ", split " + Json(split).dump();
    return line;
  } catch (const Error& e) {
    return std::string("refused: ") + e.what();
  }
}

std::string decoded(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  const std::string all = tokenizer.decode(ids), without = tokenizer.decode(ids, true);
  StreamDecoder stream(tokenizer, false);
  Json pieces = Json::array();
  std::string joined;
  for (const TokenId id : ids) {
    pieces.push_back(stream.push(id));
    joined += pieces.back().get<std::string>();
  }
  pieces.push_back(stream.finish());
  joined += pieces.back().get<std::string>();
  EXPECT_EQ(joined, all) << "ids one after the other are the same text";
  std::string line = Json(all).dump();
  if (without != all) line += ", without specials " + Json(without).dump();
  return line + ", in pieces " + pieces.dump();
}

/// The first line of a question is the changes to the small file, or a whole file as a text. Texts and lists
/// of ids follow.
TEST(Said, OfTokenizers) {
  test::expect_page("text/said/tokenizers.txt", [](const std::string& question) {
    const TestFolder folder;
    std::vector<std::string> lines = split(question, '\n');
    try {
      const Json first = parse_json(lines.front(), "question");
      folder.write("tokenizer.json", first.is_string() ? first.get<std::string>() : file_with(first));
      const Tokenizer tokenizer = Tokenizer::from_folder(folder.path());
      std::string answer;
      for (std::size_t i = 1; i < lines.size(); ++i) {
        if (lines[i].empty()) continue;
        const Json asked = parse_json(lines[i], "question");
        answer += (asked.is_string() ? encoded(tokenizer, asked.get<std::string>())
                                     : decoded(tokenizer, asked.get<std::vector<TokenId>>())) +
                  "\n";
      }
      return answer.empty() ? std::string("it is read\n") : answer;
    } catch (const Error& e) {
      std::string text = e.what();
      for (std::size_t at; (at = text.find(folder.path() + "/")) != std::string::npos;)
        text.erase(at, folder.path().size() + 1);
      return text + "\n";
    }
  });
}

// Each line of a question is a template.
TEST(Said, OfJinja) {
  const Json variables = parse_json(R"({"s": "ab", "n": 3, "x": 2.5, "t": true, "l": [1, 2, 3],
      "d": {"a": 1, "b": [1, 2]}, "text": " \n Hi you\t", "people": [{"name": "Al", "age": 3, "tag": ""},
      {"name": "Bo", "age": 5, "tag": "x"}]})",
                                    "variables");
  test::expect_page("text/said/jinja.txt", [&](const std::string& question) {
    std::string answers;
    for (const std::string& line : split(question.substr(0, question.size() - 1), '\n')) {
      try {
        answers += Json(JinjaTemplate(line).render(variables)).dump() + "\n";
      } catch (const Error& e) {
        answers += std::string(e.what()) + "\n";
      }
    }
    return answers;
  });
}

// Each line of a question is an expression and texts. The answers are the matches and the parts between them,
// like Split in the tokenizers library.
TEST(Said, OfExpressions) {
  test::expect_page("text/said/regex.txt", [](const std::string& question) {
    std::string answers;
    for (const std::string& line : split(question.substr(0, question.size() - 1), '\n')) {
      const Json asked = parse_json(line, "question");
      const Json split_by = {
          {"type", "Split"}, {"pattern", {{"Regex", asked[0]}}}, {"behavior", "Isolated"}, {"invert", false}};
      const Json model = {{"type", "BPE"},
                          {"unk_token", "<unk>"},
                          {"fuse_unk", true},
                          {"vocab", {{"<unk>", 0}}},
                          {"merges", Json::array()}};
      try {
        const TestFolder folder;
        const Tokenizer tokenizer = Tokenizer::from_folder(
            folder.write("tokenizer.json", file_with({{"pre_tokenizer", split_by}, {"model", model}})));
        Json words = Json::array();
        for (std::size_t i = 1; i < asked.size(); ++i) {
          const auto text = asked[i].get<std::string>();
          Json of_text = Json::array();
          for (const Span& span : tokenizer.encode(text, {.offsets = true}).offsets)
            of_text.push_back(text.substr(span.begin, span.end - span.begin));
          words.push_back(of_text);
        }
        answers += words.dump() + "\n";
      } catch (const Error& e) {
        answers += "refused: " + e.problem().what + ": " + e.problem().found + "\n";
      }
    }
    return answers;
  });
}

// Returns the texts of a conversation's tools, calls and options, line by line.
std::string of_tools(const Json& asked) {
  if (asked.contains("json")) {
    const auto parsed = parse_python_json(asked["json"].get<std::string>());
    if (!parsed) return "no JSON";
    return dump_python_json(*parsed) + " and " + Json(dump_python_json(*parsed, 2)).dump();
  }
  if (asked.contains("template")) {
    TemplateOptions options;
    options.mask_history = asked.value("mask_history", false);
    options.train_on_prompt = asked.value("train_on_prompt", false);
    options.cutoff_len = asked.value("cutoff_len", 64);
    options.date = asked.value("date", "");
    if (asked.contains("tool_format")) options.tool_format = asked["tool_format"].get<std::string>();
    ChatTemplate::find(asked["template"].get<std::string>()).check(options);
    return "fine";
  }
  const ToolFormat* format = find_tool_format(asked["format"].get<std::string>());
  if (format == nullptr) return "there is none";
  try {
    return Json(asked.contains("calls")
                    ? format->write_calls(asked["calls"].get<std::string>())
                    : format->write_tools(asked["tools"].get<std::string>(), "09 Mar 2026"))
        .dump();
  } catch (const Refusal& refusal) {
    return "refused: " + refusal.reason;
  }
}

TEST(Said, OfTools) {
  test::expect_page("text/said/tools.txt", [](const std::string& question) {
    std::string answers;
    for (const std::string& line : split(question.substr(0, question.size() - 1), '\n')) {
      try {
        answers += of_tools(parse_json(line, "question")) + "\n";
      } catch (const Error& e) {
        answers += std::string(e.what()) + "\n";
      }
    }
    return answers;
  });
}

}  // namespace
}  // namespace octet::text::said_test
