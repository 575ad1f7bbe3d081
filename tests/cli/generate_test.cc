// `trainer generate` with files: the output is a data set, equal at any number of ranks.
#include "cli/generate_task.h"
#include "octet/base/json.h"
#include "octet/text/rouge.h"

namespace octet::test::generate_test {
namespace {

namespace fs = std::filesystem;

TEST_F(GenerateFile, ADataSetComesOutInItsOrderAtAnyNumberOfRanks) {
  const std::string lively = "--temperature 1.5 --seed 3 --batch 3";
  const std::vector<Json> rows = answers("one.jsonl", lively);
  const std::vector<Json> asked = rows_of(Task::get().held_out());
  ASSERT_EQ(rows.size(), asked.size());
  std::set<std::string> different;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Json& messages = rows[i]["messages"];
    ASSERT_EQ(messages.back()["role"], "assistant");
    const Json& question = asked[i]["messages"][asked[i]["messages"].size() - 2];
    EXPECT_EQ(messages[messages.size() - 2]["content"], question["content"]);
    EXPECT_EQ(rows[i]["expected"], asked[i]["messages"].back()["content"]);
    EXPECT_EQ(rows[i]["exact_match"],
              trim(answer_of(rows[i])) == trim(rows[i]["expected"].get<std::string>()));
    EXPECT_TRUE(rows[i]["finish_reason"] == "stop" || rows[i]["finish_reason"] == "length");
    different.insert(answer_of(rows[i]));
  }
  EXPECT_GT(different.size(), 6u);
  for (const int np : {2, 3}) {
    const std::string name = "np" + std::to_string(np) + ".jsonl";
    answers(name, lively, np);
    EXPECT_EQ(slurp(folder_ / name), slurp(folder_ / "one.jsonl"));
  }
  answers("other_seed.jsonl", "--temperature 1.5 --seed 4");
  EXPECT_NE(slurp(folder_ / "other_seed.jsonl"), slurp(folder_ / "one.jsonl"));
  // Without an output file, answers are printed in the same order.
  const Outcome printed =
      trainer("generate " + trained_model() + " --template chatml --device cpu --max-new 8 --file " +
                  Task::get().held_out() + " " + lively,
              2);
  const std::vector<std::string> lines = split(printed.out, '\n');
  ASSERT_GE(lines.size(), rows.size()) << printed.both();
  for (std::size_t i = 0; i < rows.size(); ++i)
    EXPECT_EQ(parse_json(lines[i], "standard output")["answer"], answer_of(rows[i]));
  // The output can be used as a data set.
  const Outcome train = trainer(Task::get().train(
      folder_ / "student",
      "dataset=" + (folder_ / "one.jsonl") + " max_steps=1 global_batch_size=4 save_strategy=no"));
  EXPECT_EQ(train.code, 0) << train.both();
}

// The figure of each row, and their mean. The reference answers are the model's answers plus one word.
TEST_F(GenerateFile, RougeLIsTheMeanOfItsRows) {
  const std::string lively = "--temperature 1.5 --seed 3 --max-new 24 ";
  std::string asked;
  for (Json row : answers("said.jsonl", lively)) {
    Json messages = row["messages"];
    messages.back()["content"] = answer_of(row) + " more";
    asked += Json{{"messages", messages}}.dump() + "\n";
  }
  spill(folder_ / "asked.jsonl", asked);
  const std::string again = "generate " + trained_model() + " --template chatml --device cpu --file " +
                            (folder_ / "asked.jsonl") + " " + lively;
  expect_success(trainer(again + "--rouge-l --out " + (folder_ / "scored.jsonl")));
  double sum = 0;
  const std::vector<Json> rows = rows_of(folder_ / "scored.jsonl");
  for (const Json& row : rows) {
    const double wanted = text::rouge_l(answer_of(row), row["expected"].get<std::string>());
    EXPECT_DOUBLE_EQ(row["rouge_l"].get<double>(), wanted) << row;
    sum += wanted;
  }
  ASSERT_GT(rows.size(), 6u);
  const double mean = sum / static_cast<double>(rows.size());
  EXPECT_GT(mean, 0) << "a figure that shows something";
  EXPECT_LT(mean, 1);
  char figure[64];
  std::snprintf(figure, sizeof figure, "ROUGE-L: %.4g %%\n", 100 * mean);
  for (const int np : {1, 2}) {
    const Outcome printed = trainer(again + "--rouge-l", np);
    EXPECT_EQ(printed.out, figure) << printed.both();
  }
  EXPECT_FALSE(answers("plain.jsonl").front().contains("rouge_l"));
}

TEST_F(GenerateFile, RowsOfIdsNeedNoTokenizerAndTellProbabilities) {
  const Json reference = read_json(kGolden + "generate/qwen3.json");
  std::string asked;
  for (const Json& c : reference["greedy"]) asked += Json{{"prompt_ids", c["prompt_ids"]}}.dump() + "\n";
  spill(folder_ / "ids.jsonl", asked);
  for (const int np : {0, 2}) {
    const std::string out = folder_ / ("ids" + std::to_string(np));
    const Outcome run =
        trainer("generate " + kGolden + "models/qwen3 --device cpu --no-model-defaults --file " +
                    (folder_ / "ids.jsonl") + " --out " + out + " --max-new 40 --logprobs 4",
                np);
    ASSERT_EQ(run.code, 0) << run.both();
    const std::vector<Json> rows = rows_of(out);
    ASSERT_EQ(rows.size(), reference["greedy"].size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Json& c = reference["greedy"][i];
      EXPECT_EQ(rows[i]["prompt_ids"], c["prompt_ids"]);
      ASSERT_EQ(rows[i]["output_ids"], c["output_ids"]);
      EXPECT_EQ(rows[i]["finish_reason"], c["finish_reason"]);
      for (std::size_t t = 0; t < c["output_ids"].size(); ++t) {
        EXPECT_NEAR(rows[i]["logprobs"][t].get<double>(), c["logprobs"][t].get<double>(), 1e-4);
        ASSERT_EQ(rows[i]["top_logprobs"][t].size(), 4u);
        EXPECT_NEAR(rows[i]["top_logprobs"][t][3][1].get<double>(), c["top_logprobs"][t][3][1].get<double>(),
                    1e-4);
      }
    }
  }
}

TEST_F(GenerateFile, TextsAreScoredAsTransformersScoresThem) {
  const Json reference = read_json(kGolden + "generate/qwen3.json");
  std::string texts;
  for (const Json& c : reference["scores"]) texts += Json{{"prompt_ids", c["ids"]}}.dump() + "\n";
  spill(folder_ / "texts.jsonl", texts);
  const Outcome run =
      trainer("generate " + kGolden + "models/qwen3 --device cpu --score --logprobs 8 --file " +
                  (folder_ / "texts.jsonl") + " --out " + (folder_ / "scores"),
              2);
  ASSERT_EQ(run.code, 0) << run.both();
  const std::vector<Json> rows = rows_of(folder_ / "scores");
  ASSERT_EQ(rows.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    const Json& c = reference["scores"][i];
    EXPECT_EQ(rows[i]["ids"], c["ids"]);
    ASSERT_EQ(rows[i]["logprobs"].size(), c["logprobs"].size());
    for (std::size_t t = 0; t < c["logprobs"].size(); ++t) {
      EXPECT_NEAR(rows[i]["logprobs"][t].get<double>(), c["logprobs"][t].get<double>(), 1e-4);
      EXPECT_NEAR(rows[i]["top_logprobs"][t][7][1].get<double>(), c["top_logprobs"][t][7].get<double>(),
                  1e-4);
    }
  }
  // A conversation is scored as a whole, as in training.
  const Outcome whole =
      trainer("generate " + trained_model() + " --template chatml --device cpu --score --file " +
              Task::get().held_out() + " --out " + (folder_ / "conversations"));
  ASSERT_EQ(whole.code, 0) << whole.both();
  const std::vector<Json> conversations = rows_of(folder_ / "conversations");
  ASSERT_EQ(conversations.size(), 12u);
  EXPECT_EQ(conversations[0]["logprobs"].size() + 1, conversations[0]["ids"].size());
  EXPECT_FALSE(conversations[0].contains("top_logprobs"));
}

TEST_F(GenerateFile, SeveralAnswersToAQuestionAreDrawnApart) {
  const std::vector<Json> rows = answers("n.jsonl", "--temperature 2 --n 3 --batch 4", 2);
  ASSERT_EQ(rows.size(), 36u);
  int alike = 0;
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(rows[3 * i]["messages"][0], rows[3 * i + 2]["messages"][0]);
    alike += answer_of(rows[3 * i]) == answer_of(rows[3 * i + 1]) ? 1 : 0;
  }
  EXPECT_LT(alike, 6);
  const std::vector<Json> one = answers("one.jsonl", "--temperature 2");
  EXPECT_EQ(answer_of(one[5]), answer_of(rows[15])) << "the first of three is the only one of one";
}

