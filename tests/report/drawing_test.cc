#include <png.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "../src/report/progress_bar.h"
#include "octet/base/files.h"
#include "octet/report/plot.h"
#include "octet/report/tfevents.h"
#include "report/support.h"
#include "support/temporary_folder.h"

namespace octet::report::test::drawing_test {
namespace {

Figure figure(std::size_t n) {
  Figure f{.title = "Loss of <a> & \"b\"", .x_label = "step", .y_label = "loss", .series = {}};
  Series s{.name = "training", .points = {}};
  for (std::size_t i = 0; i < n; ++i) {
    s.points.emplace_back(static_cast<double>(i + 1), 4 * std::exp(-static_cast<double>(i) / 40) +
                                                          0.3 * std::sin(static_cast<double>(i * i)));
  }
  f.series.push_back(s);
  return f;
}

struct Picture {
  unsigned width = 0, height = 0;
  std::vector<unsigned char> pixels;
};

Picture decoded(const std::string& bytes) {
  png_image image;
  std::memset(&image, 0, sizeof image);
  image.version = PNG_IMAGE_VERSION;
  Picture picture;
  if (png_image_begin_read_from_memory(&image, bytes.data(), bytes.size()) == 0) return picture;
  image.format = PNG_FORMAT_RGB;
  picture.width = image.width, picture.height = image.height;
  picture.pixels.resize(PNG_IMAGE_SIZE(image));
  png_image_finish_read(&image, nullptr, picture.pixels.data(), 0, nullptr);
  return picture;
}

TEST(Plot, ThePngDecodesAndShowsTheCurve) {
  const Picture p = decoded(to_png(figure(200)));
  ASSERT_EQ(p.width, 1600u);
  ASSERT_EQ(p.height, 1000u);
  EXPECT_EQ(p.pixels[0], 255);
  std::size_t blue = 0;
  for (std::size_t i = 0; i < p.pixels.size(); i += 3) {
    blue += p.pixels[i] == 0x1F && p.pixels[i + 1] == 0x77 && p.pixels[i + 2] == 0xB4 ? 1 : 0;
  }
  EXPECT_GT(blue, 1000u);
}

TEST(Plot, TheSvgEscapesAndLabels) {
  const std::string svg = to_svg(figure(50));
  EXPECT_NE(svg.find("Loss of &lt;a&gt; &amp; "), std::string::npos);
  EXPECT_NE(svg.find(">training, smoothed<"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(Plot, OddCurvesAreDrawnWithoutHarm) {
  const double inf = std::numeric_limits<double>::infinity();
  std::vector<std::vector<std::pair<double, double>>> curves{{},
                                                             {{1, 2}},
                                                             {{1, 2}, {2, 2}},
                                                             {{1, NAN}, {2, inf}},
                                                             {{1, 1}, {2, NAN}, {3, -inf}, {4, 2}},
                                                             {{1, 1e300}, {2, -1e300}},
                                                             {{1, 0}, {2, 0}},
                                                             {{1, 1e-300}, {2, 2e-300}},
                                                             {{0, 5}, {1e15, 6}}};
  for (const auto& points : curves) {
    Figure f = figure(0);
    f.series[0].points = points;
    const std::string svg = to_svg(f);
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf"), std::string::npos);
    EXPECT_EQ(decoded(to_png(f)).width, 1600u);
  }
  EXPECT_LT(to_svg(figure(200000)).size(), 400000u);
}

TEST(Plot, SmoothingIsTheOneOfLlamaFactory) {
  const std::vector<double> values{3, 1, 2};
  const double w = 1.8 * (1 / (1 + std::exp(-0.15)) - 0.5);
  const auto s = smoothed(values);
  EXPECT_DOUBLE_EQ(s[0], 3);
  EXPECT_DOUBLE_EQ(s[1], 3 * w + 1 - w);
  EXPECT_DOUBLE_EQ(s[2], s[1] * w + 2 * (1 - w));
  const auto gap = smoothed({1, NAN, 3});
  EXPECT_TRUE(std::isnan(gap[1]) && std::isfinite(gap[2]));
}

TEST(Plot, TicksAreRoundNumbersInside) {
  EXPECT_EQ(ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  for (const auto& [low, high] :
       {std::pair<double, double>{0.31, 0.37}, {-5, 1234}, {1e-9, 2e-9}, {1e8, 3e9}}) {
    const auto t = ticks(low, high, 7);
    EXPECT_GE(t.size(), 3u);
    EXPECT_LE(t.size(), 9u);
    for (const double x : t) EXPECT_TRUE(x >= low - 1e-12 && x <= high * (1 + 1e-9)) << x;
  }
  EXPECT_TRUE(ticks(1, 1, 5).empty());
  EXPECT_TRUE(ticks(NAN, 1, 5).empty());
}

TEST(EventFile, ChecksumsAreThoseOfRfc3720) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(""), 0u);
}

// Reads the frames back by the format's own description.
TEST(EventFile, EveryFrameIsWholeAndHoldsItsScalars) {
  const octet::test::TemporaryFolder scratch("events");
  const std::string& folder = scratch.path();
  std::string path;
  {
    EventFile file(folder, 1);
    file.write(300, {{"train/loss", 1.5}, {"eval/loss", -2}});
    path = file.path();
    EventFile second(folder, 1);
    EXPECT_NE(second.path(), path);
  }
  const std::string bytes = read_file(path);
  std::vector<std::string> events;
  const auto little = [&](std::size_t at, int n) {
    std::uint64_t value = 0;
    for (int i = n - 1; i >= 0; --i)
      value = value << 8 | static_cast<unsigned char>(bytes[at + static_cast<std::size_t>(i)]);
    return value;
  };
  const auto masked = [](std::string_view text) {
    const std::uint32_t crc = crc32c(text);
    return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
  };
  for (std::size_t at = 0; at < bytes.size();) {
    const std::uint64_t length = little(at, 8);
    ASSERT_EQ(little(at + 8, 4), masked(bytes.substr(at, 8)));
    events.push_back(bytes.substr(at + 12, length));
    ASSERT_EQ(little(at + 12 + length, 4), masked(events.back()));
    at += 16 + length;
  }
  ASSERT_EQ(events.size(), 3u);
  EXPECT_NE(events[0].find("brain.Event:2"), std::string::npos);
  // wall_time, then step 300 = varint AC 02, then the summary.
  EXPECT_EQ(events[2].substr(9, 3), "\x10\xac\x02");
  EXPECT_NE(events[2].find(std::string("\x0a\x0atrain/loss\x15\x00\x00\xc0\x3f", 17)), std::string::npos);
  std::filesystem::remove_all(folder);
}

TEST(EventFile, AFolderThatCannotBeMadeIsAnError) {
  EXPECT_THROW(EventFile("/proc/nothing/here", 1), Error);
}

TEST(ProgressBar, ReadsLikeTqdm) {
  EXPECT_EQ(bar_text(10, 84, 80, 8.01, 10), " 11%|█▏        | 10/84 [01:20<09:52,  8.01s/it]");
  EXPECT_EQ(bar_text(0, 84, 0, 0, 4), "  0%|    | 0/84 [00:00<?, ?s/it]");
  EXPECT_EQ(bar_text(84, 84, 3700, 0.05, 4), "100%|████| 84/84 [1:01:40<00:00, 0.0500s/it]");
  EXPECT_EQ(bar_text(0, 0, 0, 0, 2), "  0%|  | 0/0 [00:00<?, ?s/it]");
  EXPECT_EQ(bar_text(5, 4, 1, 1, 2), "100%|██| 5/4 [00:01<00:00,  1.00s/it]");
  EXPECT_EQ(bar_time(NAN), "?");
  EXPECT_EQ(bar_time(1e300), "?");
}

}  // namespace
}  // namespace octet::report::test::drawing_test
