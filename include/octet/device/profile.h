// Where the time of a stream goes, by name. Whoever enqueues work says what it is: ops by their names
// (dispatch does it for all of them), the core by labels around them. Without a profile this costs a test of
// a pointer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "octet/device/device.h"

namespace octet {

/// Takes the time of sections of one stream, from the moment it is made until it ends. Not thread-safe; used
/// by the thread that enqueues on the stream.
class Profile {
 public:
  /// Attaches to `stream`, which outlives the profile and has no other one.
  explicit Profile(Stream& stream);
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  struct Row {
    std::int64_t calls = 0;
    double seconds = 0;
  };
  /// What ended since the last call, by name: the labels around a section and its own, "qkv/product forward".
  /// The stream must have been synchronised.
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
  std::vector<std::unique_ptr<Event>> events_;  ///< kept for the next round
  std::size_t used_ = 0;
  int depth_ = 0;  ///< sections inside sections count for the outermost
};

/// Names what is enqueued while it lives; the text must outlive the profile.
class ProfileLabel {
 public:
  ProfileLabel(Stream& stream, const char* name);
  ~ProfileLabel();
  ProfileLabel(const ProfileLabel&) = delete;
  ProfileLabel& operator=(const ProfileLabel&) = delete;

 private:
  Profile* profile_;
};

/// A piece of work: what is enqueued while it lives counts under this name.
class ProfileSection {
 public:
  ProfileSection(Stream& stream, const char* name);
  ~ProfileSection();
  ProfileSection(const ProfileSection&) = delete;
  ProfileSection& operator=(const ProfileSection&) = delete;

 private:
  Profile* profile_;
};

}  // namespace octet
