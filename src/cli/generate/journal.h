// The answers of a file on their way to disk: what was answered once is never computed again.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "octet/base/json.h"
#include "octet/checkpoint/folder_lock.h"

namespace octet::cli {

/// What became of a row: lines for the file (several answers, or none), or why it has none.
struct RowResult {
  std::vector<std::string> lines;  ///< JSON
  std::string failure;             ///< "" : it was answered
};

/// An OUT that is no file of lines: it appears whole when all rows are done, and until then only their notes
/// do.
class WholeOutput {
 public:
  virtual ~WholeOutput() = default;
  /// Throws Error (usage) naming `where` for a row that is not one of this file.
  virtual void require_row(const RowResult& row, const std::string& where) const = 0;
  /// The file's bytes, from all rows that it may have, by their numbers.
  virtual std::string bytes(const std::map<std::int64_t, RowResult>& rows) const = 0;
  /// Throws Error (usage) with `fix` where the file at `path` is not one of this kind and origin, or is cut
  /// short.
  virtual void require_same(const std::string& path, const std::string& fix) const = 0;
};

/// A file OUT of answers in the order of their questions. The file OUT.rows beside it notes every finished
/// row at once, in any order, with the hash of its question. If a run ends early, the next run takes the
/// noted rows and answers the others. Rows are known by their questions: lines of the file of questions may
/// be added or moved. A half line of a killed run is cut off. When all rows are done, OUT.rows holds the hash
/// of OUT. If Job::whole is given, OUT appears at the end alone.
///
/// No finished answer is lost without `overwrite`. One process at a time holds OUT (FolderLock). Answers of
/// other settings, answers whose question is not asked any more, and an OUT that was changed by hand are
/// refused and stay as they are.
class AnswerJournal {
 public:
  struct Job {
    std::string settings;                ///< hash of all that answers depend on beside the row
    std::vector<std::string> questions;  ///< hashes of the rows, in order
    const WholeOutput* whole = nullptr;  ///< of an OUT that is no file of lines; outlives the journal
  };
  /// Throws Error (busy) if another process writes OUT, and Error (storage) if OUT cannot be written. Unless
  /// `overwrite` is true, throws Error (usage) if OUT exists and is not known to be of these settings, holds
  /// what its notes do not give, or holds answers of other questions.
  AnswerJournal(const std::string& path, const Job& job, bool overwrite);
  ~AnswerJournal();
  AnswerJournal(const AnswerJournal&) = delete;
  AnswerJournal& operator=(const AnswerJournal&) = delete;

  bool done(std::int64_t row) const { return results_.contains(row); }
  std::int64_t kept() const { return kept_; }  ///< rows that an earlier run had done
  std::int64_t failures() const;
  /// All rows were answered before, and OUT is as it was left.
  bool complete() const { return complete_; }

  /// Notes a row, and writes to OUT all that now has its place there.
  void add(std::int64_t row, const RowResult& result);
  /// What was added is on the disk when this returns.
  void sync();
  /// Every row is done: OUT is whole.
  void finish();

 private:
  void read();
  void require_asked(std::int64_t answered) const;
  void require_unchanged(const std::string& out, const std::map<std::int64_t, std::string>& texts,
                         const std::string& hash) const;
  void require_ours(const std::string& fix) const;
  void rewrite();
  void place();
  void write(int file, const std::string& path, const std::string& text);

  std::string path_, notes_path_;
  Job job_;
  std::unique_ptr<const checkpoint::FolderLock> lock_;
  std::map<std::int64_t, RowResult> results_;
  std::int64_t next_ = 0;  ///< the first row that is not in OUT yet
  std::int64_t kept_ = 0;
  bool complete_ = false;
  int out_ = -1, notes_ = -1;
};

}  // namespace octet::cli