TEST_F(GenerateFile, AStopTextEndsAnAnswerAndIsNoPartOfIt) {
  const std::vector<Json> plain = answers("plain.jsonl");
  std::string stop;
  for (const Json& row : plain) {
    const std::string text = answer_of(row);
    if (text.size() >= 4) stop = text.substr(text.size() / 2, 2);
  }
  ASSERT_FALSE(stop.empty());
  ASSERT_EQ(stop.find('\''), std::string::npos);
  const std::vector<Json> stopped = answers("stopped.jsonl", "--stop \"" + stop + "\"");
  int cut = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const std::string whole = answer_of(plain[i]);
    const std::size_t at = whole.find(stop);
    EXPECT_EQ(answer_of(stopped[i]), whole.substr(0, at));
    if (at == std::string::npos) continue;
    EXPECT_EQ(stopped[i]["finish_reason"], "stop");
    ++cut;
  }
  EXPECT_GT(cut, 0);
}

TEST_F(GenerateFile, AnswersAreExtractedAndTriedAgain) {
  spill(folder_ / "prompt.txt", "Say it: {text}\nFinal Answer:");
  const std::string extract = "--temperature 1.5 --prompt-file " + (folder_ / "prompt.txt") +
                              " --extract \"([a-z]+)\" --max-broken-rows 12 ";
  const Outcome run = trainer(command("labels.jsonl", extract + "--retries 2"), 2);
  ASSERT_EQ(run.code, 0) << run.both();
  const std::vector<Json> rows = rows_of(folder_ / "labels.jsonl");
  ASSERT_FALSE(rows.empty());
  for (const Json& row : rows) {
    const std::string label = answer_of(row);
    EXPECT_TRUE(!label.empty() && std::ranges::all_of(label, [](char c) { return c >= 'a' && c <= 'z'; }))
        << label;
    EXPECT_EQ(row["messages"][0]["content"].get<std::string>().find("Final Answer"), std::string::npos)
        << "the row's own words, not the prompt's";
  }
  // Only allowed values count.
  const std::string label = answer_of(rows.front());
  const Outcome allowed =
      trainer(command("allowed.jsonl", extract + "--retries 2 --allow " + label + ",nothing"));
  ASSERT_EQ(allowed.code, 0) << allowed.both();
  const std::vector<Json> kept = rows_of(folder_ / "allowed.jsonl");
  EXPECT_GE(kept.size(), 1u);
  EXPECT_LT(kept.size(), 12u);
  for (const Json& row : kept) EXPECT_EQ(answer_of(row), label);
  EXPECT_NE(allowed.err.find("nothing was extracted"), std::string::npos) << allowed.both();
  const std::string sizes = std::to_string(kept.size()) + " rows answered in 0:00:00, " +
                            std::to_string(12 - kept.size()) + " left out";
  EXPECT_NE(allowed.err.find(sizes), std::string::npos) << allowed.both();
}

