#include "progress_bar.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "octet/base/environment.h"
#include "octet/base/log.h"

namespace octet::report {
namespace {

// log calls the hooks from any thread, under its own lock, and another thread draws the bar. This lock
// separates the two. It is never held while something is logged.
std::mutex bar_mutex;
ProgressBar* active = nullptr;

constexpr std::int64_t kShortRun = 20;  // lines

double seconds_between(std::chrono::steady_clock::time_point a, std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

int columns_of_launcher() {
  const char* columns = environment_variable("OCTETRUN_BAR_COLUMNS");
  return columns == nullptr ? 0 : std::max(0, std::atoi(columns));
}

int terminal_columns() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace

std::string bar_time(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 3.6e8) return "?";
  const auto s = static_cast<long long>(seconds);
  char text[48];
  if (s >= 3600) {
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
  } else {
    std::snprintf(text, sizeof text, "%02lld:%02lld", s / 60, s % 60);
  }
  return text;
}

std::string bar_text(std::int64_t done, std::int64_t total, double elapsed, double rate, double left,
                     int cells) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const double share =
      total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0) : 0.0;
  std::string bar;
  const int eighths = static_cast<int>(share * cells * 8);
  for (int i = 0; i < eighths / 8; ++i) bar += "█";
  bar += kEighths[eighths % 8];
  bar.append(static_cast<std::size_t>(std::max(0, cells - (eighths + 7) / 8)), ' ');
  char head[16], tail[96];
  std::snprintf(head, sizeof head, "%3d%%|", static_cast<int>(share * 100));
  const std::string counts = std::to_string(done) + "/" + std::to_string(total);
  if (rate > 0) {
    std::snprintf(tail, sizeof tail, " [%s<%s, %5.*fs/it]", bar_time(elapsed).c_str(), bar_time(left).c_str(),
                  rate < 0.1 ? 4 : 2, rate);
  } else {
    std::snprintf(tail, sizeof tail, " [%s<?, ?s/it]", bar_time(elapsed).c_str());
  }
  return head + bar + "| " + counts + tail;
}

ProgressBar::ProgressBar(std::int64_t done, std::int64_t total, BarPace pace)
    : pace_(pace),
      done_(done),
      total_(total),
      launcher_columns_(columns_of_launcher()),
      begin_(Clock::now()) {
  terminal_ = launcher_columns_ > 0 || isatty(STDERR_FILENO) == 1;
}

ProgressBar::~ProgressBar() {
  finish();
}

void ProgressBar::start() {
  begin_ = drawn_ = printed_ = Clock::now();
  {
    const std::lock_guard lock(bar_mutex);
    active = this;
    running_ = true;
    if (terminal_) draw();
  }
  log::set_hooks(&ProgressBar::before_line, &ProgressBar::after_line);
  life_ = std::thread([this] { show_life(); });
}

// Redraws the bar within a long step.
void ProgressBar::show_life() {
  std::unique_lock lock(bar_mutex);
  while (!ends_.wait_for(lock, std::chrono::duration<double>(pace_.life), [this] { return !running_; })) {
    const auto now = Clock::now();
    if (terminal_ && visible_ && seconds_between(drawn_, now) >= pace_.life) {
      drawn_ = now;
      draw();
    } else if (!terminal_ && seconds_between(printed_, now) >= pace_.line) {
      print_line();
    }
  }
}

void ProgressBar::advance(std::int64_t done, double seconds_per_step, double left) {
  const std::lock_guard lock(bar_mutex);
  done_ = done;
  seconds_per_step_ = seconds_per_step;
  left_ = left;
  if (!running_ || !terminal_) return;
  const auto now = Clock::now();
  if (done_ < total_ && seconds_between(drawn_, now) < pace_.redraw) return;
  drawn_ = now;
  draw();
}

bool ProgressBar::line_is_due() {
  const std::lock_guard lock(bar_mutex);
  if (terminal_) return true;
  const auto now = Clock::now();
  const bool paced = pace_.lines > kShortRun && first_printed_ && done_ < total_;
  if (paced && seconds_between(printed_, now) < pace_.line) return false;
  printed_ = now;
  first_printed_ = true;
  return true;
}

void ProgressBar::finish() {
  {
    const std::lock_guard lock(bar_mutex);
    if (!running_) return;
    running_ = false;
    if (terminal_ && visible_) {
      draw();
      std::fputc('\n', stderr);
      std::fflush(stderr);
    }
    visible_ = false;
    active = nullptr;
  }
  ends_.notify_all();
  life_.join();
  log::set_hooks(nullptr, nullptr);
}

void ProgressBar::before_line() {
  const std::lock_guard lock(bar_mutex);
  if (active != nullptr && active->terminal_) active->clear();
}

void ProgressBar::after_line() {
  const std::lock_guard lock(bar_mutex);
  if (active != nullptr && active->terminal_) active->draw();
}

// launch/mpirun reads lines. It prints a line that begins with a carriage return without its line end.
void ProgressBar::put(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  if (launcher_columns_ > 0) std::fputc('\n', stderr);
  std::fflush(stderr);
}

void ProgressBar::draw() {
  const double elapsed = seconds_between(begin_, Clock::now());
  const int columns = launcher_columns_ > 0 ? launcher_columns_ : terminal_columns();
  // The text around the bar has at most 60 columns; the bar gets the rest.
  const int cells = std::clamp(columns - 60, 10, 40);
  put("\r" + bar_text(done_, total_, elapsed, seconds_per_step_, left_, cells) + "\033[K");
  visible_ = true;
}

void ProgressBar::clear() {
  if (!visible_) return;
  put("\r\033[K");
  visible_ = false;
}

void ProgressBar::print_line() {
  printed_ = Clock::now();
  const double elapsed = seconds_between(begin_, printed_);
  std::fputs((bar_text(done_, total_, elapsed, seconds_per_step_, left_, 20) + "\n").c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace octet::report
