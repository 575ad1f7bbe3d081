// Recipes contain everything that determines the tokens of a data set. Cached tokens are found only by an
// equal recipe.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/data/mix.h"
#include "octet/data/template_encoder.h"
#include "octet/data/token_cache.h"
#include "support/encoded.h"
#include "support/program.h"

namespace octet::data::recipe_test {
namespace {

namespace fs = std::filesystem;

/// Returns the names with different values in the two recipes.
std::set<std::string> changed(const Recipe& before, const Recipe& after) {
  const std::map<std::string, std::string> a(before.begin(), before.end()), b(after.begin(), after.end());
  std::set<std::string> names;
  for (const auto& [name, value] : a) {
    if (!b.contains(name) || b.at(name) != value) names.insert(name);
  }
  for (const auto& [name, value] : b) {
    if (!a.contains(name)) names.insert(name);
  }
  return names;
}

using Names = std::set<std::string>;

// ---- encoders ----

using Setting = std::function<void(TemplateEncoderOptions&)>;

std::string tokenizer(const std::string& name) {
  return OCTET_SOURCE_DIR "/tests/golden/tokenizers/" + name;
}

Recipe encoder_recipe(const Setting& set) {
  TemplateEncoderOptions options{.folder = tokenizer("qwen2"), .template_name = "qwen3"};
  options.options.default_system = "s";
  options.options.tool_format = "qwen";
  set(options);
  return TemplateEncoder(options).recipe();
}

// A new option must be added here and to the recipe, otherwise this does not compile.
TEST(Recipe, OfAnEncoderTellsEveryOption) {
  const auto& [cutoff, history, prompt, enable, preserve, system, tools, split, date] =
      text::TemplateOptions();
  EXPECT_TRUE(cutoff > 0 && !history && !prompt && enable && !preserve && !system && !tools && !split &&
              date.empty());
  const auto& [folder, name, match, options, answers, cut, pieces, bos] = TemplateEncoderOptions();
  EXPECT_TRUE(folder.empty() && !name && !match && options.cutoff_len == cutoff &&
              answers == Answers::single && cut == TextCut::pieces && pieces == 0 && !bos);
  struct Change {
    Setting set;
    Names names;
  };
  using O = TemplateEncoderOptions;
  const std::vector<Change> changes{
      {[](O&) {}, {}},
      {[](O& o) { o.options.cutoff_len = 2047; }, {"cutoff_len"}},
      {[](O& o) { o.options.mask_history = true; }, {"mask_history"}},
      {[](O& o) { o.options.train_on_prompt = true; }, {"train_on_prompt"}},
      {[](O& o) { o.options.enable_thinking = false; }, {"enable_thinking"}},
      {[](O& o) { o.options.enable_thinking.reset(); }, {"enable_thinking"}},
      {[](O& o) { o.options.preserve_thinking = true; }, {"preserve_thinking"}},
      {[](O& o) { o.options.default_system = "t"; }, {"default_system"}},
      {[](O& o) { o.options.default_system.reset(); }, {"default_system"}},
      {[](O& o) { o.options.tool_format = "mistral"; }, {"tool_format"}},
      {[](O& o) { o.options.tool_format.reset(); }, {"tool_format"}},
      {[](O& o) { o.options.split_special_tokens = true; }, {"split_special_tokens"}},
      {[](O& o) { o.text_cut = TextCut::truncate; }, {"cutting of texts"}},
      {[](O& o) { o.text_cut = TextCut::whole; }, {"cutting of texts"}},
      {[](O& o) { o.most_pieces = 3; }, {"pieces of a text, at most"}},
      {[](O& o) { o.answers = Answers::pairs; }, {"pairs of answers"}},
      {[](O& o) { o.answers = Answers::judged; }, {"judged answers"}},
      {[](O& o) { o.template_name = "qwen"; }, {"template", "template's words"}}};
  std::set<Recipe> seen;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    const Recipe recipe = encoder_recipe(changes[i].set);
    EXPECT_EQ(changed(encoder_recipe([](O&) {}), recipe), changes[i].names) << "change " << i;
    EXPECT_TRUE(seen.insert(recipe).second) << "change " << i << " reads like another";
  }
}

TEST(Recipe, OfATemplateThatPrintsTheDayHoldsTheDay) {
  const auto on = [](const std::string& tools, const std::string& date) {
    TemplateEncoderOptions options{.folder = tokenizer("llama3"), .template_name = "llama3"};
    options.options.tool_format = tools;
    options.options.date = date;
    return TemplateEncoder(options).recipe();
  };
  EXPECT_EQ(changed(on("llama3", "2026-03-09"), on("llama3", "2026-03-10")), Names{"date in the template"});
  EXPECT_EQ(changed(on("default", "2026-03-09"), on("default", "2026-03-10")), Names{}) << "none is printed";
}

TEST(Recipe, OfATemplateInAFileIsItsBytes) {
  const test::TemporaryFolder folder("own_template");
  const auto of = [&](const std::string& source) {
    test::spill(folder / "own.jinja", source);
    return encoder_recipe([&](TemplateEncoderOptions& o) {
      o.template_name = folder / "own.jinja";
      o.options.tool_format.reset();
    });
  };
  EXPECT_EQ(changed(of("{{ user }}:"), of("{{ user }}: ")), Names{"template's words"});
  EXPECT_EQ(changed(of("{{ user }}:"), of("{{ user }}:")), Names{});
}

TEST(Recipe, OfTextsTellsWhatStandsAroundThem) {
  const auto of = [](const std::string& folder, std::optional<std::string> name, std::optional<bool> bos) {
    return TemplateEncoder({.folder = folder, .template_name = std::move(name), .add_bos = bos}).recipe();
  };
  const std::string llama = tokenizer("llama3");
  EXPECT_EQ(changed(of(llama, std::nullopt, true), of(llama, std::nullopt, false)), Names{"before a text"});
  // Without a template, the recipe has no options of templates.
  for (const auto& [name, value] : of(llama, std::nullopt, true)) {
    EXPECT_FALSE(name == "template" || name == "mask_history" || name == "enable_thinking") << name;
  }
  const Names ends = changed(of(llama, std::nullopt, true), of(llama, "chatml", true));
  EXPECT_TRUE(ends.contains("template") && ends.contains("mask_history")) << "there is one now";
}

TEST(Recipe, OfATokenizerIsEveryFileOfIt) {
  const test::TemporaryFolder folder("tokenizer");
  for (const auto& entry : fs::directory_iterator(tokenizer("qwen2"))) {
    fs::copy(entry.path(), folder.path() + "/" + entry.path().filename().string());
  }
  const auto recipe = [&] { return TemplateEncoder({.folder = folder.path()}).recipe(); };
  const Recipe before = recipe();
  int files = 0;
  const std::vector<std::string> all = text::Tokenizer::from_folder(folder.path()).files();
  for (const std::string& file : all) {
    const std::string was = test::slurp(file);
    test::spill(file, was + "\n");
    EXPECT_EQ(changed(before, recipe()), Names{fs::path(file).filename().string()});
    test::spill(file, was);
    ++files;
  }
  EXPECT_GE(files, 2);
  EXPECT_EQ(recipe(), before) << "what is in them counts, not when they were written";
}

// ---- data sets ----

class MixRecipe : public testing::Test {
 protected:
  MixRecipe() : folder_("recipe") {
    for (const char* name : {"a.txt", "b.txt", "c.txt"}) test::spill(folder_ / name, "1\n2\n3\n");
    sources_ = open_datasets({.dataset = {folder_ / "a.txt", folder_ / "b.txt"}});
  }
  Names changes(const std::function<void(std::vector<DataSource>&, MixOptions&)>& change) const {
    const MixOptions options{.strategy = "interleave_over", .weights = {1, 2}, .seed = 3};
    auto sources = sources_;
    MixOptions other = options;
    change(sources, other);
    return changed(RowMix(sources_, options).recipe(), RowMix(sources, other).recipe());
  }
  test::TemporaryFolder folder_;
  std::vector<DataSource> sources_;
};

using Sources = std::vector<DataSource>;

TEST_F(MixRecipe, TellsHowSetsAreMixed) {
  EXPECT_EQ(changes([](Sources&, MixOptions&) {}), Names{});
  EXPECT_EQ(changes([](Sources&, MixOptions& o) { o.strategy = "interleave_once"; }), Names{"mix_strategy"});
  EXPECT_EQ(changes([](Sources&, MixOptions& o) { o.weights[1] = 2.5; }), Names{"interleave_probs"});
  EXPECT_EQ(changes([](Sources&, MixOptions& o) { o.weights[0] = 2; }), Names{"interleave_probs"});
  EXPECT_EQ(changes([](Sources&, MixOptions& o) { o.seed = 4; }), Names{"seed of the mixture"});
  EXPECT_EQ(changes([](Sources&, MixOptions& o) { o.weights.clear(); }),
            (Names{"interleave_probs", "seed of the mixture"}))
      << "where sets take turns nothing is drawn";
  const Recipe alone = RowMix({sources_[0]}, {.strategy = "interleave_over", .seed = 3}).recipe();
  EXPECT_EQ(changed(alone, RowMix({sources_[0]}, {.seed = 4}).recipe()), Names{}) << "nothing is mixed";
}

TEST_F(MixRecipe, TellsOfEverySetWhatItIs) {
  for (const std::size_t s : {0u, 1u}) {
    const std::string set = "data set " + std::to_string(s + 1);
    EXPECT_EQ(changes([s](Sources& d, MixOptions&) { d[s].name = "x"; }), Names{set});
    EXPECT_EQ(changes([s](Sources& d, MixOptions&) { d[s].rows = 2; }), Names{set + ": rows"});
    EXPECT_EQ(changes([s](Sources& d, MixOptions&) { d[s].sampled = true; }),
              Names{set + ": seed of its rows"});
    const auto other = std::shared_ptr(open_rows(folder_ / "c.txt"));
    EXPECT_EQ(changes([&](Sources& d, MixOptions&) { d[s].files[0] = other; }), Names{set + ": file 1"});
    EXPECT_EQ(changes([&](Sources& d, MixOptions&) { d[s].files.push_back(other); }),
              Names{set + ": file 2"});
  }
  auto sampled = sources_;
  sampled[1].sampled = true;
  auto otherwise = sampled;
  otherwise[1].sample_seed = 9;
  EXPECT_EQ(changed(RowMix(sampled, {}).recipe(), RowMix(otherwise, {}).recipe()),
            Names{"data set 2: seed of its rows"});
}

// As above: a new column or tag must be added here.
TEST_F(MixRecipe, TellsHowRowsAreRead) {
  const auto& [kind, prompt, query, response, history, messages, system, tools, chosen, rejected, judgement,
               role, content, user, assistant, observation, function, system_tag, media, any_role,
               any_order] = RowFormat();
  EXPECT_TRUE(kind == RowFormat::Kind::alpaca && media.empty() && !any_role && !any_order);
  for (const std::string* column : {&prompt, &query, &response, &messages, &role, &content, &user, &assistant,
                                    &observation, &function, &system_tag}) {
    EXPECT_FALSE(column->empty());
  }
  EXPECT_TRUE(history.empty() && system.empty() && tools.empty() && chosen.empty() && rejected.empty() &&
              judgement.empty());
  const std::vector<std::string RowFormat::*> texts{
      &RowFormat::prompt,          &RowFormat::query,        &RowFormat::response,
      &RowFormat::history,         &RowFormat::messages,     &RowFormat::system,
      &RowFormat::tools,           &RowFormat::chosen,       &RowFormat::rejected,
      &RowFormat::role_tag,        &RowFormat::content_tag,  &RowFormat::user_tag,
      &RowFormat::assistant_tag,   &RowFormat::function_tag, &RowFormat::system_tag,
      &RowFormat::observation_tag, &RowFormat::judgement};
  std::set<Recipe> seen;
  const auto recipe_of = [&](const std::function<void(RowFormat&)>& change) {
    auto sources = sources_;
    change(sources[1].format);
    return RowMix(sources, {}).recipe();
  };
  EXPECT_TRUE(seen.insert(recipe_of([](RowFormat&) {})).second);
  for (const auto text : texts) {
    EXPECT_TRUE(seen.insert(recipe_of([text](RowFormat& f) { f.*text = "other"; })).second);
  }
  EXPECT_TRUE(seen.insert(recipe_of([](RowFormat& f) { f.kind = RowFormat::Kind::pair; })).second);
  EXPECT_TRUE(seen.insert(recipe_of([](RowFormat& f) { f.media = {"images"}; })).second);
  EXPECT_TRUE(seen.insert(recipe_of([](RowFormat& f) { f.any_role = !f.any_role; })).second);
  EXPECT_EQ(seen.size(), texts.size() + 4);
}

TEST(FileState, ChangesWithSizeSecondAndNanosecond) {
  const test::TemporaryFolder folder("state");
  const std::string path = folder / "f";
  test::spill(path, "abc");
  const auto written = [&](time_t seconds, long nanoseconds) {
    const timespec times[2] = {{seconds, nanoseconds}, {seconds, nanoseconds}};
    EXPECT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
    return file_state(path);
  };
  EXPECT_EQ(written(1700000000, 5), "bytes 3, changed 1700000000.000000005");
  EXPECT_EQ(written(1700000001, 123456789), "bytes 3, changed 1700000001.123456789");
  test::spill(path, "abcd");
  EXPECT_TRUE(file_state(path).starts_with("bytes 4, changed "));
  EXPECT_THROW(file_state(folder / "none"), Error);
}

// ---- cached tokens ----

class Kept : public testing::Test {
 protected:
  Kept() : folder_("kept"), cache_(folder_ / "below/it") {}
  test::TemporaryFolder folder_;
  TokenCache cache_;
  Encoded set_ = test::set_of(20, 9);
};

TEST_F(Kept, TokensAreFoundByTheirRecipeAlone) {
  const Recipe recipe{{"template", "qwen"}, {"cutoff_len", "16"}, {"odd \n\"name", "v\xff"}};
  bool damaged = true;
  EXPECT_FALSE(cache_.load(recipe, &damaged));
  EXPECT_FALSE(damaged) << "it is not there";
  cache_.store(recipe, set_);
  const auto found = cache_.load(recipe, &damaged);
  ASSERT_TRUE(found);
  EXPECT_FALSE(damaged);
  EXPECT_EQ(found->fingerprint(), set_.fingerprint());
  EXPECT_EQ(found->rows, set_.rows);
  for (const Recipe& other : {Recipe{{"template", "qwen"}, {"cutoff_len", "17"}, {"odd \n\"name", "v\xff"}},
                              Recipe{{"template", "qwen"}, {"cutoff_le", "n16"}, {"odd \n\"name", "v\xff"}},
                              Recipe{{"template", "qwen"}, {"cutoff_len", "16"}}, Recipe{}}) {
    EXPECT_NE(TokenCache::key(other), TokenCache::key(recipe));
    EXPECT_FALSE(cache_.load(other));
  }
  EXPECT_EQ(TokenCache::key(recipe), TokenCache::key(Recipe(recipe)));
}

TEST_F(Kept, AFileOfAnotherRecipeOrWithOtherBytesIsDamaged) {
  const Recipe recipe{{"a", "1"}}, other{{"a", "2"}};
  cache_.store(recipe, set_);
  const std::string whole = test::slurp(cache_.path(recipe));
  bool damaged = false;
  test::spill(cache_.path(other), whole);
  EXPECT_FALSE(cache_.load(other, &damaged)) << "its name says one recipe and its bytes another";
  EXPECT_TRUE(damaged);
  // Every byte matters: first line, hash, length, recipe, tokens, labels, boundaries, rows, counts.
  int noticed = 0;
  for (std::size_t at = 0; at < whole.size(); ++at, ++noticed) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    test::spill(cache_.path(recipe), bytes);
    damaged = false;
    ASSERT_FALSE(cache_.load(recipe, &damaged)) << at;
    ASSERT_TRUE(damaged) << at;
  }
  EXPECT_GT(noticed, 500);
  for (const std::size_t size : {std::size_t{0}, std::size_t{15}, std::size_t{16}, std::size_t{47},
                                 std::size_t{55}, std::size_t{56}, whole.size() - 1}) {
    test::spill(cache_.path(recipe), whole.substr(0, size));
    EXPECT_FALSE(cache_.load(recipe, &damaged)) << size;
    EXPECT_TRUE(damaged);
  }
  test::spill(cache_.path(recipe), whole);
  EXPECT_TRUE(cache_.load(recipe, &damaged));
  EXPECT_FALSE(damaged);
}