TEST_F(WholeGenerateFile, EveryRetryIsHotter) {
  spill(folder_ / "one.jsonl", rows_of(Task::get().held_out()).front().dump() + "\n");
  const std::string ask = "generate " + trained_model() +
                          " --template chatml --device cpu --max-new 4 --max-broken-rows 1 " +
                          "--extract \"^([a-z]+)\" --file " + (folder_ / "one.jsonl") + " --out ";
  const auto first_words = [&](const std::string& out, const std::string& more) {
    const Outcome run = trainer(ask + (folder_ / out) + " " + more);
    EXPECT_EQ(run.code, 0) << run.both();
    std::set<std::string> words;
    for (const Json& row : rows_of(folder_ / out)) words.insert(answer_of(row));
    return words;
  };
  std::set<std::string> rare = first_words("rare.jsonl", "--temperature 3 --n 6 --retries 20");
  for (const std::string& usual : first_words("usual.jsonl", "--temperature 0.05 --n 6")) rare.erase(usual);
  ASSERT_FALSE(rare.empty());
  std::string allow;
  for (const std::string& word : rare) allow += (allow.empty() ? "" : ",") + word;
  EXPECT_TRUE(first_words("cold.jsonl", "--temperature 0.05 --retries 3 --allow " + allow).empty());
  EXPECT_EQ(first_words("hotter.jsonl", "--temperature 0.05 --retries 900 --allow " + allow).size(), 1u);
}

