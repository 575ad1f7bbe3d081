#include "row_report.h"

#include "octet/base/log.h"
#include "octet/base/strings.h"

namespace octet::feed {
namespace {

struct Event {
  std::int64_t data::EncodingCounts::*count;
  const char* words;
  bool unusable = false;
  bool of_all = false;  ///< also logs the number of all rows
};

constexpr Event kEvents[] = {
    {&data::EncodingCounts::broken, "were left out because they cannot be read", true},
    {&data::EncodingCounts::invalid, "were left out because they are not usable", true},
    {&data::EncodingCounts::dropped, "were left out because the template gives nothing for them"},
    {&data::EncodingCounts::unlabelled, "were left out because they have no trained token"},
    {&data::EncodingCounts::truncated, "were cut to cutoff_len (texts: to pack_factor times that)"},
    {&data::EncodingCounts::cut_answers, "lost the end of an answer: the model does not learn to stop there"},
    {&data::EncodingCounts::empty_answers,
     "have an empty answer or text, and train the model to say nothing; leave these rows out, or check the "
     "columns of the data set",
     false, true},
};

void warn(const std::string& line) {
  log::warn(line, log::Importance::training);
}

// Logs complaints. The names of unusable rows follow the complaints about unusable rows.
void log_all(const std::vector<Complaint>& all, const std::vector<std::string>& rows,
             const std::string& what) {
  std::size_t next = 0;
  for (; next < all.size() && all[next].unusable; ++next)
    warn(what + ": " + all[next].rows + " " + all[next].event);
  for (const std::string& row : rows) warn("  " + row);
  for (; next < all.size(); ++next) warn(what + ": " + all[next].rows + " " + all[next].event);
}

}  // namespace

std::vector<Complaint> complaints(const data::EncodingCounts& counts) {
  std::vector<Complaint> all;
  for (const Event& event : kEvents) {
    const std::int64_t count = counts.*event.count;
    if (count == 0) continue;
    const std::string of = event.of_all ? " of " + with_commas(counts.rows) : "";
    all.push_back({with_commas(count) + of + " rows", event.words, event.unusable});
  }
  for (const auto& [note, count] : counts.notes)
    all.push_back({with_commas(count) + " rows", "have " + note + ", which is not read"});
  return all;
}

void report(const data::EncodingCounts& c, const std::string& what) {
  log::debug(what + ": " + with_commas(c.documents) + " documents of " + with_commas(c.rows) + " rows, " +
             with_commas(c.tokens) + " tokens, " + with_commas(c.trained) + " of them trained");
  log_all(complaints(c), c.reasons, what);
}

void WindowReport::add(std::int64_t window, const data::EncodingCounts& counts) {
  const std::lock_guard lock(mutex_);
  if (!windows_.insert(window).second) return;
  all_.add(counts);
  const std::vector<std::string> none;
  std::vector<Complaint> fresh;
  for (Complaint& complaint : complaints(counts)) {
    if (events_.insert(complaint.event).second) fresh.push_back(std::move(complaint));
  }
  if (windows_.size() == 1) return;  // report() has logged the first window
  if (!fresh.empty()) log_all(fresh, fresh.front().unusable ? counts.reasons : none, "a later window");
}

void WindowReport::end() const {
  const std::lock_guard lock(mutex_);
  if (windows_.size() > 1) report(all_, "all " + std::to_string(windows_.size()) + " windows that were read");
}

}  // namespace octet::feed
