// Shared by tests of corpora and feeds: a small data set, a configuration, and the messages on them.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "numbers.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/config/derive.h"
#include "octet/feed/corpus.h"
#include "octet/feed/feed.h"
#include "octet/setup/run_options.h"
#include "support/program.h"

namespace octet::feed {

class WhatIsTrained : public testing::Test {
 protected:
  static constexpr int kRows = 70, kKept = 60;
  WhatIsTrained() : folder_("feeds"), session_(DeviceWish::cpu) {
    write("rows.txt", 0, kRows);
    config_.dataset = {folder_ / "rows.txt"};
    config_.preprocessing_num_workers = 2;
    config_.cutoff_len = 16;
    batch_ = {.micro = 2, .accumulation = 2, .world = 1, .global = 4, .passes = 2};
  }
  void write(const std::string& name, int first, int last) const {
    std::string text;
    for (int i = first; i < last; ++i) text += std::to_string(i) + "\n";
    test::spill(folder_ / name, text);
  }
  /// What `body` prints and, where it throws one, its Error's words.
  std::string said(const std::function<void()>& body) {
    testing::internal::CaptureStderr();
    quiet_ = true;
    std::string text;
    try {
      body();
    } catch (const Error& e) {
      text = e.what();
    }
    quiet_ = false;
    return testing::internal::GetCapturedStderr() + text;
  }
  /// Stores the text that `body` prints in printed_.
  template <typename Body>
  auto quietly(const Body& body) {
    if (quiet_) return body();
    struct Capture {
      std::string& printed;
      explicit Capture(std::string& text) : printed(text) { testing::internal::CaptureStderr(); }
      ~Capture() { printed = testing::internal::GetCapturedStderr(); }
      Capture(const Capture&) = delete;
      Capture& operator=(const Capture&) = delete;
    } capture(printed_);
    return body();
  }
  Corpus corpus(const config::Config& config) {
    return quietly([&] { return build_corpus(session_, config, encoder_); });
  }
  std::unique_ptr<Feed> feed(const config::Config& config, const Corpus& corpus) {
    return quietly(
        [&] { return make_feed(session_, config, setup::is_strict(config), batch_, encoder_, corpus); });
  }
  Deal deal() const { return {.micro = batch_.micro, .accumulation = batch_.accumulation}; }
  /// First tokens of the documents of so many steps.
  std::vector<int> steps(Feed& feed, int count) const {
    std::vector<int> seen;
    for (int step = 0; step < count; ++step) {
      for (std::int64_t a = 0; a < batch_.accumulation; ++a) {
        const runtime::HostBatch batch = feed.next(a == 0, nullptr);
        for (std::int64_t d = 0; d < batch.documents(); ++d) {
          seen.push_back(batch.ids[static_cast<std::size_t>(batch.cu_seqlens[static_cast<std::size_t>(d)])]);
        }
      }
    }
    return seen;
  }
  /// As a checkpoint tells it.
  static Json state(const Feed& feed, const config::Batch& batch) {
    return parse_json(Json{{"place", feed.position()},
                           {"data_fingerprint", feed.fingerprint()},
                           {"global_batch", batch.global}}
                          .dump(),
                      "state");
  }
  /// The keys that the error names, or "" if the run resumes.
  std::string going_on(const config::Config& config, const Json& state) {
    const Corpus corpus = this->corpus(config);
    const auto feed = this->feed(config, corpus);
    try {
      feed->go_on(3, state, "c");
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::usage);
      EXPECT_TRUE(e.problem().where.starts_with("c")) << e.problem().where;
      return e.problem().where;
    }
    return "";
  }

  test::TemporaryFolder folder_;
  runtime::Session session_;
  config::Config config_;
  config::Batch batch_;
  Numbers encoder_;
  std::string printed_;
  bool quiet_ = false;
};

/// Sets a key.
using Change = std::function<void(config::Config&)>;

}  // namespace octet::feed
