// Sequences in a paged cache, without a model. Every token finds the keys of all tokens that it reads, from
// any sequence. Answers do not depend on the size of the cache.
#include "sequences.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <string>
#include <utility>

namespace octet::generate::sequences_test {
namespace {

using Tokens = std::vector<std::int32_t>;

/// Returns a simulated key of the last of some tokens. It depends on all of them.
std::uint64_t key_of(std::uint64_t before, std::int32_t token) {
  std::uint64_t x = before * 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(token) + 1;
  x ^= x >> 29;
  return x * 0xBF58476D1CE4E5B9u;
}

constexpr std::uint64_t kFirst = 7;

struct Outcome {
  std::vector<Tokens> answers;  ///< by request
  std::int64_t shared = 0, put_back = 0, recomputed = 0, computed = 0, most_held = 0, passes = 0;
  std::int64_t most_in_flight = 0, in_vain = 0;
};

/// How passes follow each other.
struct Passes {
  std::size_t room = 0;
  std::int64_t batches = 1;  ///< passes in flight, each with a part of the sequences
  bool behind = false;       ///< each begins before the results of the previous pass are known
  bool stops = false;        ///< some answers end early
};

/// A cache of simulated keys, without a model.
class World {
 public:
  World(std::int64_t slots, std::int64_t capacity, const CacheShape& shape)
      : shape_(shape),
        sequences_(slots, capacity, shape),
        pitch_((capacity + shape.page_tokens - 1) / shape.page_tokens),
        rows_(static_cast<std::size_t>(shape.pages * shape.page_tokens)),
        table_(static_cast<std::size_t>(slots * pitch_) * shape.windows.size(), -1) {}

  Sequences& sequences() { return sequences_; }

  Outcome answer(const std::vector<Tokens>& prompts, std::int64_t max_new, const Passes& passes) {
    run_ = {.answers = std::vector<Tokens>(prompts.size())};
    stops_ = passes.stops;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      Sequence s{.request = i};
      s.asked = {prompts[i], i};
      s.options.max_new = max_new;
      s.tokens = prompts[i];
      sequences_.submit(std::move(s));
    }
    std::deque<Flight> flights;
    while (sequences_.busy() && !testing::Test::HasFatalFailure()) {
      while (std::ssize(flights) < (passes.behind ? 2 : passes.batches)) {
        for (const PageCopy& c : sequences_.admit()) copies_.push_back(c);
        PassTokens pass = passes.behind && !flights.empty()
                              ? sequences_.next_behind(passes.room)
                              : sequences_.next_pass(passes.room, passes.batches);
        if (pass.ids.empty()) break;
        flights.push_back({std::exchange(copies_, {}), sequences_.take_changes(), std::move(pass)});
        run_.most_in_flight = std::max<std::int64_t>(run_.most_in_flight, std::ssize(flights));
      }
      land(flights.front());
      flights.pop_front();
      ++run_.passes;
    }
    run_.shared = sequences_.shared();
    run_.put_back = sequences_.put_back();
    run_.recomputed = sequences_.recomputed();
    run_.most_held = sequences_.pages().most_held();
    EXPECT_EQ(sequences_.pages().free(), shape_.pages) << "whoever has ended holds nothing";
    return run_;
  }

