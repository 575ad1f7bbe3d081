// The exchanges of a queue: order of the chunks, streams, marks and bytes.
#include "gpu/chunk_pipeline.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "messages/transport.h"
#include "octet/device/cpu.h"

namespace octet::comm::chunk_pipeline_test {
namespace {

using Chunk = ChunkPipeline::Chunk;
using Log = std::vector<std::string>;

/// An exchange that records its calls, and moves nothing.
class Recorded final : public Exchange {
 public:
  explicit Recorded(Log& log) : log_(log) {}
  void exchange(Stream& stream, std::span<const Outgoing> out, std::span<const Incoming>) override {
    note("exchange", stream, out.size());
  }
  bool takes_marks() const override { return marks; }
  void exchange_marked(Stream& stream, std::span<const Outgoing> out, std::span<const Incoming>,
                       const Marks& given) override {
    note("exchange" + text(given), stream, out.size());
  }
  bool in_steps() const override { return steps; }
  void offer(Stream& stream, std::span<const Incoming> in) override { note("offer", stream, in.size()); }
  void send(Stream& stream, std::span<const Outgoing> out) override { note("send", stream, out.size()); }
  void await(Stream& stream, std::span<const Incoming> in) override { note("await", stream, in.size()); }
  std::size_t eager_room() const override { return 64; }
  void send_eagerly(Stream& stream, std::span<const Outgoing> out, const Marks& given) override {
    note("send eagerly" + text(given), stream, out.size());
  }
  void take_eagerly(Stream& stream, std::span<const Piece> pieces,
                    const std::optional<CounterStep>& after) override {
    note(after ? "take, after" : "take", stream, pieces.size());
  }
  bool reaches(const void*, std::size_t) const override { return true; }

  bool marks = false, steps = false;

 private:
  static std::string text(const Marks& marks) {
    return std::string(marks.before ? ", before" : "") + (marks.after ? ", after" : "");
  }
  void note(const std::string& what, const Stream& stream, std::size_t messages) {
    log_.push_back(what + ": " + std::to_string(messages) +
                   (stream.name() == "queue" ? "" : " on the second stream"));
  }
  Log& log_;
};

/// Rank 0 of three ranks. Rank 2 is on another node.
class Pipeline : public testing::Test {
 protected:
  Pipeline() {
    set_nodes(place_, {0, 0, 1});
    pipeline_ = std::make_unique<ChunkPipeline>(*device_, *stream_, exchange_, *access_, place_);
  }
  ChunkPipeline::Act note(const std::string& what) {
    return [this, what](const Chunk& c) { log_.push_back(what + " " + std::to_string(c.number)); };
  }
  /// A message of a byte per element to rank 1, and of two bytes to rank 2.
  static PeerMessages messages(const Chunk& c) {
    const auto bytes = static_cast<std::size_t>(c.count);
    return {.out = {{.peer = 1, .bytes = bytes}, {.peer = 2, .bytes = 2 * bytes}},
            .in = {{.peer = 1, .bytes = bytes}}};
  }
  Log in_chunks(std::int64_t length, std::int64_t count, bool prepares = true) {
    pipeline_->in_chunks(length, count, prepares ? note("prepare") : ChunkPipeline::Act{}, messages,
                         note("finish"));
    return std::exchange(log_, {});
  }
  /// Returns the values of the counters of the marks: begun, done.
  std::vector<std::uint32_t> counters() {
    stream_->synchronize();
    return {begun_, done_};
  }
  void begin() {
    pipeline_->begin({.before = CounterStep{.counter = &begun_, .value = 7},
                      .after = CounterStep{.counter = &done_, .value = 7}});
  }

