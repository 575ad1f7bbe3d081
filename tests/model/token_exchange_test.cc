// Work that overlaps with the messages of split experts.
#include <cstring>
#include <map>

#include "model/support.h"
#include "octet/model/shapes.h"

namespace octet::model::token_exchange_test {
namespace {

using namespace testing;

/// A group of two ranks with equal tokens, from the view of the first. The results of the experts of the
/// other rank are zeros. Counts the GEMMs that are enqueued while an exchange is under way.
class Mirror final : public TokenExchange {
 public:
  explicit Mirror(const precision::Audit& audit) : audit_(audit) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::vector<std::int32_t> gather(std::span<const std::int32_t> own) override {
    std::vector<std::int32_t> all(own.begin(), own.end());
    all.insert(all.end(), own.begin(), own.end());
    return all;
  }
  void together(const std::function<void()>& act) override { act(); }
  void start(Stream&, const char* name, const Rows& rows) override {
    EXPECT_TRUE(name_.empty()) << name_ << " is under way";
    name_ = name;
    gemms_ = gemms();
    const auto bytes = [&](std::int64_t count) { return static_cast<std::size_t>(count) * rows.row_bytes; };
    const auto* from = static_cast<const std::byte*>(rows.from);
    auto* to = static_cast<std::byte*>(rows.to);
    const std::size_t own = bytes(rows.sent[0]), other = bytes(rows.received[1]);
    const bool away = rows.received[0] == rows.received[1];
    EXPECT_EQ(rows.sent[0], rows.received[0]);
    std::memcpy(to, from, own);
    std::memset(to + own, 0, other);
    if (away) std::memcpy(to + own, from, own);
  }
  void finish(Stream&) override {
    beside[name_] += gemms() - gemms_;
    name_.clear();
  }

  std::map<std::string, std::int64_t> beside;

 private:
  std::int64_t gemms() const {
    std::int64_t sum = 0;
    for (const precision::AuditCount& count : audit_.counts()) sum += count.gemms;
    return sum;
  }
  const precision::Audit& audit_;
  std::string name_;
  std::int64_t gemms_ = 0;
};

/// Returns the number of GEMMs that are enqueued during each exchange of a training pass.
std::map<std::string, std::int64_t> beside(std::int64_t shared) {
  Architecture a = find_shape("tiny");
  a.layers = 1;
  a.vocabulary = 64;
  a.hidden = 32;
  a.heads = {.q_heads = 2, .kv_heads = 1, .head_dim = 16};
  a.blocks.assign(1, {.mixes_experts = true});
  a.experts = {.count = 4, .taken = 2, .width = 32, .shared = shared};
  a.share.expert_size = 2;
  const precision::Recipe recipe;
  const auto device = make_cpu_device({.threads = 1});
  Arena arena(*device);
  const auto stream = device->make_stream({.name = "compute"});
  ReplicatedSource source(arena, a, recipe);
  precision::Audit audit(recipe);
  Mirror mirror(audit);
  Transformer core(a, recipe, arena,
                   {.max_tokens = 8, .max_length = 8, .training = true, .token_exchange = &mirror}, &audit);
  const std::vector<std::int32_t> ids{1, 5, 9, 2, 7, 3, 8, 4}, positions{0, 1, 2, 3, 4, 5, 6, 7}, cu{0, 8};
  auto* const loss = arena.reserve_as<double>("loss", 1);
  *loss = 0;
  source.start_step();
  core.train(
      source, *stream,
      {.ids = ids.data(),
       .positions = positions.data(),
       .label_rows = positions.data(),
       .targets = ids.data(),
       .labels = 8,
       .documents =
           {.cu_seqlens = cu.data(), .host_cu_seqlens = cu.data(), .count = 1, .max_length = 8, .tokens = 8}},
      loss, {});
  stream->synchronize();
  return mirror.beside;
}

TEST(TokenExchange, OverlapsWithTheSharedExpert) {
  using Counts = std::map<std::string, std::int64_t>;
  // Forward: gate and up, down, and the gate of the shared expert. Backward: two GEMMs for each.
  EXPECT_EQ(beside(32), (Counts{{"tokens for experts", 2},
                                {"results of experts", 0},
                                {"weights for experts", 0},
                                {"gradients for experts", 4},
                                {"gradients of weights", 0},
                                {"tokens for experts, again", 0},
                                {"gradients of experts", 0}}));
  for (const auto& [name, count] : beside(0)) EXPECT_EQ(count, 0) << name;
}

}  // namespace
}  // namespace octet::model::token_exchange_test
