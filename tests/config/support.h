// Shared code of the tests of config.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/config/config.h"
#include "octet/config/derive.h"
#include "octet/config/key_table.h"

namespace octet::config::test {

/// The three keys that every training needs.
inline const std::string kBase = "model_name_or_path: m\ndataset: d\noutput_dir: o\n";

inline LoadOptions quiet(bool for_training = true) {
  return {.for_training = for_training, .environment = {}};
}

inline Resolved read(const std::string& yaml, const Strings& overrides = {}) {
  return load_text(kBase + yaml, "test.yaml", overrides, quiet());
}

/// Returns the message of the Error that `yaml` causes. The test fails if there is none.
inline std::string refusal(const std::string& yaml, const Strings& overrides = {}) {
  try {
    read(yaml, overrides);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    return e.what();
  }
  ADD_FAILURE() << "accepted: " << yaml;
  return "";
}

inline bool says(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

#define EXPECT_SAYS(message, part) EXPECT_PRED2(::octet::config::test::says, message, part)

inline bool notes(const Resolved& resolved, const std::string& part) {
  for (const auto& note : resolved.notes) {
    if (says(note, part)) return true;
  }
  return false;
}

}  // namespace octet::config::test