 private:
  struct Flight {
    std::vector<PageCopy> copies;
    std::vector<PageChange> changes;
    PassTokens pass;
  };
  void land(Flight& flight) {
    for (std::int32_t& id : flight.pass.ids) {
      if (id < 0) id = made_.at(static_cast<std::size_t>(-1 - id));
    }
    for (const PageCopy& c : flight.copies) copy(c);
    for (const PageChange& c : flight.changes)
      entry(c.slot, static_cast<std::size_t>(c.group), c.index) = c.page;
    compute(flight.pass);
    made_.clear();
    for (Sequence* s : flight.pass.sequences) {
      made_.push_back(next_of(*s));
      if (sequences_.land(*s)) {
        extend(*s);
      } else {
        ++run_.in_vain;
      }
    }
  }
  std::int32_t& entry(std::int64_t slot, std::size_t group, std::int64_t index) {
    return table_[(static_cast<std::size_t>(slot) * shape_.windows.size() + group) *
                      static_cast<std::size_t>(pitch_) +
                  static_cast<std::size_t>(index)];
  }
  std::uint64_t& row(std::int64_t slot, std::size_t group, std::int64_t position) {
    const std::int64_t page = entry(slot, group, position / shape_.page_tokens);
    return rows_.at(static_cast<std::size_t>(page * shape_.page_tokens + position % shape_.page_tokens));
  }
  void copy(const PageCopy& c) {
    for (std::int64_t i = 0; i < c.tokens; ++i) {
      rows_[static_cast<std::size_t>(c.to * shape_.page_tokens + i)] =
          rows_[static_cast<std::size_t>(c.from * shape_.page_tokens + i)];
    }
  }
  // First all keys are written, then all sequences read. A key depends on the previous key, so on all earlier
  // tokens.
  void compute(const PassTokens& pass) {
    run_.computed += std::ssize(pass.ids);
    for (std::size_t i = 0; i < pass.ids.size(); ++i) {
      const std::int64_t position = pass.positions[i];
      for (std::size_t g = 0; g < shape_.windows.size(); ++g) {
        const std::uint64_t before = position > 0 ? row(pass.slots[i], g, position - 1) : kFirst;
        row(pass.slots[i], g, position) = key_of(before, pass.ids[i]);
      }
    }
    for (const Sequence* s : pass.sequences) {
      if (!s->ended) look(*s);
    }
  }
  // Checks the keys that the newest token of a sequence reads.
  void look(const Sequence& s) {
    std::vector<std::uint64_t> keys;
    for (const std::int32_t token : s.tokens)
      keys.push_back(key_of(keys.empty() ? kFirst : keys.back(), token));
    const auto last = std::ssize(s.tokens) - 1;
    for (std::size_t g = 0; g < shape_.windows.size(); ++g) {
      const std::int64_t window = shape_.windows[g];
      for (std::int64_t j = window > 0 ? std::max<std::int64_t>(0, last - window + 1) : 0; j <= last; ++j) {
        ASSERT_EQ(row(s.slot, g, j), keys[static_cast<std::size_t>(j)])
            << "request " << s.request << ", group " << g << ", token " << j << " of " << last + 1;
      }
    }
  }
  std::int32_t next_of(const Sequence& s) const {
    std::uint64_t x = s.request;
    for (const std::int32_t token : s.tokens) x = key_of(x, token);
    return static_cast<std::int32_t>(x % 5);
  }
  // An answer stops with a token that is not part of it, or with a token that is.
  void extend(Sequence& s) {
    const std::int32_t token = next_of(s);
    const std::size_t said = s.answer.ids.size();
    if (stops_ && token == 4 && said % 3 == 2) return sequences_.end(s);
    s.tokens.push_back(token);
    s.answer.ids.push_back(token);
    sequences_.learn(s);
    run_.answers[s.request] = s.answer.ids;
    if (std::ssize(s.answer.ids) == s.options.max_new || (stops_ && token == 3 && said % 5 == 4))
      sequences_.end(s);
  }

