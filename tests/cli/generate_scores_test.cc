// `trainer generate --score` with HDF5 output. The values equal the JSON lines at any number of ranks, and
// are kept on a restart. Files that are in the way are named and left unchanged.
#include <cmath>
#include <cstring>

#include "cli/generate_task.h"
#include "octet/base/dtype.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/checkpoint/arrays_file.h"

namespace octet::test::generate_scores_test {
namespace {

namespace fs = std::filesystem;
using checkpoint::ArraysFile;
using checkpoint::ArrayType;

template <typename T>
std::vector<T> values(const ArraysFile& file, const std::string& name) {
  const std::string& bytes = file.arrays.at(name).bytes;
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

class ScoreFiles : public GenerateFile {
 protected:
  ScoreFiles() {
    std::string texts = "{\"prompt_ids\": [5]}\n";
    const Json reference = read_json(kGolden + "generate/qwen3.json");
    for (const Json& c : reference["scores"]) texts += Json{{"prompt_ids", c["ids"]}}.dump() + "\n";
    for (int i = 1; i < 8; ++i) {
      Json ids = Json::array();
      for (int t = 0; t < 3 * i; ++t) ids.push_back((7 * t + i) % 60);
      texts += Json{{"prompt_ids", ids}}.dump() + "\n";
    }
    spill(folder_ / "texts.jsonl", texts);
  }
  std::string scoring(const std::string& out, const std::string& more = " --logprobs 8",
                      const std::string& model = kGolden + "models/qwen3") const {
    return "generate " + model + " --device cpu --deterministic strict --score --file " +
           (folder_ / "texts.jsonl") + " --out " + (folder_ / out) + " " + more;
  }
  ArraysFile scores(const std::string& name) const {
    return checkpoint::read_arrays_file(slurp(folder_ / name), name);
  }
  // Expects a refusal with one message, and unchanged files.
  void left_alone(const std::string& command, const std::string& out, const std::string& message,
                  const std::string& found = "") const {
    const std::string before = slurp(folder_ / out);
    for (const int np : {0, 2}) {
      const Outcome run = trainer(command, np);
      EXPECT_EQ(run.code, 64) << run.both();
      EXPECT_EQ(errors_in(run), 1) << run.both();
      EXPECT_NE(run.err.find(message), std::string::npos) << message << run.both();
      EXPECT_NE(run.err.find(found), std::string::npos) << found << run.both();
      EXPECT_NE(run.err.find("--overwrite"), std::string::npos) << run.both();
      EXPECT_EQ(slurp(folder_ / out), before);
    }
  }
};

// Expects that no other half-precision value is nearer.
void expect_nearest(std::uint16_t code, double x) {
  const double off = std::abs(from_f16(code) - x);
  for (const int step : {-1, 1}) {
    const double other = from_f16(static_cast<std::uint16_t>(code + step));
    if (std::isfinite(other)) {
      EXPECT_LE(off, std::abs(other - x)) << from_f16(code) << " for " << x;
    }
  }
}

TEST_F(ScoreFiles, HaveTheValuesOfLinesAtAnyNumberOfRanks) {
  expect_success(trainer(scoring("scores.jsonl")));
  const std::vector<Json> lines = rows_of(folder_ / "scores.jsonl");
  for (const int np : {1, 2, 3}) {
    expect_success(trainer(scoring("np" + std::to_string(np) + ".h5"), np));
    EXPECT_EQ(slurp(folder_ / ("np" + std::to_string(np) + ".h5")), slurp(folder_ / "np1.h5")) << np;
  }
  const ArraysFile file = scores("np1.h5");
  const auto offsets = values<std::int64_t>(file, "offsets"),
             logprob_offsets = values<std::int64_t>(file, "logprob_offsets"),
             rows = values<std::int64_t>(file, "rows");
  const auto ids = values<std::uint32_t>(file, "ids"), top_ids = values<std::uint32_t>(file, "top_ids");
  const auto logprobs = values<std::uint16_t>(file, "logprobs"),
             top_logprobs = values<std::uint16_t>(file, "top_logprobs");
  const auto rest = values<float>(file, "rest");
  EXPECT_EQ(file.arrays.at("ids").type, ArrayType::u32);
  EXPECT_EQ(file.arrays.at("logprobs").type, ArrayType::f16);
  EXPECT_EQ(file.arrays.at("rest").type, ArrayType::f32);
  ASSERT_EQ(rows.size(), lines.size());
  ASSERT_EQ(offsets.size(), lines.size() + 1);
  ASSERT_EQ(logprob_offsets.size(), lines.size() + 1);
  EXPECT_EQ(file.arrays.at("top_ids").shape, (std::vector<std::int64_t>{std::ssize(logprobs), 8}));
  EXPECT_EQ(file.arrays.at("top_logprobs").shape, file.arrays.at("top_ids").shape);
  double least = 1;
  for (std::size_t row = 0; row < lines.size(); ++row) {
    EXPECT_EQ(rows[row], static_cast<std::int64_t>(row));
    const Json& line = lines[row];
    ASSERT_EQ(offsets[row + 1] - offsets[row], std::ssize(line["ids"]));
    ASSERT_EQ(logprob_offsets[row + 1] - logprob_offsets[row], std::ssize(line["logprobs"]));
    for (std::size_t t = 0; t < line["ids"].size(); ++t)
      EXPECT_EQ(ids[static_cast<std::size_t>(offsets[row]) + t], line["ids"][t].get<std::uint32_t>());
    for (std::size_t t = 0; t < line["logprobs"].size(); ++t) {
      const std::size_t place = static_cast<std::size_t>(logprob_offsets[row]) + t;
      expect_nearest(logprobs[place], line["logprobs"][t]);
      double exact = 0, rounded = 0;
      for (std::size_t k = 0; k < 8; ++k) {
        const Json& best = line["top_logprobs"][t][k];
        EXPECT_EQ(top_ids[8 * place + k], best[0].get<std::uint32_t>());
        expect_nearest(top_logprobs[8 * place + k], best[1]);
        exact += std::exp(best[1].get<double>());
        rounded += std::exp(static_cast<double>(from_f16(top_logprobs[8 * place + k])));
      }
      EXPECT_NEAR(rest[place], 1 - exact, 1e-7);
      EXPECT_NEAR(rest[place] + rounded, 1, 2e-3);
      least = std::min(least, static_cast<double>(rest[place]));
    }
  }
  EXPECT_GT(least, 0) << "something is left beside the best";
  EXPECT_EQ(static_cast<std::size_t>(offsets.back()), ids.size());
  EXPECT_EQ(static_cast<std::size_t>(logprob_offsets.back()), logprobs.size());
  EXPECT_EQ(file.texts.at("format"), "octet scores");
  EXPECT_EQ(file.texts.at("model"), "qwen3");
  EXPECT_EQ(file.texts.at("tokenizer"), "") << "there is none";
  EXPECT_EQ(file.numbers.at("best"), 8);
}

TEST_F(ScoreFiles, TellOfNoMoreTokensThanThereAreAndOfNoneWhereNoneAreAsked) {
  expect_success(trainer(scoring("all.hdf5", "--logprobs 1000")));
  const ArraysFile all = scores("all.hdf5");
  const std::int64_t vocabulary = read_json(kGolden + "models/qwen3/config.json")["vocab_size"];
  ASSERT_LT(vocabulary, 1000) << "a small one is asked";
  EXPECT_EQ(all.numbers.at("vocabulary"), vocabulary);
  EXPECT_EQ(all.numbers.at("best"), vocabulary);
  EXPECT_EQ(all.arrays.at("top_ids").shape[1], vocabulary);
  for (const float rest : values<float>(all, "rest")) EXPECT_NEAR(rest, 0, 1e-6);
  expect_success(trainer(scoring("none.h5", "")));
  const ArraysFile none = scores("none.h5");
  EXPECT_EQ(none.numbers.at("best"), 0);
  EXPECT_FALSE(none.arrays.contains("top_ids"));
  EXPECT_FALSE(none.arrays.contains("rest"));
  EXPECT_EQ(values<std::uint16_t>(none, "logprobs"), values<std::uint16_t>(all, "logprobs"));
}

TEST_F(ScoreFiles, AreGoneOnWithAfterARunThatEndedEarly) {
  expect_success(trainer(scoring("whole.h5")));
  expect_success(trainer(scoring("cut.h5")));
  const std::string whole = slurp(folder_ / "whole.h5");
  const std::vector<std::string> notes = split(slurp(folder_ / "cut.h5.rows"), '\n');
  ASSERT_EQ(notes.size(), 12u) << "a head, ten rows, nothing";
  const auto time = fs::last_write_time(folder_ / "cut.h5");
  const Outcome done = trainer(scoring("cut.h5"), 2);
  EXPECT_NE(done.err.find("10 of 10 rows are answered already"), std::string::npos) << done.both();
  EXPECT_EQ(fs::last_write_time(folder_ / "cut.h5"), time);
  // The state after a kill: only notes, the last one cut.
  fs::remove(folder_ / "cut.h5");
  spill(folder_ / "cut.h5.rows", Json{{"settings", parse_json(notes[0], "head")["settings"]}}.dump() + "\n" +
                                     notes[9] + "\n" + notes[2] + "\n" + notes[5].substr(0, 30));
  const Outcome again = trainer(scoring("cut.h5"), 2);
  expect_success(again);
  EXPECT_NE(again.err.find("2 of 10 rows are answered already"), std::string::npos) << again.both();
  EXPECT_NE(again.err.find("8 rows scored in"), std::string::npos) << again.both();
  EXPECT_EQ(slurp(folder_ / "cut.h5"), whole);
  // Killed between the last note and the file.
  fs::remove(folder_ / "cut.h5");
  const Outcome written = trainer(scoring("cut.h5"));
  EXPECT_NE(written.err.find("10 of 10 rows are answered already"), std::string::npos) << written.both();
  EXPECT_EQ(slurp(folder_ / "cut.h5"), whole);
  // One more row, at the beginning.
  const std::string texts = slurp(folder_ / "texts.jsonl");
  spill(folder_ / "texts.jsonl", "{\"prompt_ids\": [3, 4]}\n" + texts);
  const Outcome more = trainer(scoring("cut.h5"));
  EXPECT_NE(more.err.find("10 of 11 rows are answered already"), std::string::npos) << more.both();
  expect_success(trainer(scoring("eleven.h5")));
  EXPECT_EQ(slurp(folder_ / "cut.h5"), slurp(folder_ / "eleven.h5"));
  // A note without scores is reported, and its scores are not invented.
  std::string broken = slurp(folder_ / "cut.h5.rows");
  const std::size_t at = broken.find("\\\"logprobs\\\":[");
  ASSERT_NE(at, std::string::npos);
  broken.insert(at + 14, "70000,");
  spill(folder_ / "cut.h5.rows", broken);
  left_alone(scoring("cut.h5"), "cut.h5", "a stored row of scores is damaged");
}

TEST_F(ScoreFiles, NameTheRowsThatTheyHave) {
  const std::string texts = slurp(folder_ / "texts.jsonl");
  spill(folder_ / "texts.jsonl", "{\"prompt_ids\": [900000]}\n" + texts);
  expect_success(trainer(scoring("left_out.h5", "--max-broken-rows 1"), 2));
  EXPECT_EQ(values<std::int64_t>(scores("left_out.h5"), "rows"),
            (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  spill(folder_ / "texts.jsonl", texts);
  expect_success(trainer(scoring("second.h5", "--shard 2/2")));
  EXPECT_EQ(values<std::int64_t>(scores("second.h5"), "rows"), (std::vector<std::int64_t>{5, 6, 7, 8, 9}));
}

TEST_F(ScoreFiles, OfAnotherModelOrNumberOfTokensAreRefused) {
  expect_success(trainer(scoring("scores.h5")));
  left_alone(scoring("scores.h5", "--logprobs 4"), "scores.h5",
             "have another number of most probable tokens (--logprobs)");
  fs::copy(kGolden + "models/qwen3", folder_ / "student", fs::copy_options::recursive);
  left_alone(scoring("scores.h5", "--logprobs 8", folder_ / "student"), "scores.h5",
             "the existing scores have another model", "'qwen3'");
  // Without its notes, the file is not recognised either.
  fs::remove(folder_ / "scores.h5.rows");
  left_alone(scoring("scores.h5"), "scores.h5", "the record of its model and settings is missing");
  expect_success(trainer(scoring("scores.h5", "--logprobs 4 --overwrite")));
  EXPECT_EQ(scores("scores.h5").numbers.at("best"), 4);
}

TEST_F(ScoreFiles, OfAnotherTokenizerAreRefused) {
  const auto command = [this](const std::string& model) {
    return "generate " + model + " --template chatml --device cpu --score --file " + Task::get().held_out() +
           " --out " + (folder_ / "scores.h5");
  };
  expect_success(trainer(command(trained_model())));
  EXPECT_EQ(scores("scores.h5").texts.at("tokenizer"),
            hash128_hex(slurp(trained_model() + "/tokenizer.json")));
  fs::copy(trained_model(), folder_ / "run", fs::copy_options::recursive);
  spill(folder_ / "run/tokenizer.json", slurp(trained_model() + "/tokenizer.json") + "\n");
  left_alone(command(folder_ / "run"), "scores.h5", "the existing scores have another tokenizer");
}

/// Runs before a release only.
class WholeScoreFiles : public ScoreFiles {};

TEST_F(WholeScoreFiles, ThatAreCutShortOrNoneAreNamedAndLeft) {
  expect_success(trainer(scoring("scores.h5")));
  const std::string whole = slurp(folder_ / "scores.h5");
  const std::string last = whole.substr(0, whole.size() - 1), half = whole.substr(0, whole.size() / 2);
  for (const std::string& cut : {last, half}) {
    spill(folder_ / "scores.h5", cut);
    left_alone(scoring("scores.h5"), "scores.h5", "cut short or damaged", "move the file away");
  }
  for (const std::string other : {"", "{\"ids\": [1]}\n"}) {
    spill(folder_ / "scores.h5", other);
    left_alone(scoring("scores.h5"), "scores.h5", "this is not an HDF5 file");
  }
  std::string changed = whole;
  changed[changed.size() - 3] ^= 1;
  spill(folder_ / "scores.h5", changed);
  left_alone(scoring("scores.h5"), "scores.h5", "was changed since it was written");
  spill(folder_ / "foreign.h5", "my own");
  left_alone(scoring("foreign.h5"), "foreign.h5", "this is not an HDF5 file");
  ArraysFile arrays;
  arrays.texts["format"] = "weather";
  spill(folder_ / "weather.h5", checkpoint::arrays_file_bytes(arrays));
  left_alone(scoring("weather.h5"), "weather.h5", "the existing HDF5 file holds no scores");
  fs::remove(folder_ / "scores.h5");
  expect_success(trainer(scoring("scores.h5")));
  EXPECT_EQ(slurp(folder_ / "scores.h5"), whole);
}

TEST_F(WholeScoreFiles, GoIntoFoldersThatAreMadeAndOnlyScoresAreWrittenSo) {
  expect_success(trainer(scoring("new/folder/scores.H5")));
  EXPECT_EQ(scores("new/folder/scores.H5").numbers.at("version"), 1);
  for (const int np : {0, 2}) {
    const Outcome in_the_way = trainer(scoring("texts.jsonl/scores.h5"), np);
    EXPECT_NE(in_the_way.code, 0);
    EXPECT_EQ(errors_in(in_the_way), 1) << in_the_way.both();
    EXPECT_NE(in_the_way.err.find("cannot make a folder"), std::string::npos) << in_the_way.both();
    const Outcome answers = trainer("generate " + kGolden + "models/qwen3 --device cpu --file " +
                                        (folder_ / "texts.jsonl") + " --out " + (folder_ / "answers.h5"),
                                    np);
    EXPECT_EQ(answers.code, 64);
    EXPECT_EQ(errors_in(answers), 1) << answers.both();
    EXPECT_NE(answers.err.find("only scores are written as HDF5"), std::string::npos) << answers.both();
    EXPECT_FALSE(fs::exists(folder_ / "answers.h5"));
  }
}

}  // namespace
}  // namespace octet::test::generate_scores_test