  std::uint32_t begun_ = 0, done_ = 0;
  std::atomic<std::int64_t> prepared_number_ = -1, arrived_number_ = -1, early_ = 0;
  Log log_;
  Place place_{.rank = 0, .size = 3};
  std::unique_ptr<Device> device_ = make_cpu_device({.threads = 1});
  std::unique_ptr<Stream> stream_ =
      device_->make_stream({.name = "queue", .mode = StreamOptions::Mode::worker});
  std::unique_ptr<PeerAccess> access_ = make_memory_peer_access([] {});
  Recorded exchange_{log_};
  std::unique_ptr<ChunkPipeline> pipeline_;
};

TEST_F(Pipeline, OneChunkStaysOnTheStreamOfTheQueue) {
  const Log expected{"prepare 0", "exchange: 2", "finish 0"};
  EXPECT_EQ(in_chunks(10, 10), expected);
  exchange_.steps = true;
  EXPECT_EQ(in_chunks(10, 3), expected);
}

TEST_F(Pipeline, AChunkIsCarriedWhileTheOneBeforeItIsFinished) {
  const Log expected{"prepare 0",
                     "exchange: 2 on the second stream",
                     "prepare 1",
                     "exchange: 2 on the second stream",
                     "finish 0",
                     "prepare 2",
                     "exchange: 2 on the second stream",
                     "finish 1",
                     "finish 2"};
  EXPECT_EQ(in_chunks(10, 21), expected);
}

TEST_F(Pipeline, InStepsOnlySendingUsesTheSecondStream) {
  exchange_.steps = true;
  const Log expected{"prepare 0",
                     "offer: 1",
                     "send: 2 on the second stream",
                     "prepare 1",
                     "offer: 1",
                     "send: 2 on the second stream",
                     "await: 1",
                     "finish 0",
                     "prepare 2",
                     "offer: 1",
                     "send: 2 on the second stream",
                     "await: 1",
                     "finish 1",
                     "await: 1",
                     "finish 2"};
  EXPECT_EQ(in_chunks(10, 30), expected);
}

TEST_F(Pipeline, StreamsWaitForThePreparationAndForTheBytesOfAChunk) {
  auto &prepared = prepared_number_, &arrived = arrived_number_, &early = early_;
  // Writes the number of a chunk late, and counts chunks that are used before they were written.
  const auto write = [](std::atomic<std::int64_t>& latest, Stream& stream, std::int64_t number) {
    cpu::enqueue(stream, [&latest, number] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      latest = number;
    });
  };
  const auto use = [&early](std::atomic<std::int64_t>& latest, Stream& stream, std::int64_t number) {
    cpu::enqueue(stream, [&latest, &early, number] { early += latest < number; });
  };
  pipeline_->in_chunks_carried(
      10, 35, [&](const Chunk& c) { write(prepared, *stream_, c.number); },
      [&](Stream& stream, const Chunk& c) {
        use(prepared, stream, c.number);
        write(arrived, stream, c.number);
      },
      [&](const Chunk& c) { use(arrived, *stream_, c.number); });
  stream_->synchronize();
  EXPECT_EQ(arrived, 3);
  EXPECT_EQ(early, 0);
}

TEST_F(Pipeline, ChunksCoverEveryElementOnce) {
  for (const std::int64_t count : {1, 9, 10, 11, 20, 47}) {
    std::vector<int> covered(static_cast<std::size_t>(count));
    const auto cover = [&](const Chunk& c) {
      for (std::int64_t i = c.start; i < c.start + c.count; ++i) ++covered[static_cast<std::size_t>(i)];
    };
    pipeline_->in_chunks_carried(
        10, count, {}, [](Stream&, const Chunk&) {}, cover);
    EXPECT_EQ(covered, std::vector<int>(covered.size(), 1)) << count;
  }
}

TEST_F(Pipeline, SentBytesAreCountedOnceAndByNode) {
  for (const bool steps : {false, true}) {
    exchange_.steps = steps;
    in_chunks(10, 25, false);
    const ChunkPipeline::Sent sent = pipeline_->take_sent();
    EXPECT_EQ(sent.bytes, 75);
    EXPECT_EQ(sent.between_nodes, 50);
  }
  pipeline_->exchange_eagerly(8, [](int) { return nullptr; });
  pipeline_->count_slices(100);
  const ChunkPipeline::Sent sent = pipeline_->take_sent();
  EXPECT_EQ(sent.bytes, 2 * 8 + 2 * 100);
  EXPECT_EQ(sent.between_nodes, 8 + 100);
  EXPECT_EQ(pipeline_->take_sent().bytes, 0);
}

TEST_F(Pipeline, CountersAreWrittenIfTheCarrierTakesNoMarks) {
  begin();
  in_chunks(10, 10);
  EXPECT_EQ(counters(), (std::vector<std::uint32_t>{7, 0}));
  pipeline_->end();
  EXPECT_EQ(counters(), (std::vector<std::uint32_t>{7, 7}));
}

TEST_F(Pipeline, ACarrierThatTakesMarksWritesEachOfThemOnce) {
  exchange_.marks = true;
  begin();
  pipeline_->exchange(*stream_, messages({.count = 4}));
  pipeline_->exchange(*stream_, messages({.count = 4}), /*last=*/true);
  pipeline_->end();
  EXPECT_EQ(log_, (Log{"exchange, before: 2", "exchange, after: 2"}));
  EXPECT_EQ(counters(), (std::vector<std::uint32_t>{0, 0}));
}

TEST_F(Pipeline, EagerMarksFollowTheBytes) {
  EXPECT_TRUE(pipeline_->goes_eagerly(64));
  EXPECT_FALSE(pipeline_->goes_eagerly(65));
  begin();
  pipeline_->exchange_eagerly(8, [](int) { return nullptr; });
  begin();
  pipeline_->exchange_eagerly(
      8, [](int) { return nullptr; }, /*marks_end=*/false);
  pipeline_->take_eagerly(std::vector<Piece>(2));
  pipeline_->end();
  EXPECT_EQ(log_, (Log{"send eagerly, before, after: 2", "send eagerly, before: 2", "take, after: 2"}));
  EXPECT_EQ(counters(), (std::vector<std::uint32_t>{0, 0}));
}

TEST_F(Pipeline, ACollectiveThatIsCarriedElsewhereBeginsAndEnds) {
  begin();
  pipeline_->begin_elsewhere();
  EXPECT_EQ(counters(), (std::vector<std::uint32_t>{7, 0}));
  pipeline_->end();
  EXPECT_EQ(counters(), (std::vector<std::uint32_t>{7, 7}));
}

}  // namespace
}  // namespace octet::comm::chunk_pipeline_test
