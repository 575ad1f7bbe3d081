// Handling of every field of rows and messages of other programs: the field is read, or its row is refused by
// name, or it is counted. No field changes the training silently.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "octet/base/json.h"
#include "octet/data/dataset.h"

namespace octet::data::fields_test {
namespace {

// Returns a sample in one line: "s system, t tools, q question, a answer". (a) is an answer that is context
// only, and {} a thought.
std::string shown(const std::string& text) {
  const Json row = parse_json_digits(text, "row");
  std::string why;
  RowNotes notes;
  const auto sample = convert_row(row, detect_format(row, "row"), &why, &notes);
  if (!sample) return "left out: " + why;
  std::string out;
  const auto add = [&out](const std::string& part) { out += (out.empty() ? "" : ", ") + part; };
  if (sample->plain) add("x " + sample->text);
  if (!sample->system.empty()) add("s " + sample->system);
  if (!sample->tools.empty()) add("t " + sample->tools);
  if (sample->enable_thinking) add(*sample->enable_thinking ? "thinks" : "no thoughts");
  for (const Turn& turn : sample->turns) {
    const std::string mark = turn.role == "user"          ? "q "
                             : turn.role == "observation" ? "o "
                             : turn.role == "function"    ? "c "
                                                          : "a ";
    const std::string thought = turn.thought.empty() ? "" : "{" + turn.thought + "}";
    const std::string words = mark + thought + turn.text + turn.content;
    add(turn.trained ? words : "(" + words + ")");
  }
  for (const auto& [note, count] : notes) add("noted: " + note);
  return out;
}

struct Case {
  std::string row, becomes;
};

void expect_all(const std::vector<Case>& cases) {
  for (const Case& c : cases) EXPECT_EQ(shown(c.row), c.becomes) << c.row;
}

// Checks only the beginning of each result, which has the field's name.
void expect_begins(const std::vector<Case>& cases) {
  for (const Case& c : cases) EXPECT_EQ(shown(c.row).substr(0, c.becomes.size()), c.becomes) << c.row;
}

// Returns one question and one answer, with additional fields in the answer and in the row.
std::string chat(const std::string& answer, const std::string& row = "") {
  return R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a")" +
         (answer.empty() ? "" : "," + answer) + "}]" + (row.empty() ? "" : "," + row) + "}";
}

std::string pair(const std::string& row) {
  return R"({"prompt":"q","completion":"a",)" + row + "}";
}

TEST(Fields, AnAnswerThatIsMaskedIsShownAndNotTrained) {
  for (const char* field : {"weight", "loss_weight", "loss_scale", "loss", "loss_mask", "train", "training",
                            "trainable", "trained", "train_on_turn"}) {
    const std::string name = "\"" + std::string(field) + "\":";
    for (const char* no : {"0", "0.0", "false", "\"0\"", "\"False\""})
      EXPECT_EQ(shown(chat(name + no)), "q q, (a a)") << field << no;
    for (const char* yes : {"1", "1.0", "true", "\"true\"", "null"})
      EXPECT_EQ(shown(chat(name + yes)), "q q, a a") << field << yes;
    for (const char* other : {"0.5", "2", "-1", "\"some\"", "[1]", "{}"}) {
      EXPECT_EQ(shown(chat(name + other)).find("left out: '" + std::string(field) + "' is "), 0u)
          << field << other;
    }
    const std::string question = R"({"messages":[{"role":"user","content":"q",)" + name +
                                 R"(true},{"role":"assistant","content":"a"}]})";
    EXPECT_EQ(shown(question).find("left out: '" + std::string(field) + "'"), 0u) << "of a question";
  }
  expect_all({{chat("\"masked\":true"), "q q, (a a)"},
              {chat("\"ignore\":1"), "q q, (a a)"},
              {chat("\"masked\":false"), "q q, a a"}});
}

TEST(Fields, ThoughtsAreRead) {
  for (const char* field : {"reasoning_content", "reasoning", "thinking", "thought"}) {
    const std::string name = "\"" + std::string(field) + "\":";
    expect_all({{chat(name + "\"why\""), "q q, a {why}a"},
                {chat(name + "7"), "q q, a {7}a"},
                {chat(name + "\"\""), "q q, a a"},
                {chat(name + "null"), "q q, a a"}});
    EXPECT_EQ(shown(chat(name + "true")), "left out: '" + std::string(field) + "' is true, not a text");
  }
  expect_begins(
      {{chat(R"("reasoning":"b","reasoning_content":"c")"), "left out: 'reasoning_content' and 'reas"},
       {chat(R"("reasoning":"c","reasoning_content":"c")"), "q q, a {c}a"},
       {R"({"messages":[{"role":"user","content":"q","thinking":"w"},{"role":"assistant","content":"a"}]})",
        "q q, a a, noted: a message field 'thinking'"},
       {R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"<think>b</think>a","thinking":"w"}]})",
        "left out: a message has thoughts in 'thinking'"},
       {pair(R"("reasoning_content":"w")"), "q q, a {w}a"},
       {chat("", R"("reasoning_content":"w")"), "q q, a {w}a"},
       {pair(R"("reasoning":"w")"), "q q, a a, noted: a column 'reasoning'"}});
}

