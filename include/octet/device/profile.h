// Measures the time of a stream by name. The code that enqueues work names it: ops by their names (dispatch
// names all of them), the core by labels around ops. Without a profile the cost is a test of a pointer.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "octet/device/device.h"

namespace octet {

/// Measures sections of one stream from construction to destruction. Not thread-safe; used by the thread that
/// enqueues on the stream.
class Profile {
 public:
  /// Attaches to `stream`, which must outlive the profile and have no other profile.
  explicit Profile(Stream& stream);
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  struct Row {
    std::int64_t calls = 0;
    double seconds = 0;
  };
  /// Returns the sections that ended after the previous call, by name: enclosing labels and the section's
  /// name, "qkv/product forward". The stream must be synchronised before.
  std::map<std::string, Row> collect();

 private:
  friend class ProfileLabel;
  friend class ProfileSection;
  struct Section {
    std::string name;
    std::size_t begin = 0, end = 0;  ///< events
  };
  std::size_t record();
  void begin(const char* name);
  void end();

  Stream& stream_;
  std::vector<const char*> labels_;
  std::vector<Section> sections_;
  std::vector<std::unique_ptr<Event>> events_;  ///< reused after collect()
  std::size_t used_ = 0;
  int depth_ = 0;  ///< nested sections count for the outermost section
};

/// Names the work that is enqueued during its lifetime. The text must outlive the profile.
class ProfileLabel {
 public:
  ProfileLabel(Stream& stream, const char* name);
  ~ProfileLabel();
  ProfileLabel(const ProfileLabel&) = delete;
  ProfileLabel& operator=(const ProfileLabel&) = delete;

 private:
  Profile* profile_;
};

/// A piece of work: work that is enqueued during its lifetime counts under this name.
class ProfileSection {
 public:
  ProfileSection(Stream& stream, const char* name);
  ~ProfileSection();
  ProfileSection(const ProfileSection&) = delete;
  ProfileSection& operator=(const ProfileSection&) = delete;

 private:
  Profile* profile_;
};

// The time of a step by kind of work, averaged over several steps.

/// A kind of work of a profiled step.
struct StepProfileRow {
  std::string name;
  double seconds = 0;  ///< seconds per step, mean
  double calls = 0;
};

/// Sums the profile of a stream over steps.
class StepProfile {
 public:
  /// `kind_of`: maps a name of the profile to a row; empty: each name is a row.
  explicit StepProfile(Stream& stream, std::function<std::string(const std::string&)> kind_of = {});
  /// Records the end of a step of `seconds`. The stream must be synchronised. If not `counts`, the step is
  /// discarded.
  void step(bool counts, double seconds);
  /// Returns the rows, longest first. Time outside of all sections is "waiting and gaps". Requires a step
  /// that counts.
  std::vector<StepProfileRow> rows() const;

 private:
  Profile profile_;
  std::function<std::string(const std::string&)> kind_of_;
  std::map<std::string, StepProfileRow> sums_;
  double steps_ = 0;
};

}  // namespace octet
