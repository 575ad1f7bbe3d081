#include "octet/device/profile.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "octet/base/error.h"

namespace octet {

Profile::Profile(Stream& stream) : stream_(stream) {
  check(stream.profile() == nullptr, "a stream has one profile at a time");
  stream.set_profile(this);
}

Profile::~Profile() {
  stream_.set_profile(nullptr);
}

std::size_t Profile::record() {
  if (used_ == events_.size()) events_.push_back(stream_.device().make_timed_event());
  stream_.record(*events_[used_]);
  return used_++;
}

void Profile::begin(const char* name) {
  if (depth_++ > 0) return;
  std::string path;
  for (const char* label : labels_) path += std::string(label) + "/";
  sections_.push_back({.name = path + name, .begin = record()});
}

void Profile::end() {
  if (--depth_ > 0) return;
  sections_.back().end = record();
}

std::map<std::string, Profile::Row> Profile::collect() {
  check(depth_ == 0, "a profile is collected outside of its sections");
  std::map<std::string, Row> rows;
  for (const Section& section : sections_) {
    Row& row = rows[section.name];
    ++row.calls;
    row.seconds += stream_.device().seconds_between(*events_[section.begin], *events_[section.end]);
  }
  sections_.clear();
  used_ = 0;
  return rows;
}

ProfileLabel::ProfileLabel(Stream& stream, const char* name) : profile_(stream.profile()) {
  if (profile_ != nullptr) profile_->labels_.push_back(name);
}

ProfileLabel::~ProfileLabel() {
  if (profile_ != nullptr) profile_->labels_.pop_back();
}

ProfileSection::ProfileSection(Stream& stream, const char* name) : profile_(stream.profile()) {
  if (profile_ != nullptr) profile_->begin(name);
}

ProfileSection::~ProfileSection() {
  if (profile_ != nullptr) profile_->end();
}

StepProfile::StepProfile(Stream& stream, std::function<std::string(const std::string&)> kind_of)
    : profile_(stream), kind_of_(std::move(kind_of)) {}

void StepProfile::step(bool counts, double seconds) {
  const auto rows = profile_.collect();
  if (!counts) return;
  ++steps_;
  double known = 0;
  for (const auto& [name, row] : rows) {
    StepProfileRow& sum = sums_[kind_of_ ? kind_of_(name) : name];
    sum.seconds += row.seconds;
    sum.calls += static_cast<double>(row.calls);
    known += row.seconds;
  }
  sums_["waiting and gaps"].seconds += seconds - known;
}

std::vector<StepProfileRow> StepProfile::rows() const {
  std::vector<StepProfileRow> all;
  for (const auto& [name, sum] : sums_) {
    all.push_back({.name = name, .seconds = sum.seconds / steps_, .calls = sum.calls / steps_});
  }
  std::ranges::sort(all, std::greater<>(), &StepProfileRow::seconds);
  return all;
}

}  // namespace octet