  CacheShape shape_;
  Sequences sequences_;
  std::int64_t pitch_;
  std::vector<std::uint64_t> rows_;
  std::vector<std::int32_t> table_;
  std::vector<PageCopy> copies_;
  Tokens made_;  ///< for the rows of the last finished pass
  bool stops_ = false;
  Outcome run_;
};

/// Prompts of up to `longest` tokens. Many share a prefix.
std::vector<Tokens> random_prompts(unsigned seed, std::size_t count, std::size_t longest) {
  std::mt19937 random(seed);
  std::vector<Tokens> prompts;
  for (std::size_t i = 0; i < count; ++i) {
    Tokens prompt;
    if (!prompts.empty() && random() % 3 > 0) {
      prompt = prompts[random() % prompts.size()];
      prompt.resize(1 + random() % prompt.size());
    }
    const std::size_t length = std::max<std::size_t>(prompt.size(), 1 + random() % longest);
    while (prompt.size() < length) prompt.push_back(static_cast<std::int32_t>(random() % 3));
    prompts.push_back(prompt);
  }
  return prompts;
}

TEST(Sequences, EveryTokenFindsWhatItSeesInCachesOfAnySize) {
  constexpr std::int64_t kCapacity = 90, kNew = 20;
  for (const std::vector<std::int64_t>& windows :
       {std::vector<std::int64_t>{0}, {0, 0, 0}, {7}, {0, 12}, {12, 5, 0, 33}}) {
    for (const std::int64_t page_tokens : {1, 4, 16, 64}) {
      for (unsigned seed = 0; seed < 12; ++seed) {
        const auto prompts = random_prompts(seed, 40, kCapacity - kNew);
        CacheShape shape{.windows = windows, .page_tokens = page_tokens, .piece = 11 + seed % 3};
        const std::int64_t one = pages_of_sequence(shape, kCapacity);
        shape.pages = 8 * one;
        shape.shared = false;
        const Outcome alone = World(1, kCapacity, shape).answer(prompts, kNew, {.room = 64});
        if (HasFatalFailure()) return;
        EXPECT_EQ(alone.shared, 0);
        shape.shared = true;
        for (const std::int64_t pages : {one, one + 1, 2 * one, 3 * one + 2, 8 * one}) {
          shape.pages = pages;
          for (const std::int64_t slots : {1, 3, 8}) {
            const Outcome run = World(slots, kCapacity, shape).answer(prompts, kNew, {.room = 16});
            ASSERT_FALSE(HasFatalFailure()) << windows.size() << " groups, pages of " << page_tokens << ", "
                                            << pages << " pages, " << slots << " slots, seed " << seed;
            EXPECT_EQ(run.answers, alone.answers);
            EXPECT_LE(run.most_held, pages);
            // All slots fit at their longest: no sequence is put back.
            if (pages >= slots * one) {
              EXPECT_EQ(run.put_back, 0);
            }
            std::int64_t tokens = 0;
            for (const Tokens& prompt : prompts) tokens += std::ssize(prompt) + kNew - 1;
            EXPECT_EQ(run.computed, tokens - run.shared + run.recomputed);
          }
        }
      }
    }
  }
}

/// Calls check(prompts, shape, pages of a sequence) for several windows, page sizes and seeds of prompts.
template <typename Check>
void each_cache(std::int64_t capacity, std::size_t longest, const Check& check) {
  for (const std::vector<std::int64_t>& windows : {std::vector<std::int64_t>{0}, {0, 12}, {12, 5, 0, 33}}) {
    for (const std::int64_t page_tokens : {1, 4, 16}) {
      for (unsigned seed = 0; seed < 6 && !testing::Test::HasFatalFailure(); ++seed) {
        SCOPED_TRACE(std::to_string(windows.size()) + " groups, pages of " + std::to_string(page_tokens) +
                     ", seed " + std::to_string(seed));
        CacheShape shape{.windows = windows, .page_tokens = page_tokens, .piece = 11 + seed % 3};
        const std::int64_t one = pages_of_sequence(shape, capacity);
        shape.pages = 8 * one;
        check(random_prompts(seed, 40, longest), shape, one);
      }
    }
  }
}

// With several stages, several passes are in flight, each with a part of the sequences.
TEST(Sequences, PassesOnTheirWayFindWhatTheySeeInCachesOfAnySize) {
  constexpr std::int64_t kCapacity = 90, kNew = 20;
  each_cache(kCapacity, kCapacity - kNew, [&](const auto& prompts, CacheShape shape, std::int64_t one) {
    const Outcome alone = World(1, kCapacity, shape).answer(prompts, kNew, {.room = 64});
    for (const bool shared : {true, false}) {
      shape.shared = shared;
      for (const std::int64_t pages : {one, one + 1, 2 * one, 8 * one}) {
        shape.pages = pages;
        for (const std::int64_t batches : {2, 3, 5}) {
          const Outcome run =
              World(8, kCapacity, shape).answer(prompts, kNew, {.room = 16, .batches = batches});
          ASSERT_FALSE(HasFatalFailure()) << pages << " pages, " << batches << " batches";
          EXPECT_EQ(run.answers, alone.answers);
          EXPECT_LE(run.most_held, pages);
          if (pages == 8 * one) {
            EXPECT_EQ(run.most_in_flight, batches);
          }
        }
      }
    }
  });
}

// A pass that begins before the results of the previous pass takes unknown tokens. Some are discarded.
TEST(Sequences, PassesBehindOthersFindWhatTheySeeInCachesOfAnySize) {
  constexpr std::int64_t kCapacity = 90, kNew = 20;
  std::int64_t in_vain = 0, put_back = 0;
  each_cache(kCapacity, kCapacity - kNew, [&](const auto& prompts, CacheShape shape, std::int64_t one) {
    for (const bool stops : {false, true}) {
      shape.pages = 8 * one;
      const Outcome alone = World(1, kCapacity, shape).answer(prompts, kNew, {.room = 64, .stops = stops});
      for (const bool shared : {true, false}) {
        shape.shared = shared;
        for (const std::int64_t pages : {one, one + 1, 2 * one, 8 * one}) {
          shape.pages = pages;
          for (const std::int64_t slots : {1, 8}) {
            const Outcome run = World(slots, kCapacity, shape)
                                    .answer(prompts, kNew, {.room = 16, .behind = true, .stops = stops});
            ASSERT_FALSE(HasFatalFailure()) << pages << " pages, " << slots << " slots";
            EXPECT_EQ(run.answers, alone.answers);
            EXPECT_LE(run.most_held, pages);
            EXPECT_EQ(run.most_in_flight, 2);
            if (!stops) {
              EXPECT_EQ(run.in_vain, 0) << "what ends by its length is known before";
            }
            in_vain += run.in_vain;
            put_back += run.put_back;
          }
        }
      }
    }
  });
  EXPECT_GT(in_vain, 1000);
  EXPECT_GT(put_back, 1000);
}

// Passes take one sequence after the other. A decoding sequence is not taken as if it were a prompt.
TEST(Sequences, OfThoseWhoAreAnsweredAPassTakesAPartAndTheOthersAreForTheNextOne) {
  Sequences sequences(4, 40, {.windows = {0}, .page_tokens = 4, .pages = 100, .piece = 8});
  for (std::int32_t i = 0; i < 4; ++i) {
    Sequence s;
    s.asked.prompt = s.tokens = Tokens(3, i);
    s.options.max_new = 9;
    sequences.submit(std::move(s));
  }
  EXPECT_TRUE(sequences.admit().empty());
  const PassTokens prompts = sequences.next_pass(64, 2);
  ASSERT_EQ(prompts.sequences.size(), 4u);
  for (Sequence* s : prompts.sequences) {
    s->tokens.push_back(9);
    s->answer.ids.push_back(9);
    sequences.land(*s);
  }
  for (int batch = 0; batch < 2; ++batch) {
    const PassTokens pass = sequences.next_pass(64, 2);
    EXPECT_EQ(pass.ids.size(), 2u);
    EXPECT_EQ(pass.alone, 2);
    EXPECT_EQ(pass.sequences.size(), 2u);
  }
  EXPECT_TRUE(sequences.next_pass(64, 2).ids.empty()) << "all are on their way";
}

TEST(Sequences, ASequenceTakesPagesAsItGrowsAndGivesBackWhatLiesBehindItsWindow) {
  CacheShape shape{.windows = {0}, .page_tokens = 4, .pages = 100, .piece = 8};
  EXPECT_EQ(World(2, 80, shape).answer({Tokens(9, 1)}, 4, {.room = 16}).most_held, 3)
      << "12 tokens have keys";
  EXPECT_EQ(World(2, 80, shape).answer({Tokens(9, 1)}, 5, {.room = 16}).most_held, 4);
  shape.windows = {6};
  // A piece of 8 tokens and the 5 tokens before it need at most 4 pages.
  EXPECT_EQ(pages_of_group(shape, 0, 80), 4);
  EXPECT_LE(World(2, 80, shape).answer({Tokens(60, 1)}, 19, {.room = 16}).most_held, 4);
  shape.windows = {6, 0};
  EXPECT_EQ(pages_of_sequence(shape, 80), 4 + 20);
  EXPECT_LE(World(2, 80, shape).answer({Tokens(60, 1)}, 19, {.room = 16}).most_held, 4 + 20);
}

TEST(Sequences, AFullCachePutsTheYoungestBack) {
  // Sequences of 12 tokens begin in 16 pages of four tokens, and grow to 8 pages each.
  CacheShape shape{.windows = {0}, .page_tokens = 4, .pages = 16, .piece = 64, .shared = false};
  std::vector<Tokens> prompts;
  for (std::int32_t i = 0; i < 12; ++i) prompts.emplace_back(11, i);
  const Outcome run = World(12, 32, shape).answer(prompts, 21, {.room = 64});
  EXPECT_EQ(run.most_held, 16);
  EXPECT_GT(run.put_back, 0);
  EXPECT_GT(run.recomputed, 11);
  // An admitted sequence must not evict others, or be evicted, at once: few of the 12 x 31 tokens are lost.
  EXPECT_LE(run.put_back, 12);
  EXPECT_LT(run.recomputed, 12 * 31 / 2);
}

TEST(Sequences, AQuestionThatManyShareIsComputedOnce) {
  std::mt19937 random(1);
  Tokens question;
  for (int i = 0; i < 133; ++i) question.push_back(static_cast<std::int32_t>(random() % 50));
  std::vector<Tokens> prompts(60, question);
  for (Tokens& prompt : prompts) {
    while (prompt.size() < 140) prompt.push_back(static_cast<std::int32_t>(random() % 50));
  }
  for (const std::int64_t page_tokens : {4, 16, 64}) {
    for (const std::int64_t windows : {1, 2}) {
      CacheShape shape{.windows = {0}, .page_tokens = page_tokens, .piece = 64};
      if (windows == 2) shape.windows.push_back(40);
      shape.pages = 8 * pages_of_sequence(shape, 160);
      const Outcome run = World(8, 160, shape).answer(prompts, 6, {.room = 64});
      EXPECT_LE(60 * 140 - run.shared, 60 * 140 * 7 / 100) << "pages of " << page_tokens;
      EXPECT_EQ(run.put_back, 0);
    }
  }
}

// Like in a benchmark: all prompts once, and again when the cache is full.
TEST(Sequences, PromptsAreFoundAgainInACacheThatTheyFill) {
  std::vector<Tokens> prompts;
  for (std::int32_t i = 0; i < 6; ++i) prompts.emplace_back(30, i);
  for (const std::vector<std::int64_t>& windows : {std::vector<std::int64_t>{0}, {0, 0}}) {
    CacheShape shape{.windows = windows, .page_tokens = 4, .piece = 64};
    shape.pages = 6 * pages_of_sequence(shape, 32);
    World world(6, 32, shape);
    EXPECT_EQ(world.answer(prompts, 1, {.room = 64}).shared, 0);
    const Outcome again = world.answer(prompts, 2, {.room = 64});
    EXPECT_EQ(again.shared, 6 * 29);
    EXPECT_EQ(again.passes, 2) << "all go on together";
  }
}

TEST(Sequences, TextsTakeTheirPagesAndLeaveNone) {
  const CacheShape shape{.windows = {0, 6}, .page_tokens = 4, .pages = 24, .piece = 8};
  Sequences sequences(3, 80, shape);
  for (int round = 0; round < 2; ++round) {
    sequences.begin_text(Tokens(77, 3));
    std::size_t taken = 0;
    while (taken < 77) {
      const PassTokens pass = sequences.next_of_text(8);
      EXPECT_EQ(pass.positions.front(), static_cast<std::int32_t>(taken));
      EXPECT_EQ(pass.rows.size(), pass.ids.size());
      taken += pass.ids.size();
    }
    EXPECT_TRUE(sequences.busy());
    sequences.end_text();
    EXPECT_FALSE(sequences.busy());
    EXPECT_EQ(sequences.pages().free(), 24);
  }
}

}  // namespace
}  // namespace octet::generate::sequences_test