TEST(Fields, FieldsThatReplaceOrCutAnAnswerRefuseItsRow) {
  for (const char* field : {"mask", "train_detail", "training_detail", "refusal", "prefix", "partial",
                            "canonical_form", "channel", "recipient", "function_calls", "functions", "tools",
                            "parts", "audio", "image", "images", "video"}) {
    const std::string name = "\"" + std::string(field) + "\":";
    EXPECT_EQ(shown(chat(name + "\"x\"")).find("left out: '" + std::string(field) + "' is "), 0u) << field;
    for (const char* nothing : {"null", "\"\"", "[]", "{}", "false", "0"})
      EXPECT_EQ(shown(chat(name + nothing)), "q q, a a") << field << nothing;
  }
  expect_all({{chat(R"("channel":"final")"), "q q, a a"},
              {chat(R"("id":"1","tool_call_id":"2","timestamp":3)"), "q q, a a"},
              {chat(R"("name":"n")"), "q q, a a, noted: a message field 'name'"},
              {chat(R"("what_is_this":"n")"), "q q, a a, noted: a message field 'what_is_this'"}});
  EXPECT_EQ(shown(chat(R"("end_turn":false)")).find("left out: 'end_turn'"), 0u);
}

TEST(Fields, ColumnsThatMaskOrReplaceRefuseTheirRow) {
  for (const char* field : {"labels", "input_ids", "attention_mask", "completion_mask", "assistant_masks",
                            "loss_mask", "prompt_mask", "response_mask", "token_weights"}) {
    const std::string name = "\"" + std::string(field) + "\":";
    for (const std::string& row : {chat("", name + "[0,1]"), pair(name + "[0,1]"), pair(name + "[true]")})
      EXPECT_EQ(shown(row).find("left out: '" + std::string(field) + "' is "), 0u) << row;
    for (const char* other : {"null", "[]", "\"word\"", "3"})
      EXPECT_EQ(shown(pair(name + other)), "q q, a a") << field << other;
  }
  expect_begins(
      {{pair(R"("weight":0)"), "left out: 'weight'"},
       {pair(R"("weight":1)"), "q q, a a"},
       {pair(R"("sample_weight":0.5)"), "q q, a a, noted: a column 'sample_weight' with values other than 1"},
       {pair(R"("label":false)"), "left out: 'label'"},
       {pair(R"("label":true)"), "q q, a a"},
       {pair(R"("label":"news")"), "q q, a a"},
       {pair(R"("kto_tag":false)"), "left out: 'kto_tag'"},
       {chat("", R"("mask":"User")"), "q q, a a"},
       {chat("", R"("mask":"Assistant")"), "left out: 'mask'"},
       {chat("", R"("type":"VALUE_TO_TEXT")"), "left out: 'type'"},
       {chat("", R"("type":"chat")"), "q q, a a"},
       {chat("", R"("rejected_response":"b")"), "q q, a a, noted: a column 'rejected_response'"},
       {pair(R"("documents":["d"])"), "q q, a a, noted: a column 'documents'"}});
}

