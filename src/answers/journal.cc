#include "journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"

namespace octet::answers {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void cannot_write(const std::string& path) {
  const int error = errno;
  throw Error({.what = "answers cannot be written",
               .found = std::strerror(error),
               .where = path,
               .fix = "free disk space or choose another --out; the same command then resumes",
               .code = exit_code_of(error)});
}

void remove_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) cannot_write(path);
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

// Returns the lines of a file as JSON. Invalid lines, like the partial last line of a killed run, are null.
std::vector<Json> json_lines(const std::string& path) {
  std::vector<Json> lines;
  for (const std::string& line : split(read_file(path), '\n')) {
    try {
      lines.push_back(parse_json(line, path));
    } catch (const Error&) {
      lines.emplace_back();
    }
  }
  return lines;
}

// Whether a line of OUT.rows records a row.
bool is_note(const Json& line) {
  return line.is_object() && line.contains("row") && line["row"].is_number_integer() &&
         line.contains("question") && line["question"].is_string();
}

// Returns the result in a note; nullopt if the row failed.
std::optional<RowResult> result_of(const Json& note) {
  const auto lines = note.find("lines");
  if (lines == note.end() || !lines->is_array()) return std::nullopt;
  RowResult result;
  for (const Json& line : *lines) {
    if (!line.is_string()) return std::nullopt;
    result.lines.push_back(line.get<std::string>());
  }
  return result;
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

void require_no_folder(const std::string& path) {
  if (!fs::is_directory(path)) return;
  throw Error({.what = "--out names a folder",
               .expected = "a file for the answers",
               .where = path,
               .fix = "name a file in it, such as " + path + "/answers.jsonl",
               .code = ExitCode::usage});
}

AnswerJournal::AnswerJournal(const std::string& path, const Job& job, bool overwrite)
    : path_(path), notes_path_(path + ".rows"), job_(job) {
  require_no_folder(path);
  lock_ = files::lock_output(path);
  if (overwrite) {
    remove_file(notes_path_);
    remove_file(path_);
  }
  if (path_exists(notes_path_)) {
    read();
    if (complete_) return;
  } else if (path_exists(path_)) {
    require_ours("choose another --out, or replace it with --overwrite");
    throw Error({.what = "the file for answers exists, but the record of its model and settings is missing",
                 .expected = notes_path_,
                 .found = "no such file",
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

void AnswerJournal::read() {
  const std::vector<Json> lines = json_lines(notes_path_);
  const Json& head = lines.front();
  if (!head.is_object() || head.value("settings", "") != job_.settings) {
    if (path_exists(path_)) require_ours("choose another --out, or start again with --overwrite");
    throw Error(
        {.what = "the existing answers were made with other settings",
         .expected = "the same model, template, prompt and options as in the run that started the file",
         .where = path_,
         .fix = "choose another --out, or start again with --overwrite",
         .code = ExitCode::usage});
  }
  // Rows are matched by question, because the user may have added or moved lines. `answered` also counts
  // answers to removed questions, so that require_asked() can refuse to drop them.
  std::map<std::string, std::vector<std::int64_t>> rows;
  for (std::size_t row = job_.questions.size(); row-- > 0;) {
    rows[job_.questions[row]].push_back(static_cast<std::int64_t>(row));
  }
  std::map<std::int64_t, std::string> texts;  // by row number of the earlier run: its text in OUT
  std::int64_t answered = 0;
  bool moved = false;  // whether the position of any row has changed
  for (const Json& note : lines) {
    if (!is_note(note)) continue;
    std::optional<RowResult> result = result_of(note);
    if (job_.whole != nullptr) {
      if (result) job_.whole->require_row(*result, notes_path_);
    } else {
      texts[note["row"].get<std::int64_t>()] = result ? text_of(*result) : "";
    }
    const auto asked = rows.find(note["question"].get<std::string>());
    answered += result ? 1 : 0;
    if (!result || asked == rows.end() || asked->second.empty()) continue;
    moved = moved || asked->second.back() != note["row"].get<std::int64_t>();
    results_.emplace(asked->second.back(), std::move(*result));
    asked->second.pop_back();
  }
  kept_ = std::ssize(results_);
  require_asked(answered);
  if (!path_exists(path_)) return;
  const std::string out = read_file(path_);
  const std::string hash = head.value("hash", "");
  require_unchanged(out, texts, hash);
  complete_ = !moved && hash == hash128_hex(out) && kept_ == std::ssize(job_.questions);
}

// Throws Error if the notes have answers to removed questions, because rewrite() would drop these answers.
void AnswerJournal::require_asked(std::int64_t answered) const {
  if (answered == kept_) return;
  throw Error({.what = "the file for answers has answers to other questions",
               .expected = "only answers to rows of the file of questions",
               .found = with_commas(answered - kept_) + " of " + with_commas(answered) +
                        " answers are to questions that are not in the file of questions",
               .where = path_,
               .fix = "choose another --out, or replace these answers with --overwrite",
               .code = ExitCode::usage});
}

// Throws Error if OUT has text that is not in the notes, because rewrite() would lose this text.
void AnswerJournal::require_unchanged(const std::string& out,
                                      const std::map<std::int64_t, std::string>& texts,
                                      const std::string& hash) const {
  const std::string fix = "move the file away and run the command again, which restores all answers from " +
                          notes_path_ + "; or choose another --out, or start again with --overwrite";
  std::string noted;
  std::int64_t next = 0;
  for (const auto& [row, text] : texts) {
    if (row != next++) break;
    noted += text;
  }
  if (job_.whole != nullptr ? hash == hash128_hex(out) : noted.starts_with(out)) return;
  require_ours(fix);
  throw Error({.what = "the file for answers was changed since it was written",
               .expected = "the answers that " + notes_path_ + " records",
               .where = path_,
               .fix = fix,
               .code = ExitCode::usage});
}

// Lets WholeOutput throw its more specific error, if it has one, for an OUT that cannot be resumed.
void AnswerJournal::require_ours(const std::string& fix) const {
  if (job_.whole != nullptr) job_.whole->require_same(path_, fix);
}

// Writes both files again from results_. They then have complete lines only, sorted by row.
void AnswerJournal::rewrite() {
  std::string notes = Json{{"settings", job_.settings}}.dump() + "\n";
  for (const auto& [row, result] : results_) {
    notes += note_of(row, job_.questions[static_cast<std::size_t>(row)], result).dump() + "\n";
  }
  // OUT is emptied before the notes are written, because the notes give rows new positions. If the run is
  // killed in between, the next run can resume: an empty OUT fits any notes.
  if (job_.whole != nullptr) {
    remove_file(path_);
  } else {
    write_file_atomically(path_, "");
  }
  write_file_atomically(notes_path_, notes);
  if (job_.whole == nullptr) out_ = open_to_append(path_);
  notes_ = open_to_append(notes_path_);
  append_next_rows();
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

void AnswerJournal::append_next_rows() {
  for (auto found = results_.find(next_); found != results_.end() && found->first == next_;
       ++found, ++next_) {
    if (out_ >= 0) write(out_, path_, text_of(found->second));
  }
}

void AnswerJournal::add(std::int64_t row, const RowResult& result) {
  check(row >= 0 && row < std::ssize(job_.questions) && !done(row), "a row is added once");
  write(notes_, notes_path_,
        note_of(row, job_.questions[static_cast<std::size_t>(row)], result).dump() + "\n");
  results_.emplace(row, result);
  append_next_rows();
}

void AnswerJournal::sync() {
  for (const int file : {notes_, out_}) {
    if (file >= 0 && ::fdatasync(file) != 0) cannot_write(path_);
  }
}

void AnswerJournal::finish() {
  check(next_ == std::ssize(job_.questions), "all rows are done");
  sync();
  const std::string out = job_.whole != nullptr ? job_.whole->bytes(results_) : read_file(path_);
  std::string notes = Json{{"settings", job_.settings}, {"hash", hash128_hex(out)}}.dump() + "\n";
  for (const auto& [row, result] : results_) {
    notes += note_of(row, job_.questions[static_cast<std::size_t>(row)], result).dump() + "\n";
  }
  write_file_atomically(notes_path_, notes);
  // The hash is recorded before OUT is written. So an OUT with another hash was written by another program.
  if (job_.whole != nullptr) write_file_atomically(path_, out);
}

}  // namespace octet::answers
