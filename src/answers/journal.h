// Journal of the answers to a file. An answered row is never computed again.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "octet/base/json.h"
#include "octet/files/folder_lock.h"

namespace octet::answers {

/// Result of a row: its lines for OUT (several answers, or none), or the reason of its failure.
struct RowResult {
  std::vector<std::string> lines;  ///< JSON
  std::string failure;             ///< "": answered
};

/// An OUT that is one document, such as an HDF5 file. It is written as a whole when all rows are done. Until
/// then, only OUT.rows exists.
class WholeOutput {
 public:
  virtual ~WholeOutput() = default;
  /// Throws Error (usage) that names `where` if the row cannot be a row of such a document.
  virtual void require_row(const RowResult& row, const std::string& where) const = 0;
  /// Returns the bytes of the file from all its rows, by row number.
  virtual std::string bytes(const std::map<std::int64_t, RowResult>& rows) const = 0;
  /// Throws Error (usage) with `fix` if the file at `path` has another kind or origin, or is truncated.
  virtual void require_same(const std::string& path, const std::string& fix) const = 0;
};

/// Throws Error (usage) if `path`, the value of --out, is a folder.
void require_no_folder(const std::string& path);

/// Writes a file OUT of answers in the order of their questions. The file OUT.rows in the same folder has a
/// note of each row as soon as the row is finished: its answers and the hash of its question. If a run ends
/// early, the next run reuses the rows with a note and answers the others. Rows are matched by the hashes of
/// their questions, so lines of the file of questions may be added or moved. A partial line of a killed run
/// is dropped. When all rows are done, OUT.rows holds the hash of OUT. If Job::whole is given, OUT is written
/// only at the end.
///
/// No finished answer is lost unless `overwrite` is true. One process at a time holds OUT (FolderLock).
/// Throws Error for answers of other settings, answers to questions that are no longer asked, and a changed
/// OUT. The files are then not modified.
class AnswerJournal {
 public:
  struct Job {
    std::string settings;                ///< hash of everything, except the row, that an answer depends on
    std::vector<std::string> questions;  ///< hashes of the rows, in order
    const WholeOutput* whole = nullptr;  ///< for an OUT that is not a file of lines; must outlive the journal
  };
  /// Throws Error (busy) if another process writes OUT, and Error (storage) if OUT cannot be written. Unless
  /// `overwrite` is true, throws Error (usage) if OUT exists, but OUT.rows does not show that it was made
  /// with these settings. Also throws if OUT has text that is not in OUT.rows, or answers to other questions.
  AnswerJournal(const std::string& path, const Job& job, bool overwrite);
  ~AnswerJournal();
  AnswerJournal(const AnswerJournal&) = delete;
  AnswerJournal& operator=(const AnswerJournal&) = delete;

  bool done(std::int64_t row) const { return results_.contains(row); }
  std::int64_t kept() const { return kept_; }  ///< rows that an earlier run finished
  std::int64_t failures() const;
  /// Whether an earlier run answered all rows and OUT is unchanged.
  bool complete() const { return complete_; }

  /// Records a row in OUT.rows. Appends to OUT all finished rows that are next in order.
  void add(std::int64_t row, const RowResult& result);
  /// Blocks until all added rows are on disk.
  void sync();
  /// Completes OUT after the last row.
  void finish();

 private:
  void read();
  void require_asked(std::int64_t answered) const;
  void require_unchanged(const std::string& out, const std::map<std::int64_t, std::string>& texts,
                         const std::string& hash) const;
  void require_ours(const std::string& fix) const;
  void rewrite();
  void append_next_rows();
  void write(int file, const std::string& path, const std::string& text);

  std::string path_, notes_path_;
  Job job_;
  std::unique_ptr<const files::FolderLock> lock_;
  std::map<std::int64_t, RowResult> results_;
  std::int64_t next_ = 0;  ///< the first row that is not yet in OUT
  std::int64_t kept_ = 0;
  bool complete_ = false;
  int out_ = -1, notes_ = -1;
};

}  // namespace octet::answers