TEST_F(GenerateFile, TheModelsOwnSettingsAreTakenAndSaid) {
  fs::copy(trained_model(), folder_ / "model", fs::copy_options::recursive);
  const Json own = read_json(folder_ / "model/generation_config.json");
  Json config = own;
  config["do_sample"] = true;
  config["temperature"] = 1.5;
  config["top_p"] = 0.999;
  config["min_p"] = 0.001;
  config["top_k"] = 40;
  spill(folder_ / "model/generation_config.json", config.dump());
  const auto run = [&](const std::string& folder, const std::string& more) {
    const Outcome done =
        trainer("generate " + folder + " --template chatml --device cpu --max-new 8 --file " +
                Task::get().held_out() + " " + more);
    EXPECT_EQ(done.code, 0) << done.both();
    return done;
  };
  const Outcome taken = run(folder_ / "model", "");
  EXPECT_NE(
      taken.err.find("from generation_config.json: temperature 1.5, top_p 0.999, min_p 0.001, top_k 40"),
      std::string::npos)
      << taken.err;
  EXPECT_EQ(taken.out, run(trained_model(), "--temperature 1.5 --top-p 0.999 --min-p 0.001 --top-k 40").out);
  const std::string greedy = run(trained_model(), "").out;
  EXPECT_NE(taken.out, greedy);
  // Retries use the effective temperature.
  run(folder_ / "model", "--extract \"(.)\" --retries 1 --max-broken-rows 12");
  const Outcome without = run(folder_ / "model", "--no-model-defaults");
  EXPECT_EQ(without.out, greedy);
  EXPECT_EQ(without.err.find("generation_config"), std::string::npos);
  const std::string settings = slurp(folder_ / "model/generation_config.json");
  spill(folder_ / "model/generation_config.json", "{ broken");
  EXPECT_EQ(run(folder_ / "model", "--no-model-defaults").out, greedy) << "nor read";
  spill(folder_ / "model/generation_config.json", settings);
  EXPECT_EQ(run(folder_ / "model", "--temperature 0").out, greedy) << "the command line is stronger";
  // Without do_sample, the temperature has no effect.
  config["do_sample"] = false;
  spill(folder_ / "model/generation_config.json", config.dump());
  EXPECT_EQ(run(folder_ / "model", "").out, greedy);
  // The model's own end token.
  const std::vector<Json> ids = answers("ids.jsonl", "--logprobs 0");
  config["eos_token_id"] = Json::array({ids[0]["output_ids"][0]});
  spill(folder_ / "model/generation_config.json", config.dump());
  const Outcome ended = run(folder_ / "model", "");
  EXPECT_NE(ended.out, greedy);
  EXPECT_EQ(parse_json(split(ended.out, '\n')[0], "row")["answer"], "");
}

