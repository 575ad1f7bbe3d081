// A run with a tiny model and a few documents, without files of a model.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "octet/base/log.h"
#include "octet/data/encoded.h"
#include "octet/model/shapes.h"
#include "octet/runtime/same_model.h"
#include "octet/setup/setup.h"
#include "support/program.h"
#include "train/run_objects.h"

namespace octet::train::run_objects {

class TinyRun : public BareRun {
 public:
  /// Documents of 3 to 6 tokens.
  static constexpr std::int64_t kDocuments = 11, kLongest = 6;

  explicit TinyRun(config::Config config = {}) : BareRun(tiny(std::move(config))) {
    parts().architecture = model::find_shape("tiny");
    parts().architecture.layers = 1;
    parts().architecture.blocks.resize(1);
    parts().architecture.vocabulary = 256;
    parts().encoder = std::make_unique<data::TemplateEncoder>(
        data::TemplateEncoderOptions{.folder = OCTET_SOURCE_DIR "/tests/golden/tokenizers/qwen2"});
    feed::Corpus& corpus = parts().corpus;
    for (std::int64_t i = 0; i < kDocuments; ++i) {
      const std::vector<std::int32_t> ids(static_cast<std::size_t>(3 + i % 4), static_cast<std::int32_t>(i));
      corpus.training.append(ids, ids, i);
    }
    corpus.training_items = data::one_each(corpus.training);
    corpus.fingerprint = "these";
  }

  /// The state of a checkpoint of this model.
  Json model_state() {
    return {{"model", runtime::model_state(parts().architecture, parts().encoder->tokenizer())}};
  }
  void make_schedule() {
    parts().schedule =
        std::make_unique<optim::Schedule>(setup::schedule_options(run().config, run().total_steps));
  }

 private:
  static config::Config tiny(config::Config config) {
    config.model_name_or_path = "tiny";
    config.disable_shuffling = true;
    config.cutoff_len = 16;
    config.plot_loss = false;
    return config;
  }
};

/// Returns the lines that `action` writes to training.log.
template <typename Action>
std::string logged(const Action& action) {
  const test::TemporaryFolder folder("logged");
  testing::internal::CaptureStderr();
  log::open_file(folder / "log");
  const std::size_t before = test::slurp(folder / "log").size();
  action();
  testing::internal::GetCapturedStderr();
  return test::slurp(folder / "log").substr(before);
}

/// Whether `part` is in `text`. A part that begins with "no: " must not be there.
inline void expect_logged(const std::string& text, const std::string& part) {
  const bool absent = part.starts_with("no: ");
  EXPECT_EQ(text.find(absent ? part.substr(4) : part) == std::string::npos, absent) << part << "\n" << text;
}

}  // namespace octet::train::run_objects
