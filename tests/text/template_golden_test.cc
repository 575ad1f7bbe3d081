// Every line of the reference's examples, prompts and labels, for each template.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "golden.h"
#include "octet/base/json.h"
#include "octet/text/chat_template.h"
#include "octet/text/jinja.h"
#include "octet/text/template_jinja.h"

namespace octet::text::template_golden_test {
namespace {

TemplateOptions options_of(const Json& c, const std::string& where) {
  TemplateOptions out;
  out.date = "2026-03-09";
  if (!c.contains("options")) return out;
  for (const auto& [key, value] : c["options"].items()) {
    if (key == "cutoff_len") {
      out.cutoff_len = value.get<std::int64_t>();
    } else if (key == "mask_history") {
      out.mask_history = value.get<bool>();
    } else if (key == "train_on_prompt") {
      out.train_on_prompt = value.get<bool>();
    } else if (key == "enable_thinking") {
      out.enable_thinking = value.is_null() ? std::nullopt : std::optional(value.get<bool>());
    } else if (key == "preserve_thinking") {
      out.preserve_thinking = value.get<bool>();
    } else if (key == "default_system") {
      out.default_system = value.get<std::string>();
    } else if (key == "tool_format") {
      out.tool_format = value.get<std::string>();
    } else {
      ADD_FAILURE() << where << ": option " << key;
    }
  }
  return out;
}

Conversation conversation_of(const Json& c, const std::string& where) {
  Conversation out;
  for (const auto& message : c["messages"]) {
    out.messages.push_back({message["role"].get<std::string>(), message["content"].get<std::string>()});
  }
  out.system = json_string(c, "system", "", where);
  out.tools = json_string(c, "tools", "", where);
  return out;
}

/// Returns the labels. If every label is its id, they are stored as lengths of alternately untrained and
/// trained runs.
std::vector<TokenId> labels_of(const Json& c, const std::vector<TokenId>& ids) {
  if (c.contains("labels")) return ids_of(c["labels"]);
  std::vector<TokenId> out;
  bool trained = false;
  for (const auto& run : c["label_runs"]) {
    for (int i = 0; i < run.get<int>(); ++i) out.push_back(trained ? ids.at(out.size()) : kIgnore);
    trained = !trained;
  }
  return out;
}

/// Rows of further families. They have fewer cases than the other rows.
constexpr const char* kFamilies[] = {
    "cohere",          "deepseekcoder", "ernie",    "ernie_nothink", "exaone",        "falcon",   "falcon_h1",
    "gemma4",          "glm4",          "glm4_5v",  "glm4_7",        "glm4_moe",      "glm4v",    "glmz1",
    "gpt_oss",         "granite3",      "granite4", "hunyuan",       "hunyuan_small", "hy3",      "llama4",
    "mistral_small",   "moonlight",     "olmo",     "phi4",          "phi4_mini",     "qwen2_vl", "qwen3_5",
    "qwen3_5_nothink", "seed_coder",    "seed_oss", "smollm",        "smollm2",       "starchat", "zephyr"};
constexpr int kManyCases = 80, kFewCases = 36;

std::string_view as_text(const char* name) {
  return name;
}

class TemplateGolden : public testing::TestWithParam<const char*> {
 protected:
  std::string folder_ = golden_path(std::string("templates/") + GetParam());
  Json about_ = read_json(folder_ + "/template.json");
  ChatTemplate template_ = ChatTemplate::find(about_["template"].get<std::string>());
  Tokenizer tokenizer_ = Tokenizer::from_folder(folder_ + "/" + about_["tokenizer"].get<std::string>());
  bool few_ = std::ranges::find(kFamilies, std::string_view(GetParam()), as_text) != std::end(kFamilies);
};

TEST_P(TemplateGolden, TheTokenizerIsPreparedTheSame) {
  const auto id = [&](const char* key) { return about_[key].is_null() ? -1 : about_[key].get<TokenId>(); };
  EXPECT_EQ(tokenizer_.bos_id(), id("bos_id"));
  EXPECT_EQ(tokenizer_.eos_id(), id("eos_id_before"));
  EXPECT_EQ(tokenizer_.pad_id(), id("pad_id_before"));
  const auto added = template_.prepare(tokenizer_);
  EXPECT_EQ(tokenizer_.eos_id(), id("eos_id"));
  EXPECT_EQ(tokenizer_.pad_id(), id("pad_id"));
  EXPECT_EQ(tokenizer_.vocab_size(), about_["vocabulary"].get<std::int64_t>());
  EXPECT_EQ(template_.stop_ids(tokenizer_), ids_of(about_["stop_ids"]));
  EXPECT_EQ(added.size(), about_["new_tokens"].size());
  for (const auto& [token, new_id] : about_["new_tokens"].items()) {
    EXPECT_EQ(tokenizer_.token_to_id(token), new_id.get<TokenId>());
  }
  EXPECT_EQ(template_.efficient_eos(), about_["efficient_eos"].get<bool>());
}

TEST_P(TemplateGolden, EveryExampleGivesTheSameIdsAndLabels) {
  template_.prepare(tokenizer_);
  const int n = each_case(folder_ + "/cases.jsonl", [&](const Json& c, const std::string& where) {
    if (c["why"] == "generation") return;
    const Example got = template_.encode_example(tokenizer_, conversation_of(c, where), options_of(c, where));
    const std::string about = where + " " + c["why"].get<std::string>() + " " + got.reason;
    if (json_bool(c, "dropped", false, where)) {
      EXPECT_EQ(got.outcome, Example::Outcome::dropped) << about;
    } else if (json_bool(c, "refused", false, where)) {
      EXPECT_EQ(got.outcome, Example::Outcome::refused) << about;
    } else {
      ASSERT_EQ(got.outcome, Example::Outcome::kept) << about;
      const auto ids = ids_of(c["input_ids"]);
      ASSERT_EQ(got.input_ids, ids) << about << "\n"
                                    << tokenizer_.decode(got.input_ids) << "\n"
                                    << tokenizer_.decode(ids);
      EXPECT_EQ(got.labels, labels_of(c, ids)) << about;
      return;
    }
    EXPECT_FALSE(got.reason.empty()) << about;
    EXPECT_TRUE(got.input_ids.empty()) << about;
  });
  EXPECT_GE(n, few_ ? kFewCases : kManyCases);
}

TEST_P(TemplateGolden, EveryPromptIsTheSame) {
  template_.prepare(tokenizer_);
  int n = 0;
  each_case(folder_ + "/cases.jsonl", [&](const Json& c, const std::string& where) {
    if (c["why"] != "generation") return;
    ++n;
    const Prompt got = template_.encode_prompt(tokenizer_, conversation_of(c, where), options_of(c, where));
    if (json_bool(c, "refused", false, where)) {
      EXPECT_EQ(got.outcome, Example::Outcome::refused) << where;
      return;
    }
    ASSERT_EQ(got.outcome, Example::Outcome::kept) << where << " " << got.reason;
    EXPECT_EQ(got.prompt_ids, ids_of(c["prompt_ids"])) << where;
    EXPECT_EQ(got.response_ids, ids_of(c["response_ids"])) << where;
  });
  EXPECT_GT(n, 0);
}

/// Returns a conversation in transformers' form. null if it has messages without such a form: calls with
/// text, the number of a turn.
Json messages_of(const Conversation& c) {
  Json out = Json::array();
  if (!c.system.empty()) out.push_back({{"role", "system"}, {"content", c.system}});
  for (const Message& m : c.messages) {
    if (m.content.find("{{idx}}") != std::string::npos) return nullptr;
    if (m.role != "function") {
      out.push_back({{"role", m.role == "observation" ? "tool" : m.role}, {"content", m.content}});
      continue;
    }
    Json calls = Json::parse(m.content, nullptr, false);
    if (calls.is_discarded()) return nullptr;
    if (!calls.is_array()) calls = Json::array({calls});
    Json list = Json::array();
    for (const Json& call : calls) list.push_back({{"type", "function"}, {"function", call}});
    out.push_back({{"role", "assistant"}, {"content", nullptr}, {"tool_calls", list}});
  }
  return out;
}

/// Renders the row's Jinja template with the date of the reference.
std::string rendered(const ChatTemplate& chat, const TemplateOptions& options, const Tokenizer& tokenizer,
                     const Conversation& c, const Json& messages, bool asks) {
  Json variables{{"messages", messages}, {"add_generation_prompt", asks}};
  if (options.enable_thinking) variables["enable_thinking"] = *options.enable_thinking;
  if (!c.tools.empty()) variables["tools"] = Json::parse(c.tools, nullptr, false);
  if (tokenizer.bos_id() >= 0) variables["bos_token"] = tokenizer.bos_token();
  if (tokenizer.eos_id() >= 0) variables["eos_token"] = tokenizer.eos_token();
  std::string text = JinjaTemplate(jinja_of(chat, options, &tokenizer)).render(variables);
  const std::string now = today({}), then = today(options);
  if (const std::size_t at = text.find(now); !c.tools.empty() && at != std::string::npos) {
    text.replace(at, now.size(), then);
  }
  return text;
}

// Training tokenises the parts of a text, and the whole text may give other tokens, so texts are compared.
TEST_P(TemplateGolden, InJinjaItWritesTheSame) {
  template_.prepare(tokenizer_);
  const std::string kind = about_["tokenizer"].get<std::string>();
  // These tokenizers do not distinguish a blank of the text from an added one, or strip blanks at special
  // tokens.
  const bool blanks =
      !kind.ends_with("/gemma") && !kind.ends_with("/llama2") && !kind.ends_with("/mistral") && kind != ".";
  const auto shown = [&](const std::vector<TokenId>& ids) {
    std::string text = tokenizer_.decode(ids);
    if (!blanks) std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
    return text;
  };
  int compared = 0, tools = 0;
  each_case(folder_ + "/cases.jsonl", [&](const Json& c, const std::string& where) {
    const std::string why = c["why"].get<std::string>();
    const bool asks = why == "generation";
    const TemplateOptions options = options_of(c, where);
    Conversation conversation = conversation_of(c, where);
    const bool even = conversation.messages.size() % 2 == 0;
    if (json_bool(c, "dropped", false, where) || json_bool(c, "refused", false, where) || !even ||
        why.starts_with("cutoff") || why == "roles exchanged" ||
        (conversation.tools == "[]" && conversation.system.empty()) || options.preserve_thinking ||
        (template_.thinks() && !asks) || options.mask_history) {
      return;
    }
    if (asks) conversation.messages.pop_back();
    const Json messages = messages_of(conversation);
    if (messages.is_null()) return;
    if (c.contains("options") && c["options"].contains("cutoff_len")) return;
    const std::string text = rendered(template_, options, tokenizer_, conversation, messages, asks);
    // Some tokenizers normalise their input.
    EXPECT_EQ(shown(tokenizer_.encode(text).ids), shown(ids_of(c[asks ? "prompt_ids" : "input_ids"])))
        << where << " " << why;
    ++compared;
    tools += conversation.tools.empty() ? 0 : 1;
  });
  EXPECT_GE(compared, template_.thinks() ? 5 : 25);
  if (!template_.thinks()) {
    EXPECT_GE(tools, 3);
  }
}

// The text after an earlier thought, and its position, are equal in both.
TEST_P(TemplateGolden, InJinjaEarlierThoughtsGoAsInTraining) {
  if (!template_.thinks()) return;
  template_.prepare(tokenizer_);
  for (const char* early :
       {"<think>\nwhy\n</think>\n\none", "<think>\nwhy\n</think>\n\n\n\none\n",
        "<think>\nwhy\n</think>\n\n  one", "so <think>\nwhy\n</think>\n\n\none", "<think>\n\n</think>\n\none",
        "one", "\n\none", "<think>\na\n</think>\n\none <think>\nb\n</think>\n\ntwo",
        "<think>\na <think>\nb\n</think>\n\none", "one <think>\nwithout an end",
        "one\n</think>\n\nwithout a beginning"}) {
    Conversation conversation;
    conversation.messages = {
        {"user", "first"}, {"assistant", early}, {"user", "second"}, {"assistant", "two"}};
    const Prompt prompt = template_.encode_prompt(tokenizer_, conversation, {});
    ASSERT_EQ(prompt.outcome, Example::Outcome::kept) << prompt.reason;
    conversation.messages.pop_back();
    const std::string text =
        rendered(template_, {}, tokenizer_, conversation, messages_of(conversation), true);
    EXPECT_EQ(tokenizer_.decode(tokenizer_.encode(text).ids), tokenizer_.decode(prompt.prompt_ids)) << early;
  }
}

// Other names of LLaMA-Factory for the text of a row. Most belong to models of images or sounds.
TEST(TemplateNames, OfVisionLanguageModelsAreTheirTextTemplates) {
  for (const auto& [name, row] : {std::pair{"qwen3_vl", "qwen3"},
                                  {"qwen3_vl_nothink", "qwen3_nothink"},
                                  {"ministral3", "ministral"},
                                  {"qwen3_6", "qwen3_5"},
                                  {"phi_small", "phi"},
                                  {"gemma3n", "gemma3"},
                                  {"gemma4n", "gemma4"},
                                  {"glm_ocr", "glm4"},
                                  {"keye_vl", "qwen3"},
                                  {"mllama", "llama3"},
                                  {"pixtral", "ministral"},
                                  {"qwen2_omni", "qwen2_vl"},
                                  {"qwen3_omni", "qwen3"},
                                  {"qwen3_omni_nothink", "qwen3_nothink"},
                                  {"video_llava", "vicuna"},
                                  {"yi", "smollm"}}) {
    EXPECT_EQ(ChatTemplate::find(name).name(), row);
    EXPECT_EQ(ChatTemplate::find(name).words_hash(), ChatTemplate::find(row).words_hash());
  }
}

// A conversation up to an answer, as `trainer encode` prints it: earlier answers lose their thoughts, and the
// answer itself keeps them.
TEST(EncodePrompt, KeepsTheThoughtsOfItsAnswerAlone) {
  const std::string folder = golden_path("templates/qwen3");
  Tokenizer tokenizer = Tokenizer::from_folder(
      folder + "/" + read_json(folder + "/template.json")["tokenizer"].get<std::string>());
  const ChatTemplate qwen3 = ChatTemplate::find("qwen3");
  qwen3.prepare(tokenizer);
  Conversation conversation;
  conversation.messages = {{"user", "first"},
                           {"assistant", "<think>\nearly\n</think>\n\none"},
                           {"user", "second"},
                           {"assistant", "<think>\nlate\n</think>\n\ntwo"}};
  const auto shown = [&](const TemplateOptions& options) {
    const Prompt prompt = qwen3.encode_prompt(tokenizer, conversation, options);
    return std::pair(tokenizer.decode(prompt.prompt_ids), tokenizer.decode(prompt.response_ids));
  };
  const auto [before, answer] = shown({});
  EXPECT_EQ(before.find("early"), std::string::npos) << before;
  EXPECT_NE(before.find("one"), std::string::npos) << before;
  EXPECT_NE(answer.find("<think>\nlate\n</think>\n\ntwo"), std::string::npos) << answer;
  TemplateOptions all;
  all.preserve_thinking = true;
  EXPECT_NE(shown(all).first.find("<think>\nearly\n</think>\n\none"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Rows, TemplateGolden,
                         testing::Values("llama3", "qwen", "chatml", "chatml_new_tokens", "qwen3",
                                         "qwen3_nothink", "gemma", "gemma2", "gemma3", "mistral", "ministral",
                                         "llama2", "alpaca", "vicuna", "deepseek", "deepseek3", "deepseekr1",
                                         "default", "empty", "phi"),
                         [](const auto& row) { return std::string(row.param); });
INSTANTIATE_TEST_SUITE_P(Families, TemplateGolden, testing::ValuesIn(kFamilies),
                         [](const auto& row) { return std::string(row.param); });

}  // namespace
}  // namespace octet::text::template_golden_test