// A CSV file holds flags, numbers and lists as texts.
TEST(Fields, ColumnsOfCsvFilesThatMaskRefuseTheirRow) {
  for (const char* mask : {R"("weight":"0")",        R"("weight":"0.0")",
                           R"("weight":false)",      R"("weight":"False")",
                           R"("loss_weight":" 0 ")", R"("label":"False")",
                           R"("kto_tag":"false")",   R"("labels":"[-100, 5]")",
                           R"("loss_mask":"0,0,1")", R"("input_ids":"[1 2]")",
                           R"("weights":[0,1])",     R"("train":false)",
                           R"("train":"False")",     R"("train":0)",
                           R"("trainable":"0")",     R"("train_on_turn":[0,1])",
                           R"("loss":[false])",      R"("loss":false)",
                           R"("masked":true)",       R"("ignore":"True")",
                           R"("ignore":1)"}) {
    const std::string name = std::string(mask).substr(1, std::string(mask).find('"', 1) - 1);
    for (const std::string& row :
         {pair(mask), chat("", mask), R"({"instruction":"q","output":"a",)" + (mask + std::string("}"))})
      EXPECT_EQ(shown(row).find("left out: '" + name + "' is "), 0u) << row;
  }
  for (const char* harmless :
       {R"("weight":"1")", R"("weight":"heavy")", R"("label":"True")", R"("label":"news")",
        R"("labels":"urgent, new")", R"("labels":"3, 5")", R"("weight":"1 000")", R"("weight":"0,5")",
        R"("train":true)", R"("masked":false)", R"("ignore":"")", R"("loss_mask":"")"})
    EXPECT_EQ(shown(pair(harmless)), "q q, a a") << harmless;
  expect_all({{pair(R"("weight":"0.5")"), "q q, a a, noted: a column 'weight' with values other than 1"},
              {pair(R"("label":0)"), "q q, a a, noted: a column 'label'"},
              {pair(R"("train":"ICE 5")"), "q q, a a, noted: a column 'train'"},
              {pair(R"("loss":0.7)"), "q q, a a, noted: a column 'loss'"},
              {pair(R"("masked":"yes")"), "q q, a a, noted: a column 'masked'"}});
}

TEST(Fields, PartsOfAnAnswerThatAreMaskedRefuseTheirRow) {
  const auto row = [](const std::string& field, const char* role = "assistant") {
    const std::string parts = R"([{"type":"text","text":"b",)" + field + R"(},{"type":"text","text":"c"}])";
    const bool asks = role == std::string("user");
    return R"({"messages":[{"role":"user","content":)" + (asks ? parts : "\"q\"") +
           R"(},{"role":"assistant","content":)" + (asks ? "\"a\"" : parts) + "}]}";
  };
  for (const char* field :
       {R"("train":false)", R"("weight":0)", R"("loss":false)", R"("masked":true)", R"("thought":true)",
        R"("thinking":"w")", R"("weight":0.5)", R"("refusal":"no")"}) {
    const std::string name = std::string(field).substr(1, std::string(field).find('"', 1) - 1);
    EXPECT_EQ(shown(row(field)).find("left out: '" + name + "' is "), 0u) << field;
    EXPECT_EQ(shown(row(field, "user")), "q bc, a a") << field;
  }
  for (const char* field : {R"("train":true)", R"("weight":1)", R"("thought":false)", R"("masked":null)",
                            R"("cache_control":{"type":"ephemeral"})", R"("annotations":[])"})
    EXPECT_EQ(shown(row(field)), "q q, a bc") << field;
}

// A field that the table does not list may mask with false or 0.
TEST(Fields, UnknownFieldsOfMessagesAreCountedWhateverTheirValue) {
  for (const char* value : {"false", "true", "0", "1", "\"x\"", "[1]"})
    EXPECT_EQ(shown(chat(R"("compute_loss":)" + std::string(value))),
              "q q, a a, noted: a message field 'compute_loss'");
  for (const char* value : {"null", "\"\"", "[]", "{}"})
    EXPECT_EQ(shown(chat(R"("compute_loss":)" + std::string(value))), "q q, a a");
}