TEST_F(GenerateFile, TellsWhatItDid) {
  spill(folder_ / "prompt.txt",
        "These are many words that stand before every question, again and again: {text}");
  const Outcome run = trainer(
      command("told.jsonl", "--gpu-hour-price 3600 --ignore-eos --prompt-file " + (folder_ / "prompt.txt")));
  ASSERT_EQ(run.code, 0) << run.both();
  EXPECT_NE(run.err.find("12 rows answered in 0:0"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find(" tokens/s, "), std::string::npos) << run.err;
  EXPECT_NE(run.err.find(" rows per minute"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("  cost "), std::string::npos) << run.err;
  const std::size_t at = run.err.find(" of them shared");
  ASSERT_NE(at, std::string::npos) << run.err;
  const std::size_t comma = run.err.rfind(", ", at);
  EXPECT_GT(std::stod(run.err.substr(comma + 2)), 30.0) << run.err;
}

// The requirements of launch/distill and its pages: a teacher's rows have the prompt, a student's rows do
// not, and no list of the final test was seen in training.
TEST_F(WholeGenerateFile, TheDistillationTaskKeepsItsPartsApart) {
  const std::string task = folder_ / "task";
  ASSERT_EQ(trainer("quickstart " + task + " --distillation --rows 300 --held-out 20").code, 0);
  const std::string prompt = slurp(task + "/data/prompt.txt");
  const std::size_t place = prompt.find("{text}");
  ASSERT_NE(place, std::string::npos);
  const auto sorted_words = [](const std::string& list) {
    std::vector<std::string> words;
    for (const auto& word : split(list, ',')) words.emplace_back(trim(word));
    std::ranges::sort(words);
    return words;
  };
  std::set<std::vector<std::string>> asked, held_out;
  for (const Json& row : rows_of(task + "/data/lists.jsonl")) {
    ASSERT_EQ(row["messages"].size(), 1u);
    asked.insert(sorted_words(row["messages"][0]["content"]));
  }
  const auto bare = rows_of(task + "/data/held_out.jsonl"),
             told = rows_of(task + "/data/held_out_with_prompt.jsonl");
  ASSERT_EQ(bare.size(), 20u);
  ASSERT_EQ(told.size(), 20u);
  for (std::size_t i = 0; i < bare.size(); ++i) {
    const std::string list = bare[i]["messages"][0]["content"];
    std::string question = prompt;
    question.replace(place, 6, list);
    EXPECT_EQ(told[i]["messages"][0]["content"], question);
    EXPECT_EQ(told[i]["messages"][1], bare[i]["messages"][1]);
    std::vector<std::string> words = sorted_words(list);
    held_out.insert(words);
    std::ranges::reverse(words);
    EXPECT_EQ(split(answer_of(bare[i]), ',').front(), words.front()) << "from Z to A";
  }
  for (const auto& words : held_out) EXPECT_FALSE(asked.contains(words));
  std::set<std::string> rules;
  for (const Json& row : rows_of(task + "/data/teacher.jsonl")) {
    const std::string question = row["messages"][0]["content"];
    rules.insert(question.substr(0, question.find(':')));
  }
  EXPECT_EQ(rules.size(), 3u);
  const Outcome lint = trainer("lint " + task + "/teacher.yaml");
  EXPECT_EQ(errors_in(lint), 0) << lint.both();
  EXPECT_EQ(lint.code, 1) << "doubts alone: nothing is saved, and nothing kept";
}

TEST_F(WholeGenerateFile, TheGuidesCommandsRun) {
  spill(folder_ / "in.txt", "b, a\nd, c\nf, e\n");
  spill(folder_ / "prompt.txt", "Sort these words: {text}");
  const std::string out = folder_ / "answers.jsonl";
  const std::string variables = "TEACHER=" + trained_model() + " PROMPT=" + (folder_ / "prompt.txt") +
                                " OCTETRUN_BUILD=$(dirname " +
                                "$(dirname " OCTET_TRAINER ")) EXTRACT=\"([a-z]+)\" ";
  const Outcome made =
      shell(variables + "RANKS=5 " OCTET_SOURCE_DIR "/launch/create_data_h100x8 " + (folder_ / "in.txt") +
            " " + out + " 2 --template chatml --max-length 256 --max-new 12 --temperature 1.5 --device cpu");
  ASSERT_EQ(made.code, 0) << made.both();
  EXPECT_NE(made.both().find("split among 2 x 1 ranks"), std::string::npos) << made.both();
  EXPECT_NE(made.both().find("2 replicas answer"), std::string::npos) << made.both();
  const std::vector<Json> rows = rows_of(out);
  ASSERT_GE(rows.size(), 1u) << made.both();
  for (const Json& row : rows) EXPECT_LT(row["messages"][0]["content"].get<std::string>().size(), 6u);
  const Outcome trained =
      shell("MODEL=" + trained_model() + " DATA=" + out +
            " RANKS=1 OCTETRUN_BUILD=$(dirname $(dirname " OCTET_TRAINER ")) " OCTET_SOURCE_DIR
            "/launch/train_sft_h100x8 " +
            (folder_ / "student") +
            " template=chatml max_steps=2 global_batch_size=1 per_device_train_batch_size=1 cutoff_len=128 " +
            "save_strategy=no device=cpu");
  ASSERT_EQ(trained.code, 0) << trained.both();
  EXPECT_TRUE(fs::exists(folder_ / "student/model.safetensors"));
  EXPECT_EQ(shell(OCTET_SOURCE_DIR "/launch/create_data_h100x8 a b").code, 64) << "no teacher named";
  for (const std::string tp : {"0", "two", "1x"}) {
    EXPECT_EQ(shell("TEACHER=a PROMPT=b " OCTET_SOURCE_DIR "/launch/create_data_h100x8 a b " + tp).code, 64);
  }
  for (const std::string ranks : {"0", "all", "1"}) {
    const Outcome refused =
        shell("RANKS=" + ranks + " TEACHER=a PROMPT=b " OCTET_SOURCE_DIR "/launch/create_data_h100x8 a b 2");
    EXPECT_EQ(refused.code, 64) << ranks;
    EXPECT_NE(refused.both().find("RANKS"), std::string::npos) << refused.both();
  }
  EXPECT_EQ(shell(OCTET_SOURCE_DIR "/launch/train_sft_h100x8").code, 64);
}

}  // namespace
}  // namespace octet::test::generate_test
