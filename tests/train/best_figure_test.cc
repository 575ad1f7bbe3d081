// The best evaluation of a run, and runs that end early. transformers' EarlyStoppingCallback counts the same.
#include "../src/train/best_figure.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "../src/train/logs/step_report.h"
#include "octet/base/json.h"
#include "octet/config/config.h"
#include "octet/config/derive.h"
#include "octet/setup/run_options.h"

namespace octet::train::best_figure_test {
namespace {

TEST(BestFigure, CountsEvaluationsWithoutAnImprovement) {
  struct Case {
    bool greater;
    std::vector<double> values;
    std::int64_t best, ends;  ///< numbers of evaluations from 1; 0: never
  };
  for (const Case& c : {Case{false, {3, 2, 2.5, 2, 1}, 5, 4}, Case{false, {3, 2, 2.5, 1.9, 2}, 4, 0},
                        Case{true, {0.1, 0.2, 0.2, 0.1}, 2, 4}, Case{false, {NAN, 2, INFINITY, NAN}, 2, 4},
                        Case{false, {NAN, NAN}, 0, 2}}) {
    BestFigure figure({.name = "x", .greater = c.greater}, 2);
    std::int64_t best = 0, ends = 0, number = 0;
    for (const double value : c.values) {
      figure.take(value, ++number);
      if (figure.improved_at(number)) best = number;
      if (figure.ends_run() && ends == 0) ends = number;
    }
    EXPECT_EQ(best, c.best);
    EXPECT_EQ(ends, c.ends);
  }
  BestFigure patient({}, std::nullopt);
  for (int i = 0; i < 9; ++i) patient.take(1, i);
  EXPECT_FALSE(patient.ends_run());
}

TEST(BestFigure, ContinuesFromACheckpointOfTheSameFigure) {
  BestFigure figure({.name = "accuracy", .greater = true}, 2);
  figure.take(0.5, 2);
  figure.take(0.4, 4);
  BestFigure other({.name = "accuracy", .greater = true}, 2);
  other.restore(figure.json(), "here");
  EXPECT_EQ(other.json(), figure.json());
  EXPECT_FALSE(other.improved_at(2)) << "the checkpoint of that step exists";
  other.take(0.45, 6);
  EXPECT_TRUE(other.ends_run());
  BestFigure loss({}, 2);
  loss.restore(figure.json(), "here");
  EXPECT_EQ(loss.stale(), 0);
  EXPECT_FALSE(loss.best());
}

TEST(FigureChoice, FindsTheFigureOfAnEvaluation) {
  const std::vector<std::pair<std::string, double>> extra{{"accuracy", 0.25}, {"rewards/margins", 3}};
  struct Case {
    const char* name;
    double value;
    bool greater;
  };
  for (const Case& c :
       {Case{"loss", 2, false}, Case{"eval_loss", 2, false}, Case{"perplexity", std::exp(2.0), false},
        Case{"eval_accuracy", 0.25, true}, Case{"rewards/margins", 3, true}}) {
    config::EvaluationKeys keys;
    keys.metric_for_best_model = c.name;
    const FigureChoice choice = figure_choice(keys);
    EXPECT_EQ(choice.value_in(2, extra), c.value) << c.name;
    EXPECT_EQ(choice.greater, c.greater) << c.name;
    keys.greater_is_better = !c.greater;
    EXPECT_EQ(figure_choice(keys).greater, !c.greater) << c.name;
  }
  EXPECT_TRUE(std::isnan(FigureChoice{.name = "kl"}.value_in(2, extra)));
  EXPECT_EQ(figure_choice({}).name, "loss");
}

// The configuration knows the names of figures that evaluations report.
TEST(FigureChoice, KnowsTheFiguresOfEachStage) {
  for (const char* stage : {"sft", "pt", "dpo", "orpo", "rm", "kto"}) {
    config::Config config;
    config.stage = stage == std::string("orpo") ? "dpo" : stage;
    if (config.stage != stage) config.pref_loss = stage;
    std::set<std::string> reported{"loss"};
    if (setup::is_pretraining(config)) reported.insert("perplexity");
    std::vector<std::pair<std::string, double>> extra;
    const std::vector<double> sums(ops::kPreferenceFigures, 1.0);
    if (setup::trains_pairs(config)) extra = preference_fields(sums, setup::preference_of(config, config));
    if (setup::trains_judged(config)) extra = judgement_fields(sums, 0.5);
    for (const auto& [name, value] : extra) reported.insert(name);
    const auto known = config::evaluation_figures(config);
    EXPECT_EQ(std::set<std::string>(known.begin(), known.end()), reported) << stage;
    config.compute_accuracy = true;
    EXPECT_EQ(config::evaluation_figures(config).back(), "accuracy");
  }
}

}  // namespace
}  // namespace octet::train::best_figure_test
