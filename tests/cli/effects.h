// Every key of the schema and what it does, as tables: which keys stand beside it, other values than the one
// it has by itself, and what is seen of a run, of its data or of the options that a room is given.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "octet/config/config.h"

namespace octet::test {

/// Keys with their values as YAML has them.
using Keys = std::map<std::string, std::string>;
/// What is seen with a configuration, as text.
using See = std::function<std::string(const config::Resolved&)>;

struct Tried {
  std::string value;
  std::string seen = {};  ///< empty: anything that no other value shows
};

struct KeyRow {
  std::string key;
  Keys beside;  ///< without them it would have no effect
  std::vector<Tried> values;
  See see;
  std::string without = {};  ///< what is seen without the key; empty: anything else
};

/// Keys of precision, memory, optimizer and communication.
std::vector<KeyRow> engine_rows();
/// Keys of the model's folder, the data and their order.
std::vector<KeyRow> data_rows();
/// Keys of the course of a run and of what it writes.
std::vector<KeyRow> run_rows();
/// Keys that are noted or refused.
std::vector<KeyRow> idle_rows();

/// The configuration of `keys` and, where they say nothing else, of a small task that trains in moments.
config::Resolved resolved(const Keys& keys);
/// What `see` shows of it, or "refused: " and the Error's message.
std::string seen(const Keys& keys, const See& see);
/// Sees each row without its key, twice, and with each of its values: the former agree, the latter differ
/// from it and from each other, and what is foretold is seen.
void expect_effects(const std::vector<KeyRow>& rows);

/// What is said at the start of a run about its configuration.
std::string notes_of(const config::Resolved& resolved);

/// Keeps what is printed to standard error off the terminal.
class Quiet {
 public:
  Quiet() { testing::internal::CaptureStderr(); }
  ~Quiet() { printed(); }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
  /// What was printed until the first call, with which it ends.
  const std::string& printed() {
    if (!text_) text_ = testing::internal::GetCapturedStderr();
    return *text_;
  }

 private:
  std::optional<std::string> text_;
};

/// True where `text` holds `part`.
inline bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace octet::test
