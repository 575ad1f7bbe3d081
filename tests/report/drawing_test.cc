#ifdef OCTET_HAVE_CAIRO
#include <cairo.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "../src/report/progress_bar.h"
#include "../src/report/tensorboard.h"
#include "octet/base/files.h"
#include "octet/report/plot.h"
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

#ifdef OCTET_HAVE_CAIRO

struct Picture {
  int width = 0, height = 0;
  std::vector<std::uint32_t> pixels;  ///< 0xAARRGGBB
};

struct Bytes {
  const std::string& all;
  std::size_t at = 0;
};

Picture decoded(const std::string& png) {
  Bytes bytes{png};
  const auto read = [](void* from, unsigned char* to, unsigned int size) {
    Bytes& b = *static_cast<Bytes*>(from);
    if (b.all.size() - b.at < size) return CAIRO_STATUS_READ_ERROR;
    std::memcpy(to, b.all.data() + b.at, size);
    b.at += size;
    return CAIRO_STATUS_SUCCESS;
  };
  cairo_surface_t* image = cairo_image_surface_create_from_png_stream(read, &bytes);
  Picture picture{cairo_image_surface_get_width(image), cairo_image_surface_get_height(image), {}};
  for (int y = 0; y < picture.height; ++y) {
    const auto* row = reinterpret_cast<const std::uint32_t*>(cairo_image_surface_get_data(image) +
                                                             y * cairo_image_surface_get_stride(image));
    picture.pixels.insert(picture.pixels.end(), row, row + picture.width);
  }
  cairo_surface_destroy(image);
  return picture;
}

std::size_t bluish(const Picture& p) {
  return static_cast<std::size_t>(std::ranges::count_if(p.pixels, [](std::uint32_t pixel) {
    return ((pixel >> 16) & 0xFF) < 0x30 && ((pixel >> 8) & 0xFF) < 0x80 && (pixel & 0xFF) > 0xA0;
  }));
}

TEST(Plot, ThePngDecodesAndShowsTheCurve) {
  const Picture p = decoded(to_png(figure(200)));
  ASSERT_EQ(p.width, 1600);
  ASSERT_EQ(p.height, 1000);
  EXPECT_EQ(p.pixels[0], 0xFFFFFFFFu);
  EXPECT_GT(bluish(p), 1000u);
}

TEST(Plot, PanelsStandBelowTheChart) {
  Figure f = figure(50);
  f.panels = {{.name = "learning rate", .points = {{1, 1e-3}, {50, 1e-5}}},
              {.name = "tokens/s", .points = {{1, 1000}, {50, 1100}}}};
  const Picture p = decoded(to_png(f));
  EXPECT_EQ(p.height, 1340);
  Picture below{p.width, p.height - 1000, {}};
  below.pixels.assign(p.pixels.begin() + 1000 * p.width, p.pixels.end());
  EXPECT_GT(bluish(below), 300u);
}

TEST(Plot, TheMeasuredCurveIsBolderThanTheSmoothedOne) {
  Figure f = figure(200);
  f.series[0].smooth = true;
  const Picture p = decoded(to_png(f));
  const auto ink = static_cast<std::size_t>(std::ranges::count(p.pixels, 0xFF333333u));
  EXPECT_GT(bluish(p), ink);
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
                                                             {{1, 1e-300}, {2, 1e300}},
                                                             {{0, 5}, {1e15, 6}}};
  for (const auto& points : curves) {
    Figure f = figure(0);
    f.series[0].points = points;
    f.panels = {{.name = "panel", .points = points}};
    const std::string svg = to_svg(f);
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf"), std::string::npos);
    EXPECT_TRUE(svg.find("<svg") != std::string::npos);
  }
  EXPECT_LT(to_svg(figure(200000)).size(), 400000u);
}

TEST(Plot, ALongTitleIsCut) {
  Figure f = figure(3);
  for (int i = 0; i < 100; ++i) f.title += "näme ";
  EXPECT_EQ(decoded(to_png(f)).width, 1600);
}

#else