TEST(Fields, HistoriesStandBesideEveryKindOfPair) {
  for (const char* names :
       {"prompt completion", "prompt response", "input target", "user assistant", "question answer"}) {
    const std::string both = names;
    const std::string question = both.substr(0, both.find(' ')), answer = both.substr(both.find(' ') + 1);
    const auto row = [&](const std::string& history) {
      return "{\"" + question + "\":\"q\",\"" + answer + "\":\"a\",\"history\":" + history + "}";
    };
    expect_all({{row(R"([["b","c"]])"), "q b, a c, q q, a a"},
                {row(R"("[[\"b\",\"c\"]]")"), "q b, a c, q q, a a"},
                {row("[]"), "q q, a a"},
                {row("null"), "q q, a a"},
                {row(R"("")"), "q q, a a"},
                {row(R"(["b","c"])"), "left out: 'history' is not a list of [question, answer] pairs"},
                {row(R"("of Rome")"), "q q, a a"}});
  }
  EXPECT_EQ(
      shown(R"({"prompt":[{"role":"user","content":"q"}],"completion":"a","history":[["b","c"]]})"),
      "left out: 'history' cannot be combined with messages in 'prompt' or 'completion': put the earlier "
      "turns into the messages");
}

TEST(Fields, SystemTextsAndToolsStandBesideEveryKindOfRow) {
  for (const std::string& row :
       {chat("", R"("system":"s","tools":[{"name":"f"}])"),
        std::string(R"({"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"}],)"
                    R"("system":"s","tools":[{"name":"f"}]})"),
        std::string(R"({"instruction":"q","output":"a","system":"s","tools":[{"name":"f"}]})"),
        pair(R"("system":"s","tools":[{"name":"f"}])"),
        pair(R"("system_prompt":"s","functions":[{"name":"f"}])"),
        chat("", R"("system_message":"s","tools":"[{\"name\":\"f\"}]")")})
    EXPECT_EQ(shown(row), R"(s s, t [{"name":"f"}], q q, a a)") << row;
  expect_all(
      {{chat("", R"("system":7)"), "s 7, q q, a a"},
       {chat("", R"("system":[{"type":"text","text":"s"},{"text":"t"}])"), "s st, q q, a a"},
       {chat("", R"("system":[])"), "q q, a a"},
       {chat("", R"("system":null,"tools":null)"), "q q, a a"},
       {chat("", R"("tools":3)"), "left out: 'tools' is a number, not a list of tools"},
       {chat("", R"("system":{"a":1})"), "left out: 'system' is an object, not a text"},
       {chat("", R"("system":"s","system_prompt":"p")"), "s s, q q, a a, noted: a column 'system_prompt'"},
       {R"({"text":"x","system":"s"})", "x x, noted: a column 'system'"},
       {R"({"system":"c","messages":[{"role":"system","content":"m"},{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})",
        "s m, q q, a a, noted: both a system message and a column with a system text"}});
}

TEST(Fields, ARowMaySayThatItThinks) {
  expect_all({{chat("", R"("enable_thinking":false)"), "no thoughts, q q, a a"},
              {chat("", R"("enable_thinking":true)"), "thinks, q q, a a"},
              {chat("", R"("enable_thinking":"True")"), "thinks, q q, a a"},
              {chat("", R"("enable_thinking":null,"chat_template_kwargs":{})"), "q q, a a"},
              {pair(R"("chat_template_kwargs":{"enable_thinking":false})"), "no thoughts, q q, a a"},
              {pair(R"("chat_template_kwargs":"{\"enable_thinking\":true}")"), "thinks, q q, a a"}});
  expect_begins(
      {{chat("", R"("enable_thinking":"maybe")"), "left out: 'enable_thinking' is \"maybe\""},
       {pair(R"("chat_template_kwargs":{"reasoning_effort":"low"})"), "left out: 'reasoning_effort'"},
       {pair(R"("chat_template_kwargs":3)"), "left out: 'chat_template_kwargs'"},
       {chat("", R"("enable_thinking":true,"chat_template_kwargs":{"enable_thinking":false})"),
        "left out: 'enable_thinking' and 'chat_template_kwargs' differ"}});
}

// A value of another type never becomes an empty text.
TEST(Fields, AbsentNullAndOtherTypesAreToldApart) {
  const auto row = [](const std::string& output, const std::string& input) {
    return R"({"instruction":"q","input":)" + input + R"(,"output":)" + output + "}";
  };
  expect_all(
      {{row("49", "7"), "q q\n7, a 49"},
       {row("1.5", "-7"), "q q\n-7, a 1.5"},
       {row("42012345678901234567890123", "null"), "q q, a 42012345678901234567890123"},
       {row("\"a\"", "\"\""), "q q, a a"},
       {row("\"a\"", "null"), "q q, a a"},
       {row("\"a\"", "true"), "left out: 'input' is true, not a text"},
       {row("\"a\"", "[\"i\"]"), "left out: 'input' is a list, not a text"},
       {row("\"a\"", "{}"), "left out: 'input' is an object, not a text"},
       {row("null", "\"\""), "left out: no answer: column 'output' is null"},
       {row("[\"a\"]", "\"\""), "left out: 'output' is a list, not a text"},
       {R"({"instruction":"q","input":"i"})", "left out: no answer: column 'output' is missing"},
       {R"({"instruction":null,"output":"a"})", "left out: no question: column 'instruction' is null"},
       {R"({"instruction":["q"],"output":"a"})", "left out: 'instruction' is a list, not a text"},
       {R"({"instruction":"q","output":"a","history":3})",
        "left out: 'history' is a number, not a list or an object"},
       {R"({"instruction":"q","output":"a","history":null})", "q q, a a"},
       {R"({"instruction":"q","output":"a","history":[["b",4]]})", "q b, a 4, q q, a a"},
       {R"({"instruction":"q","output":"a","history":[["b",null]]})",
        "left out: 'history' is not a list of [question, answer] pairs"},
       {R"({"prompt":null,"completion":"a"})", "left out: no question: column 'prompt' is null"},
       {R"({"prompt":{"q":1},"completion":"a"})", "left out: 'prompt' is an object, not a text"},
       {R"({"text":7})", "x 7"},
       {R"({"text":null})", "left out: no text: column 'text' is null"},
       {R"({"text":["x"]})", "left out: 'text' is a list, not a text"},
       {R"({"messages":null})", "left out: no list of messages: column 'messages' is null"},
       {R"({"messages":3})", "left out: no list of messages in column 'messages', which is a number"}});
  const auto message = [](const std::string& content) {
    return R"({"messages":[{"role":"user")" + content + R"(},{"role":"assistant","content":"a"}]})";
  };
  expect_all({{message(R"(,"content":3)"), "q 3, a a"},
              {message(R"(,"content":[{"type":"text","text":"b"},"c"])"), "q bc, a a"},
              {message(""), "left out: a message has no text in 'content', which is missing"},
              {message(R"(,"content":null)"), "left out: a message has no text in 'content', which is null"},
              {message(R"(,"content":true)"), "left out: 'content' is true, not a text"},
              {message(R"(,"content":[{"type":"image_url"}])"),
               "left out: 'content' holds a part that is not text: \"image_url\""}});
}

TEST(Fields, MessagesMayStandInPromptAndCompletion) {
  const std::string question = R"([{"role":"system","content":"s"},{"role":"user","content":"q"}])";
  const std::string two =
      R"([{"role":"user","content":"b"},{"role":"assistant","content":"c"},{"role":"user","content":"q"}])";
  const auto row = [](const std::string& prompt, const std::string& completion,
                      const std::string& more = "") {
    return R"({"prompt":)" + prompt + R"(,"completion":)" + completion + more + "}";
  };
  expect_all({{row(question, R"([{"role":"assistant","content":"a"}])"), "s s, q q, a a"},
              {row(question, R"("a")"), "s s, q q, a a"},
              {row(R"("q")", R"([{"role":"assistant","content":"a"}])"), "q q, a a"},
              {row(two, R"("a")"), "q b, (a c), q q, a a"},
              {row(two, R"([{"role":"assistant","content":"a","reasoning_content":"w"}])"),
               "q b, (a c), q q, a {w}a"},
              {row(R"([{"from":"human","value":"q"}])", R"("a")"), "q q, a a"},
              {row(two, R"("a")", R"(,"system":"s","tools":"t")"), "s s, t t, q b, (a c), q q, a a"},
              {row(two, "[]"), "left out: 'completion' is a list, but not one of messages"},
              {row("[\"q\"]", R"("a")"), "left out: 'prompt' is a list, but not one of messages"},
              {row(two, "3"), "q b, (a c), q q, a 3"},
              {R"({"prompt":[{"role":"user","content":"q"}],"response":"a"})", "q q, a a"}});
}

TEST(Fields, RolesOfAllKnownFormatsAreRead) {
  const auto row = [](const std::string& column, const std::string& role, const std::string& text,
                      const std::string& asks, const std::string& answers) {
    return "{\"" + column + "\":[{\"" + role + "\":\"" + asks + "\",\"" + text + "\":\"q\"},{\"" + role +
           "\":\"" + answers + "\",\"" + text + "\":\"a\"}]}";
  };
  for (const auto& [asks, answers] :
       std::vector<std::pair<std::string, std::string>>{{"human", "gpt"},
                                                        {"user", "assistant"},
                                                        {"User", "Assistant"},
                                                        {"USER", "CHATBOT"},
                                                        {"prompter", "assistant"},
                                                        {"user", "model"}}) {
    EXPECT_EQ(shown(row("conversations", "from", "value", asks, answers)), "q q, a a") << asks;
    EXPECT_EQ(shown(row("conversations", "role", "content", asks, answers)), "q q, a a") << asks;
    EXPECT_EQ(shown(row("messages", "role", "content", asks, answers)), "q q, a a") << asks;
    EXPECT_EQ(shown(row("messages", "from", "value", asks, answers)), "q q, a a") << asks;
  }
  expect_begins(
      {{row("messages", "role", "content", "user", "judge"),
        "left out: unknown role 'judge'; name the roles by \"tags\" in dataset_info.json"},
       {R"({"messages":[{"role":"developer","content":"s"},{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})",
        "s s, q q, a a"},
       {R"({"messages":[{"role":"user","content":"q"},{"from":"gpt","value":"a"}]})",
        "left out: a message has no 'role', but 'from', unlike the first row"}});
}

TEST(Fields, CallsOfEveryKindAreRead) {
  const auto row = [](const std::string& calls, const std::string& content,
                      const std::string& role = "tool") {
    return R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":)" + content + "," +
           calls + R"(},{"role":")" + role +
           R"(","name":"f","content":"o"},{"role":"assistant","content":"a"}]})";
  };
  const std::string call = R"({"name":"f","arguments":"{\"x\": 1}"})";
  const std::string read = R"(q q, c [{"name":"f","arguments":{"x":1}}], o o, a a)";
  for (const char* content : {"null", "\"\""}) {
    expect_all({{row("\"function_call\":" + call, content, "function"), read},
                {row("\"tool_calls\":[{\"function\":" + call + "}]", content), read},
                {row("\"tool_calls\":[" + call + "],\"function_call\":null", content), read},
                {row(R"("tool_calls":"[{\"name\":\"f\",\"arguments\":{\"x\":1}}]")", content), read}});
  }
  expect_all(
      {{row("\"tool_calls\":[" + call + "]", "\"I look\""),
        R"(q q, c I look[{"name":"f","arguments":{"x":1}}], o o, a a)"},
       {row("\"tool_calls\":[" + call + "],\"weight\":0", "\"\""),
        R"(q q, (c [{"name":"f","arguments":{"x":1}}]), o o, a a)"},
       {row("\"tool_calls\":3", "\"\""), "left out: 'tool_calls' is a number, not a list or an object"},
       {row("\"tool_calls\":\"f(1)\"", "\"\""),
        "left out: 'tool_calls' is a text that is no JSON list or object"},
       {row("\"function_call\":\"auto\"", "\"\""),
        "left out: 'function_call' is a text that is no JSON list or object"},
       {row("\"function_call\":{\"name\":\"f\"}", "\"\""),
        "left out: a call in 'function_call' has no name or no arguments"},
       {row(R"("tool_calls":[{"name":3,"arguments":{}}])", "\"\""),
        "left out: the name of a call in 'tool_calls' is a number"},
       {row("\"tool_calls\":[" + call + "],\"function_call\":" + call, "\"\""),
        "left out: a message has both 'tool_calls' and 'function_call'"},
       {R"({"messages":[{"role":"user","content":"q","tool_calls":[)" + call +
            R"(]},{"role":"assistant","content":"a"}]})",
        "left out: a message of the role 'user' calls a tool"}});
}

// Python's integers have any length.
TEST(Fields, NumbersOfCallsAndToolsKeepTheirDigits) {
  for (const char* number : {"9007199254740993", "-9007199254740993", "18446744073709551615",
                             "18446744073709551616", "-42012345678901234567890123", "1.5", "7"}) {
    const std::string arguments = "{\"n\":" + std::string(number) + "}";
    const auto row = [](const std::string& given) {
      return R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"","tool_calls":)"
             R"([{"name":"f","arguments":)" +
             given + R"(}]},{"role":"tool","content":"o"},{"role":"assistant","content":"a"}]})";
    };
    const std::string text = "\"{\\\"n\\\":" + std::string(number) + "}\"";
    for (const std::string& given : {arguments, text}) {
      EXPECT_EQ(shown(row(given)), R"(q q, c [{"name":"f","arguments":)" + arguments + "}], o o, a a")
          << given;
    }
    EXPECT_EQ(shown(pair("\"tools\":[" + arguments + "]")), "t [" + arguments + "], q q, a a");
  }
}

}  // namespace
}  // namespace octet::data::fields_test