TEST_F(Kept, TheNearestRecipeTellsWhatIsNew) {
  EXPECT_TRUE(cache_.nearest_differences({{"a", "1"}}).empty()) << "there is no folder";
  const Recipe far{{"template", "a"}, {"cutoff_len", "1"}, {"x", "1"}},
      near{{"template", "qwen"}, {"cutoff_len", "16"}, {"gone", "was here"}};
  cache_.store(far, set_);
  EXPECT_EQ(cache_.nearest_differences({{"template", "qwen"}, {"cutoff_len", "17"}}).size(), 3u);
  cache_.store(near, set_);
  using Lines = std::vector<std::string>;
  EXPECT_EQ(cache_.nearest_differences({{"template", "qwen"}, {"cutoff_len", "17"}, {"new", "is here"}}),
            (Lines{"cutoff_len: was '16', is '17'", "new: is 'is here'", "gone: was 'was here'"}));
  EXPECT_EQ(cache_.nearest_differences(
                {{"template", "qwen"}, {"cutoff_len", "16"}, {"gone", std::string(81, 'y')}}),
            Lines{"gone: was 'was here', is '" + std::string(80, 'y') + "…'"});
  EXPECT_EQ(cache_.nearest_differences(
                {{"template", "qwen"}, {"cutoff_len", "16"}, {"gone", std::string(80, 'y')}}),
            Lines{"gone: was 'was here', is '" + std::string(80, 'y') + "'"});
  // Files of other programs are ignored, and so is the file of the recipe itself.
  test::spill(folder_ / "below/it/tokens-x.bin", "no tokens");
  test::spill(folder_ / "below/it/notes.txt", test::slurp(cache_.path(near)));
  fs::remove(cache_.path(far));
  EXPECT_TRUE(cache_.nearest_differences(near).empty());
  fs::remove(cache_.path(near));
  EXPECT_TRUE(cache_.nearest_differences(far).empty());
}

}  // namespace
}  // namespace octet::data::recipe_test