TEST(Plot, WithoutCairoThereIsNone) {
  EXPECT_FALSE(draws_plots());
  EXPECT_EQ(to_svg(figure(3)) + to_png(figure(3)), "");
}

#endif

TEST(Plot, SmoothingHasNoLag) {
  // A ramp stays a ramp, up to its ends.
  std::vector<double> ramp;
  for (int i = 0; i < 200; ++i) ramp.push_back(i);
  const auto same = smoothed(ramp);
  for (std::size_t i = 0; i < ramp.size(); ++i) EXPECT_NEAR(same[i], ramp[i], 1e-9) << i;
  EXPECT_EQ(smoothed({3, 1, 2}), (std::vector<double>{3, 2, 2}));
  const auto gap = smoothed({1, 2, NAN, 4, 5});
  EXPECT_TRUE(std::isnan(gap[2]));
  EXPECT_EQ(gap[1], 1.5);
  EXPECT_EQ(gap[3], 4.5);
  EXPECT_TRUE(smoothed({}).empty());
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

struct AxisRow {
  const char* name;
  std::vector<double> values;
  bool logarithmic;
  std::string texts;
};

TEST(Plot, AnAxisIsLogarithmicIfItsRangeExceeds20) {
  for (const AxisRow& row :
       std::vector<AxisRow>{{"linear", {1, 20}, false, "5 10 15 20"},
                            {"just above", {1, 20.1}, true, "1 2 5 10 20"},
                            {"a loss", {26, 0.006}, true, "0.01 0.1 1 10"},
                            {"many decades", {1e-9, 1e9}, true, "1e-06 0.01 100 1e+06"},
                            {"zero is no value of one", {0, 100}, false, "0 20 40 60 80 100"},
                            {"below zero", {-1, 100}, false, "0 20 40 60 80 100"},
                            {"one value", {7}, false, "6.5 7.0 7.5"},
                            {"small ones", {2e-6, 8e-6}, false, "2e-06 4e-06 6e-06 8e-06"},
                            {"large ones", {2e8, 8e8}, false, "2e+08 4e+08 6e+08 8e+08"},
                            {"none", {}, false, "0.0 0.2 0.4 0.6 0.8 1.0"}}) {
    Series series{.name = "s", .points = {}};
    for (const double value : row.values)
      series.points.emplace_back(static_cast<double>(series.points.size()), value);
    const Axis axis = y_axis({series}, 6);
    EXPECT_EQ(axis.logarithmic, row.logarithmic) << row.name;
    std::string texts;
    for (const auto& [value, text] : axis.ticks) {
      texts += (texts.empty() ? "" : " ") + text;
      EXPECT_TRUE(axis.share(value) >= 0 && axis.share(value) <= 1) << row.name << " " << text;
    }
    EXPECT_EQ(texts, row.texts) << row.name;
    for (const double value : row.values)
      EXPECT_TRUE(axis.share(value) >= 0 && axis.share(value) <= 1) << row.name;
  }
}

TEST(EventFile, ChecksumsAreThoseOfRfc3720) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(""), 0u);
}

// Parses the frames by the specification of the format.
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
  EXPECT_EQ(bar_text(10, 84, 80, 8.01, 592.74, 10), " 11%|█▏        | 10/84 [01:20<09:52,  8.01s/it]");
  EXPECT_EQ(bar_text(0, 84, 0, 0, 0, 4), "  0%|    | 0/84 [00:00<?, ?s/it]");
  EXPECT_EQ(bar_text(84, 84, 3700, 0.05, 0, 4), "100%|████| 84/84 [1:01:40<00:00, 0.0500s/it]");
  EXPECT_EQ(bar_text(0, 0, 0, 0, 0, 2), "  0%|  | 0/0 [00:00<?, ?s/it]");
  EXPECT_EQ(bar_text(5, 4, 1, 1, 0, 2), "100%|██| 5/4 [00:01<00:00,  1.00s/it]");
  EXPECT_EQ(bar_time(NAN), "?");
  EXPECT_EQ(bar_time(1e300), "?");
}

}  // namespace
}  // namespace octet::report::test::drawing_test
