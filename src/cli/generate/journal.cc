#include "generate/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/strings.h"

namespace octet::cli {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void cannot_write(const std::string& path) {
  const int error = errno;
  throw Error(
      {.what = "answers cannot be written",
       .found = std::strerror(error),
       .where = path,
       .fix = "make room or choose another --out; started again, the run goes on from what is written",
       .code = exit_code_of(error)});
}

int open_to_append(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) cannot_write(path);
  return file;
}

std::string text_of(const RowResult& result) {
  std::string text;
  for (const std::string& line : result.lines) text += line + "\n";
  return text;
}

Json note_of(std::int64_t row, const std::string& question, const RowResult& result) {
  Json note{{"row", row}, {"question", question}};
  if (result.failure.empty()) {
    note["lines"] = result.lines;
  } else {
    note["failure"] = result.failure;
  }
  return note;
}

}  // namespace

AnswerJournal::AnswerJournal(const std::string& path, const Job& job, bool overwrite)
    : path_(path), notes_path_(path + ".rows"), job_(job) {
  const fs::path folder = fs::path(path).parent_path();
  if (!folder.empty()) make_folders(folder.string());
  if (overwrite) {
    fs::remove(notes_path_);
    fs::remove(path_);
  }
  if (path_exists(notes_path_)) {
    read(job);
    if (complete_) return;
  } else if (path_exists(path_)) {
    throw Error({.what = "the file for answers is already there, and nothing tells what it was made from",
                 .where = path_,
                 .fix = "choose another --out, or replace it with --overwrite",
                 .code = ExitCode::usage});
  }
  rewrite();
}

AnswerJournal::~AnswerJournal() {
  if (out_ >= 0) ::close(out_);
  if (notes_ >= 0) ::close(notes_);
}

std::int64_t AnswerJournal::failures() const {
  std::int64_t count = 0;
  for (const auto& [row, result] : results_) count += result.failure.empty() ? 0 : 1;
  return count;
}

void AnswerJournal::read(const Job& job) {
  const std::vector<std::string> lines = split(read_file(notes_path_), '\n');
  const auto parsed = [&](std::size_t i) {
    try {
      return parse_json(lines[i], notes_path_);
    } catch (const Error&) {
      return Json();
    }
  };
  const Json head = parsed(0);
  const std::string settings = head.is_object() ? head.value("settings", "") : "";
  if (settings != job.settings) {
    throw Error({.what = "the answers that are there were made with other settings",
                 .expected = "the same model, template, prompt and options as the run that began them",
                 .where = path_,
                 .fix = "choose another --out, or begin anew with --overwrite",
                 .code = ExitCode::usage});
  }
  // Rows are known by their questions: lines may have been added, taken out or moved since.
  std::map<std::string, std::vector<std::int64_t>> rows;
  for (std::size_t row = job.questions.size(); row-- > 0;) {
    rows[job.questions[row]].push_back(static_cast<std::int64_t>(row));
  }
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const Json note = parsed(i);
    if (!note.is_object() || !note.contains("question") || !note.contains("lines")) continue;
    const auto asked = rows.find(note.value("question", ""));
    if (asked == rows.end() || asked->second.empty()) continue;
    RowResult result;
    for (const Json& line : note["lines"]) result.lines.push_back(line.get<std::string>());
    results_.emplace(asked->second.back(), std::move(result));
    asked->second.pop_back();
  }
  kept_ = std::ssize(results_);
  const bool same_file = path_exists(path_) && head.value("hash", "") == hash128_hex(read_file(path_));
  complete_ = same_file && kept_ == std::ssize(job.questions);
}

// Both files from what is known: whole lines, rows in order, nothing of a run with other rows.
void AnswerJournal::rewrite() {
  std::string notes = Json{{"settings", job_.settings}}.dump() + "\n";
  for (const auto& [row, result] : results_) {
    notes += note_of(row, job_.questions[static_cast<std::size_t>(row)], result).dump() + "\n";
  }
  write_file_atomically(notes_path_, notes);
  write_file_atomically(path_, "");
  out_ = open_to_append(path_);
  notes_ = open_to_append(notes_path_);
  place();
}

void AnswerJournal::write(int file, const std::string& path, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t count = ::write(file, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) cannot_write(path);
    done += static_cast<std::size_t>(count);
  }
}

void AnswerJournal::place() {
  for (auto found = results_.find(next_); found != results_.end() && found->first == next_;
       ++found, ++next_) {
    write(out_, path_, text_of(found->second));
  }
}

void AnswerJournal::add(std::int64_t row, const RowResult& result) {
  check(row >= 0 && row < std::ssize(job_.questions) && !done(row), "a row is answered once");
  write(notes_, notes_path_,
        note_of(row, job_.questions[static_cast<std::size_t>(row)], result).dump() + "\n");
  results_.emplace(row, result);
  place();
}

void AnswerJournal::sync() {
  for (const int file : {notes_, out_}) {
    if (file >= 0 && ::fdatasync(file) != 0) cannot_write(path_);
  }
}

void AnswerJournal::finish() {
  check(next_ == std::ssize(job_.questions), "all rows are done");
  sync();
  std::string notes =
      Json{{"settings", job_.settings}, {"hash", hash128_hex(read_file(path_))}}.dump() + "\n";
  for (const auto& [row, result] : results_) {
    notes += note_of(row, job_.questions[static_cast<std::size_t>(row)], result).dump() + "\n";
  }
  write_file_atomically(notes_path_, notes);
}

}  // namespace octet::cli
