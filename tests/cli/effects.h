// Tables with every key of the schema: required other keys, test values other than the default, and the
// effect. An effect is observed in a run, in its data, or in the options of a module.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "octet/config/config.h"

namespace octet::test {

/// Keys with their values as YAML texts.
using Keys = std::map<std::string, std::string>;
/// Observes the effect of a configuration, as text.
using See = std::function<std::string(const config::Resolved&)>;

struct Tried {
  std::string value;
  std::string seen = {};  ///< expected text; empty: any text that no other value gives
};

struct KeyRow {
  std::string key;
  Keys beside;  ///< other keys that the effect requires
  std::vector<Tried> values;
  See see;
  std::string without = {};  ///< expected text without the key; empty: any other text
};

/// Keys of precision, memory, optimizer and communication.
std::vector<KeyRow> engine_rows();
/// Keys of the model's folder, the data and their order.
std::vector<KeyRow> data_rows();
/// Keys of the schedule of a run and of its output.
std::vector<KeyRow> run_rows();
/// Keys that only give a note, or are refused.
std::vector<KeyRow> idle_rows();

/// Returns the configuration of `keys`. Other keys come from a small task that trains in seconds.
config::Resolved resolved(const Keys& keys);
/// Returns the text of `see`, or "refused: " and the Error's message.
std::string seen(const Keys& keys, const See& see);
/// Observes each row without its key, twice, and with each of its values. The first two must agree. The
/// others must differ from them and from each other, and must equal the expected texts.
void expect_effects(const std::vector<KeyRow>& rows);

/// Returns the notes that a run prints about its configuration at its start.
std::string notes_of(const config::Resolved& resolved);

/// Captures standard error.
class Quiet {
 public:
  Quiet() { testing::internal::CaptureStderr(); }
  ~Quiet() { printed(); }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
  /// Returns the output up to the first call, which ends the capture.
  const std::string& printed() {
    if (!text_) text_ = testing::internal::GetCapturedStderr();
    return *text_;
  }

 private:
  std::optional<std::string> text_;
};

/// Whether `text` contains `part`.
inline bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace octet::test
