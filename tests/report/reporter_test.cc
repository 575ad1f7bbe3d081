#include "report/support.h"

#include <fstream>
#include <functional>
#include <sstream>

#include "octet/base/json.h"
#include "octet/report/number.h"

namespace octet::report::test::reporter_test {
namespace {

std::string captured(const std::function<void()>& body) {
  testing::internal::CaptureStderr();
  body();
  return testing::internal::GetCapturedStderr();
}

TEST_F(Run, OnlyRowsOfStepsCarryALossAndItIsTheMeanSinceTheLastRow) {
  captured([&] {
    Reporter reporter(facts());
    reporter.start();
    for (int n = 1; n <= 20; ++n) {
      reporter.step(step(n));
      if (n == 10)
        reporter.evaluation({.step = 10, .epoch = 1, .loss = 2.5, .seconds = 2, .samples = 10, .batches = 4});
    }
    reporter.finish({});
  });
  const auto all = rows();
  ASSERT_EQ(all.size(), 5u);
  double mean = 0;
  for (int n = 1; n <= 5; ++n) mean += step(n).loss / 5;
  EXPECT_DOUBLE_EQ(all[0].at("loss").get<double>(), mean);
  EXPECT_EQ(all[0].at("current_steps"), 5);
  EXPECT_EQ(all[0].at("total_steps"), 20);
  EXPECT_EQ(all[0].at("lr").get<double>(), step(5).learning_rate);
  EXPECT_EQ(all[0].at("throughput").get<double>(), 2000);
  EXPECT_EQ(all[0].at("total_tokens"), 5000);
  EXPECT_EQ(all[0].at("percentage").get<double>(), 25);
  EXPECT_EQ(all[0].at("elapsed_time"), "0:00:02");
  EXPECT_EQ(all[0].at("remaining_time"), "0:00:07");
  EXPECT_EQ(all[0].at("seconds_per_step").get<double>(), 0.5);
  EXPECT_DOUBLE_EQ(all[0].at("mfu").get<double>(), 6e6 * 2000 / (2 * kYardstick));
  EXPECT_EQ(all[2].at("eval_loss").get<double>(), 2.5);
  EXPECT_FALSE(all[2].contains("loss"));
}

TEST_F(Run, TheLogKeepsEveryDigit) {
  captured([&] {
    Reporter reporter(facts());
    StepFacts f = step(5);
    f.loss = 0.1 + 0.2;
    reporter.step(f);
  });
  EXPECT_EQ(rows()[0].at("loss").get<double>(), 0.1 + 0.2);
}

TEST_F(Run, TheFilesHaveTheFieldsOfHuggingFace) {
  captured([&] {
    Reporter reporter(facts());
    for (int n = 1; n <= 20; ++n) reporter.step(step(n));
    reporter.evaluation(
        {.step = 20, .epoch = 2, .loss = 2, .seconds = 1, .samples = 5, .batches = 5, .perplexity = true});
    reporter.finish({});
  });
  const Json state = json("trainer_state.json");
  EXPECT_EQ(state.at("global_step"), 20);
  EXPECT_EQ(state.at("max_steps"), 20);
  EXPECT_EQ(state.at("num_train_epochs"), 2);
  EXPECT_EQ(state.at("num_input_tokens_seen"), 20000);
  ASSERT_EQ(state.at("log_history").size(), 5u);
  EXPECT_EQ(state.at("log_history")[0].at("step"), 5);
  EXPECT_TRUE(state.at("log_history")[0].contains("learning_rate"));
  EXPECT_TRUE(state.at("best_metric").is_null());
  const Json results = json("all_results.json");
  double mean = 0;
  for (int n = 1; n <= 20; ++n) mean += step(n).loss / 20;
  EXPECT_NEAR(results.at("train_loss").get<double>(), mean, 1e-12);
  // Hugging Face's times cover all of train(): 20 steps of half a second, and the evaluation.
  EXPECT_EQ(results.at("train_runtime").get<double>(), 11);
  EXPECT_DOUBLE_EQ(results.at("train_steps_per_second").get<double>(), 20.0 / 11);
  EXPECT_DOUBLE_EQ(results.at("train_samples_per_second").get<double>(), 320.0 / 11);
  EXPECT_EQ(results.at("eval_loss").get<double>(), 2);
  EXPECT_DOUBLE_EQ(results.at("perplexity").get<double>(), std::exp(2.0));
  EXPECT_FALSE(json("train_results.json").contains("eval_loss"));
  EXPECT_EQ(json("eval_results.json").at("eval_runtime").get<double>(), 1);
  const std::string card = read_file(folder_ + "/README.md");
  EXPECT_NE(card.find("base_model: \"org/model\""), std::string::npos);
  EXPECT_NE(card.find("| learning_rate | 0.001 |"), std::string::npos);
  for (const char* name :
       {"training_loss.svg", "training_loss.png", "training_eval_loss.svg", "training_eval_loss.png"}) {
    EXPECT_TRUE(path_exists(folder_ + "/" + name)) << name;
  }
}

TEST_F(Run, AReadmeOfTheUserStays) {
  for (const std::string before : {"# my notes\n", "---\ntags:\n- llama-factory\n---\n"}) {
    std::filesystem::remove_all(folder_);  // a finished run writes no second card
    std::filesystem::create_directories(folder_);
    write_file_atomically(folder_ + "/README.md", before);
    const std::string said = captured([&] { Reporter(facts(0, 20)).finish({}); });
    EXPECT_EQ(read_file(folder_ + "/README.md"), before);
    EXPECT_NE(said.find("no model card is written"), std::string::npos) << said;
  }
}

TEST_F(Run, TheCardOfALongRunShowsFortyRowsAllEvaluationsAndTheLast) {
  captured([&] {
    Reporter reporter(facts(0, 995));
    for (int n = 1; n <= 995; ++n) {
      reporter.step(step(n));
      if (n == 333)
        reporter.evaluation({.step = n, .epoch = 1, .loss = 1.25, .seconds = 1, .samples = 5, .batches = 5});
    }
    reporter.finish({});
  });
  const std::string card = read_file(folder_ + "/README.md");
  const std::size_t table = card.find("| step | epoch |");
  ASSERT_NE(table, std::string::npos);
  std::istringstream lines(card.substr(table));
  std::vector<std::string> shown;
  for (std::string line; std::getline(lines, line);) shown.push_back(line);
  EXPECT_LE(shown.size(), 2u + 43u);
  EXPECT_GE(shown.size(), 2u + 35u);
  EXPECT_TRUE(shown[2].starts_with("| 5 |")) << shown[2];
  EXPECT_TRUE(shown.back().starts_with("| 995 |")) << shown.back();
  EXPECT_NE(card.find("| 1.25 |"), std::string::npos);
}

TEST_F(Run, TheScreenShowsBannerLineBarAndSummary) {
  const std::string text = captured([&] {
    RunFacts f = facts();
    f.gpu_hour_price = 2.5;
    Reporter reporter(f);
    reporter.start();
    for (int n = 1; n <= 20; ++n) reporter.step(step(n));
    reporter.saved(20, folder_ + "/checkpoint-20");
    reporter.finish({.status = "completed", .final_model = "m", .next = {"trainer generate m"}});
  });
  for (const char* part :
       {"***** Running training *****", "  Num examples = 1,000", "  Num Epochs = 2.0",
        "  Total train batch size (w. parallel, distributed & accumulation) = 16",
        "  Number of trainable parameters = 1,234,567", "trainable%: 100.0000", "{'loss': ",
        "'grad_norm': 0.5, 'learning_rate': 5e-05, 'epoch': 0.5}  step 5/20, 0.5 s/it, 0:00:07 left, 2,000 "
        "tokens/s, MFU ",
        "memory 1.00 GiB", "Training completed", "cost", "trainer generate m"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_EQ(text.find('\r'), std::string::npos) << "no redrawing where there is no terminal";
}

TEST_F(Run, RowsAndSummaryTellOfCommunicationWhereRanksTalk) {
  const std::string text = captured([&] {
    Reporter reporter(facts());
    for (int n = 1; n <= 20; ++n) {
      StepFacts f = step(n);
      if (n > 5) {
        f.comm_seconds = 0.2;
        f.comm_exposed_seconds = 0.01 * (n % 5);  // mean of a window: 0.02
        f.comm_kinds = {{"all_gather", 0.05, 1000}, {"reduce_scatter", 0.15, 3000 + n % 5}};
      }
      reporter.step(f);
    }
    reporter.finish({});
  });
  const auto lines = rows();
  ASSERT_EQ(lines.size(), 4u);
  for (const char* key : {"comm_seconds", "comm_exposed_seconds", "comm_bytes"}) {
    EXPECT_FALSE(lines[0].contains(key)) << "nothing was sent";
  }
  const Json& row = lines[1];
  EXPECT_DOUBLE_EQ(row.at("comm_seconds").get<double>(), 0.2);
  EXPECT_DOUBLE_EQ(row.at("comm_exposed_seconds").get<double>(), 0.02);
  EXPECT_DOUBLE_EQ(row.at("comm_bytes").get<double>(), 4002);
  EXPECT_DOUBLE_EQ(row.at("comm_all_gather_seconds").get<double>(), 0.05);
  EXPECT_DOUBLE_EQ(row.at("comm_all_gather_bytes").get<double>(), 1000);
  EXPECT_DOUBLE_EQ(row.at("comm_reduce_scatter_bytes").get<double>(), 3002);
  // Keys that other programs read are unchanged; additional numbers are harmless.
  for (const char* key : {"current_steps", "total_steps", "loss", "lr", "epoch", "percentage", "elapsed_time",
                          "remaining_time"}) {
    EXPECT_TRUE(row.contains(key)) << key;
  }
  for (const auto& [key, value] : row.items()) {
    EXPECT_TRUE(value.is_number() || key == "elapsed_time" || key == "remaining_time") << key;
  }
  // 15 of 20 steps of 0.5 s have 0.2 s of messages each, 0.02 s of it exposed.
  for (const char* part : {"communication", "30.0 % of the time, 90.0 % of it hidden; rank 0 sent ",
                           "  reduce_scatter", "  all_gather"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST_F(Run, AResumedRunShowsEveryStepOnce) {
  captured([&] {
    Reporter whole(facts());
    for (int n = 1; n <= 20; ++n) whole.step(step(n));
    whole.finish({});
  });
  const auto expected = rows();
  const Json expected_results = json("train_results.json");
  std::filesystem::remove_all(folder_);

  // Saved at step 12, between two rows; killed at 17; resumed at 12.
  captured([&] {
    Reporter first(facts());
    for (int n = 1; n <= 17; ++n) {
      first.step(step(n));
      if (n == 12) first.saved(12, "checkpoint-12");
    }
  });
  std::ofstream(folder_ + "/trainer_log.jsonl", std::ios::app) << "{\"current_steps\": 17, \"lo";
  const std::string text = captured([&] {
    Reporter second(facts(12));
    second.start();
    for (int n = 13; n <= 20; ++n) second.step(step(n));
    second.finish({});
  });
  EXPECT_NE(text.find("Continuing from global step 12"), std::string::npos);
  const auto all = rows();
  ASSERT_EQ(all.size(), expected.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].at("current_steps"), expected[i].at("current_steps"));
    EXPECT_DOUBLE_EQ(all[i].at("loss").get<double>(), expected[i].at("loss").get<double>());
    EXPECT_EQ(all[i].at("total_tokens"), expected[i].at("total_tokens"));
    EXPECT_EQ(all[i].at("seconds_per_step").get<double>(), 0.5);
  }
  // Eight steps of half a second, of 16 samples each.
  const Json rates = json("train_results.json");
  EXPECT_DOUBLE_EQ(rates.at("train_runtime").get<double>(), 4);
  EXPECT_DOUBLE_EQ(rates.at("train_steps_per_second").get<double>(), 2);
  EXPECT_DOUBLE_EQ(rates.at("train_samples_per_second").get<double>(), 32);
  EXPECT_NEAR(json("train_results.json").at("train_loss").get<double>(),
              expected_results.at("train_loss").get<double>(), 1e-12);
  EXPECT_EQ(json("trainer_state.json").at("log_history").size(), 4u);
}

TEST_F(Run, AFreshStartReplacesTheLog) {
  captured([&] {
    {
      Reporter first(facts());
      for (int n = 1; n <= 10; ++n) first.step(step(n));
    }
    Reporter second(facts());
    for (int n = 1; n <= 5; ++n) second.step(step(n));
  });
  EXPECT_EQ(rows().size(), 1u);
}

TEST_F(Run, HostileLogsAreDroppedLineByLine) {
  make_folders(folder_);
  write_file_atomically(
      folder_ + "/trainer_log.jsonl",
      "[]\n{\"current_steps\": -1}\n{\"current_steps\": 1e300}\n{\"current_steps\": \"5\"}\nnoise\n\n" +
          std::string(5000, '[') +
          "\n{\"current_steps\": 5, \"loss\": \"x\", \"total_tokens\": 1e300}\n"
          "{\"current_steps\": 6, \"loss\": null, \"lr\": 1}\n{}\n");
  write_file_atomically(folder_ + "/trainer_state.json",
                        "{\"global_step\": 10, \"since_last_log\": {\"loss_sum\": 1e400, \"steps\": 1e300}}");
  captured([&] {
    Reporter reporter(facts(10));
    for (int n = 11; n <= 20; ++n) reporter.step(step(n));
    reporter.finish({});
  });
  const auto all = rows();
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[3].at("current_steps"), 20);
}

TEST_F(Run, ALossThatIsNotFiniteIsShownAndDoesNotSpoilTheRest) {
  const std::string text = captured([&] {
    Reporter reporter(facts());
    for (int n = 1; n <= 20; ++n) {
      StepFacts f = step(n);
      if (n == 7) f.loss = NAN;
      if (n == 12) f.loss = INFINITY;
      reporter.step(f);
    }
    reporter.finish({});
  });
  EXPECT_NE(text.find("{'loss': nan"), std::string::npos);
  EXPECT_NE(text.find("{'loss': inf"), std::string::npos);
  EXPECT_TRUE(rows()[1].at("loss").is_null());
  EXPECT_TRUE(std::isfinite(json("all_results.json").at("train_loss").get<double>()));
}

TEST_F(Run, ARunWithoutStepsEnds) {
  captured([&] {
    Reporter reporter(facts(20, 20));
    reporter.start();
    reporter.finish({});
  });
  EXPECT_TRUE(json("all_results.json").at("train_loss").is_null());
  EXPECT_TRUE(path_exists(folder_ + "/training_loss.png"));
}

TEST_F(Run, AFolderThatCannotBeMadeIsAnError) {
  write_file_atomically(folder_, "a file");
  EXPECT_THROW(Reporter{facts()}, Error);
  std::filesystem::remove(folder_);
  make_folders(folder_ + "/trainer_log.jsonl");
  EXPECT_THROW(Reporter{facts()}, Error);
}

TEST_F(Run, TheStateForACheckpointIsTheStateOnDisk) {
  captured([&] {
    Reporter reporter(facts());
    for (int n = 1; n <= 7; ++n) reporter.step(step(n));
    reporter.saved(7, "checkpoint-7");
    Json of_file = json("trainer_state.json");
    of_file.erase("log_history");
    EXPECT_EQ(reporter.state(), of_file) << "the history is in the log";
    EXPECT_TRUE(reporter.logs_at(10) && reporter.logs_at(20) && !reporter.logs_at(1));
  });
}

TEST(Throughput, UtilisationFollowsTheFormula) {
  const double flops = 48.25e9;  // Llama-3.1-8B at 4,096, per token
  EXPECT_NEAR(flop_utilisation(flops, 24576 / 1.95, 1), 0.614, 0.001);
  EXPECT_DOUBLE_EQ(flop_utilisation(flops, 8000, 4), flop_utilisation(flops, 2000, 1));
  EXPECT_EQ(flop_utilisation(0, 1, 1), 0);
  EXPECT_EQ(flop_utilisation(1, NAN, 1), 0);
  EXPECT_EQ(flop_utilisation(1, 1, 0), 0);
}

}  // namespace
}  // namespace octet::report::test::reporter_test
