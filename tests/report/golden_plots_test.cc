// Plots of two real runs: the lines of each SVG equal its golden file in tests/golden/plots. Fonts
// differ between machines, so letters are not compared.
#include <cmath>
#include <cstdlib>
#include <regex>

#include "../src/report/run_log.h"
#include "octet/report/plot.h"
#include "report/support.h"

namespace octet::report::test::golden_plots_test {
namespace {

#ifdef OCTET_HAVE_CAIRO

const std::string kFolder = OCTET_SOURCE_DIR "/tests/golden/plots/";

struct Line {
  std::string style, commands;  ///< "stroke:rgb(…);…", "MLLL"
  std::vector<double> numbers;
};

/// Returns the lines of an SVG in drawing order.
std::vector<Line> lines_of(const std::string& svg) {
  const std::string drawn = svg.substr(std::min(svg.size(), svg.find("</defs>")));
  static const std::regex kPath("<path ([^>]*stroke:rgb[^>]*)/>"), kStyle("stroke(-width)?:[^;]*;"),
      kPoints(" d=\"([^\"]*)\""), kPart("[A-Z]|-?[0-9.]+");
  std::vector<Line> lines;
  for (std::sregex_iterator at(drawn.begin(), drawn.end(), kPath), end; at != end; ++at) {
    const std::string path = (*at)[1];
    Line line;
    for (std::sregex_iterator part(path.begin(), path.end(), kStyle); part != end; ++part)
      line.style += part->str();
    std::smatch points;
    if (!std::regex_search(path, points, kPoints)) continue;
    const std::string text = points[1];
    for (std::sregex_iterator part(text.begin(), text.end(), kPart); part != end; ++part) {
      const std::string word = part->str();
      if (std::isupper(static_cast<unsigned char>(word[0])) != 0) {
        line.commands += word;
      } else {
        line.numbers.push_back(std::stod(word));
      }
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

void expect_plot(const std::string& name, const RunFacts& facts, bool with_evaluation) {
  std::vector<Json> rows;
  for (const std::string& line : split(read_file(kFolder + name + ".jsonl"), '\n'))
    if (!line.empty()) rows.push_back(parse_json(line, name));
  const std::string svg = to_svg(loss_figure(facts, rows, with_evaluation));
  if (std::getenv("OCTETRUN_WRITE_DOCS") != nullptr) write_file_atomically(kFolder + name + ".svg", svg);
  const std::vector<Line> want = lines_of(read_file(kFolder + name + ".svg")), got = lines_of(svg);
  ASSERT_EQ(got.size(), want.size());
  EXPECT_GT(got.size(), 10u);
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].style, want[i].style) << i;
    EXPECT_EQ(got[i].commands, want[i].commands) << i;
    ASSERT_EQ(got[i].numbers.size(), want[i].numbers.size()) << i;
    for (std::size_t k = 0; k < got[i].numbers.size(); ++k)
      ASSERT_NEAR(got[i].numbers[k], want[i].numbers[k], 1.5) << i << ", number " << k;
  }
}

TEST(GoldenPlots, OfTheQuickstart) {
  RunFacts facts;
  facts.run_name = "output", facts.base_model = "runs/quickstart/model";
  facts.datasets = {"runs/quickstart/data/train.jsonl"};
  expect_plot("quickstart", facts, false);
}

TEST(GoldenPlots, OfARunWithEvaluation) {
  RunFacts facts;
  facts.run_name = "evaluated", facts.base_model = "runs/quickstart/model";
  facts.datasets = {"runs/quickstart/data/train.jsonl"};
  expect_plot("evaluation", facts, true);
}

#endif

}  // namespace
}  // namespace octet::report::test::golden_plots_test
