// The order of free pages, the nearest prefix, padded sizes of passes, bytes read by a step, and limits of
// options.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "decoder_options.h"
#include "octet/base/error.h"
#include "octet/generate/decoder_bench.h"
#include "octet/generate/sampling.h"
#include "octet/model/shapes.h"
#include "paged_cache.h"
#include "pass_runner.h"

namespace octet::generate::pages_test {
namespace {

TEST(PagePool, TakesEmptyPagesFirstAndThenThoseThatNobodyHeldForLongest) {
  PagePool pool(4);
  EXPECT_EQ(pool.pages(), 4);
  EXPECT_EQ(pool.free(), 4);
  for (std::int32_t page = 0; page < 4; ++page) EXPECT_EQ(pool.take(), page);
  EXPECT_EQ(pool.take(), PagePool::kNone);
  EXPECT_FALSE(pool.has_empty());
  pool.hold(1);
  EXPECT_EQ(pool.holders(1), 2);
  pool.give(1, true);
  EXPECT_EQ(pool.free(), 0) << "somebody has it still";
  pool.give(2, true);
  pool.give(1, true);
  EXPECT_FALSE(pool.has_empty()) << "what they hold may be asked for";
  pool.give(3, false);
  EXPECT_TRUE(pool.has_empty());
  EXPECT_EQ(pool.free(), 3);
  EXPECT_EQ(pool.most_held(), 4);
  EXPECT_EQ(pool.take(), 3);
  pool.hold(2);  // reused
  EXPECT_EQ(pool.take(), 1);
  EXPECT_EQ(pool.take(), PagePool::kNone);
  pool.give(2, true);
  pool.give(1, true);
  EXPECT_EQ(pool.take(), 2) << "given back before the other";
  EXPECT_EQ(pool.holders(2), 1);
  EXPECT_EQ(pool.holders(1), 0);
  EXPECT_ANY_THROW(pool.give(1, true));
  PagePool few(4);
  for (int i = 0; i < 3; ++i) few.take();
  few.give(0, false);
  few.give(1, false);
  EXPECT_EQ(few.take(), 3) << "those that are given back come last";
  EXPECT_EQ(few.most_held(), 3) << "not as many as now";
}

TEST(PrefixTree, FindsTheLongestCommonBeginning) {
  using Ids = std::vector<std::int32_t>;
  PrefixTree tree(1, 8);
  const std::int32_t a = tree.use(PrefixTree::kRoot, Ids{1, 2, 3}),
                     b = tree.use(PrefixTree::kRoot, Ids{1, 2, 5, 6}),
                     c = tree.use(PrefixTree::kRoot, Ids{4});
  EXPECT_EQ(tree.use(PrefixTree::kRoot, Ids{1, 2, 3}), a);
  EXPECT_EQ(tree.find(PrefixTree::kRoot, Ids{1, 2}), PrefixTree::kNone);
  const auto nearest = [&](const Ids& ids) {
    const auto found = tree.nearest(PrefixTree::kRoot, ids);
    return std::pair(found.node, found.tokens);
  };
  EXPECT_EQ(nearest({1, 2, 3, 4}), std::pair(a, std::size_t{3}));
  EXPECT_EQ(nearest({1, 2, 5, 7}), std::pair(b, std::size_t{3})) << "it comes before";
  EXPECT_EQ(nearest({1, 2, 5, 5}), std::pair(b, std::size_t{3})) << "it comes behind";
  EXPECT_EQ(nearest({4, 9}), std::pair(c, std::size_t{1}));
  EXPECT_EQ(nearest({9}).first, PrefixTree::kNone);
  EXPECT_EQ(nearest({}).second, 0u);
  // A node is removed with its last user, page and child, and then its parent.
  const std::int32_t below = tree.use(c, Ids{7});
  tree.leave(c);
  EXPECT_EQ(tree.find(PrefixTree::kRoot, Ids{4}), c) << "it has a child";
  tree.put(below, 0, 5);
  tree.leave(below);
  EXPECT_EQ(tree.find(c, Ids{7}), below) << "it has a page";
  EXPECT_TRUE(tree.has(5));
  tree.forget(5);
  EXPECT_FALSE(tree.has(5));
  EXPECT_EQ(tree.find(PrefixTree::kRoot, Ids{4}), PrefixTree::kNone);
  tree.leave(a);
  EXPECT_EQ(tree.find(PrefixTree::kRoot, Ids{1, 2, 3}), a) << "it had two users";
  tree.leave(a);
  EXPECT_EQ(tree.find(PrefixTree::kRoot, Ids{1, 2, 3}), PrefixTree::kNone);
}

TEST(PrefixTree, ANodeIsWholeWithAPageOfEveryGroup) {
  PrefixTree tree(2, 8);
  const std::int32_t node = tree.use(PrefixTree::kRoot, std::vector<std::int32_t>{1});
  EXPECT_FALSE(tree.whole(node));
  tree.put(node, 1, 6);
  EXPECT_FALSE(tree.whole(node));
  tree.put(node, 1, 7);
  EXPECT_EQ(tree.page(node, 1), 6) << "the first stays";
  EXPECT_FALSE(tree.has(7));
  tree.put(node, 0, 3);
  EXPECT_TRUE(tree.whole(node));
  tree.forget(6);
  EXPECT_FALSE(tree.whole(node));
  EXPECT_EQ(tree.page(node, 0), 3);
}

TEST(RepeatedPasses, NumbersAreRoundedUpToFewOnes) {
  const RepeatedPasses passes(nullptr, 100);
  struct Case {
    std::int64_t tokens, made;
  };
  for (const auto& [tokens, made] :
       {Case{1, 1}, Case{3, 3}, Case{4, 4}, Case{5, 6}, Case{7, 8}, Case{8, 8}, Case{9, 12}, Case{13, 16},
        Case{16, 16}, Case{17, 24}, Case{57, 64}, Case{64, 64}, Case{65, 96}, Case{96, 96}, Case{97, 100},
        Case{100, 100}, Case{130, 130}}) {
    EXPECT_EQ(passes.rounded(tokens), made) << tokens;
  }
  EXPECT_FALSE(passes.repeats(1)) << "on no stream";
}

TEST(StepBytes, OfTheCacheAreWhatEachLayerSees) {
  DecoderOptions options;
  options.architecture = model::find_shape("llama-3.1-8b");
  options.recipe.compute = DType::bf16;
  const double token = 2.0 * 32 * 8 * 128 * 2;
  EXPECT_EQ(step_cache_bytes(options, 0), token);
  EXPECT_EQ(step_cache_bytes(options, 99), 100 * token);
  options.fp8_cache = true;
  EXPECT_EQ(step_cache_bytes(options, 99), 100 * 2.0 * 32 * 8 * (128 + 4));
}

TEST(CacheSize, APieceIsWhatAPassTakesOfASequence) {
  const auto piece = [](std::int64_t prefill, std::int64_t score_rows) {
    DecoderOptions options;
    options.prefill = prefill;
    options.score_rows = score_rows;
    return piece_of(options);
  };
  EXPECT_EQ(piece(512, 0), 512);
  EXPECT_EQ(piece(512, 600), 600);
  EXPECT_EQ(piece(4096, 0), 4096);
  EXPECT_EQ(piece(0, 0), 1);
  // Pages of a window are held for all of them.
  DecoderOptions windows;
  windows.architecture = model::find_shape("gemma-3-27b");
  for (const auto& [prefill, expected] : {std::pair{4096, 512}, {512, 512}, {100, 100}}) {
    windows.prefill = prefill;
    EXPECT_EQ(piece_of(windows), expected);
  }
}

TEST(CacheSize, OneSequenceMustFitAndAByteLessIsRefused) {
  DecoderOptions options;
  options.architecture = model::find_shape("llama-3.1-8b");
  options.recipe.compute = DType::bf16;
  options.sequences = 3;
  options.share_prefixes = false;
  const model::KvLayout layout = cache_layout(options);
  EXPECT_EQ(asked_cache(options, layout).pages, 3 * 16) << "all of them, where nothing is said";
  EXPECT_FALSE(asked_cache(options, layout).shared);
  EXPECT_EQ(asked_cache(options, layout).piece, 512);
  options.cache_bytes = least_cache_bytes(options);
  EXPECT_EQ(asked_cache(options, layout).pages, 16);
  options.cache_bytes += layout.page_bytes() - 1;
  EXPECT_EQ(asked_cache(options, layout).pages, 16);
  options.cache_bytes = least_cache_bytes(options) - 1;
  EXPECT_THROW(asked_cache(options, layout), Error);
}

TEST(Sampling, TheEndsOfEveryRangeAreAllowed) {
  for (const Sampling& at_its_end :
       {Sampling{.temperature = 0}, Sampling{.temperature = 100}, Sampling{.top_p = 1},
        Sampling{.top_p = 1e-300}, Sampling{.top_k = 1000000000}, Sampling{.min_p = 0}, Sampling{.min_p = 1},
        Sampling{.repetition_penalty = 100}, Sampling{.repetition_penalty = 1e-300}}) {
    EXPECT_NO_THROW(require_possible(at_its_end));
  }
  EXPECT_THROW(require_possible({.repetition_penalty = 100.5}), Error);
  EXPECT_THROW(require_possible({.top_k = 1000000001}), Error);
}

TEST(Sampling, WhatMayBeDrawnAtTheEdges) {
  const float none = -std::numeric_limits<float>::infinity();
  const std::vector<float> logits{none, std::log(4.0f), std::log(4.0f), std::log(2.0f), none};
  const auto ids = [&](const Sampling& sampling) {
    std::vector<std::int32_t> all;
    for (const Candidate& c : candidates(logits, sampling)) all.push_back(c.id);
    return all;
  };
  using Ids = std::vector<std::int32_t>;
  EXPECT_EQ(ids({.temperature = 1}), (Ids{1, 2, 3})) << "what is impossible is never drawn";
  EXPECT_EQ(ids({.temperature = 1, .top_k = 5}), (Ids{1, 2, 3})) << "as many as there are";
  EXPECT_EQ(ids({.temperature = 1, .top_k = 1}), (Ids{1, 2}));
  EXPECT_EQ(ids({.temperature = 1, .top_k = 3}), (Ids{1, 2, 3}));
  EXPECT_EQ(ids({.temperature = 1, .top_p = 0.39}), Ids{1}) << "the lower of equals";
  EXPECT_EQ(candidates(std::vector<float>{0, 0, 0, 0}, {.temperature = 1, .top_p = 0.5}).size(), 2u)
      << "exactly the share is enough";
  EXPECT_EQ(ids({.temperature = 1, .top_p = 0.41}), (Ids{1, 2}));
  EXPECT_EQ(ids({.temperature = 1, .min_p = 1}), (Ids{1, 2})) << "at least this probable";
  EXPECT_EQ(ids({}), Ids{1}) << "the first of the largest";
  const std::vector<Candidate> kept = candidates(logits, {.temperature = 1, .top_k = 2});
  EXPECT_DOUBLE_EQ(kept[0].probability, 0.5) << "what is left makes one";
}

}  // namespace
}  // namespace octet::generate::pages_test
