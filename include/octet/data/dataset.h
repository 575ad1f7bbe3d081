// The data room turns files on disk into token ids and labels. It reads rows and converts them to samples
// (dataset.h), mixes data sets (mix.h), encodes samples (encoder.h) and packs documents (encoded.h). It uses
// no ranks and no devices. The feed room makes micro-batches of the tokens.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "octet/base/json_fwd.h"

namespace octet::data {

/// One message of a conversation; roles: user, assistant, observation, function.
struct Turn {
  std::string role;
  std::string content;             ///< of a function turn: the calls, a JSON list as text
  std::string thought = {};        ///< reasoning text before an answer; "" = none
  std::string thought_field = {};  ///< the field of the message that held the thought
  std::string text = {};           ///< of a function turn: the text before the calls
  bool trained = true;             ///< false: an answer that is context without loss
};

/// A row of a data set after conversion: a conversation that ends in an answer, or plain text.
struct Sample {
  std::vector<Turn> turns;                   ///< user and assistant alternate; empty for plain text
  std::string system;                        ///< "" = none
  std::string tools;                         ///< a JSON list as text; "" = none
  std::string text;                          ///< plain text, when turns is empty
  bool plain = false;                        ///< the row is plain text
  std::optional<bool> enable_thinking = {};  ///< a value of the row overrides the configuration
  std::optional<Turn> rejected = {};   ///< of a pair: the rejected answer; the last turn is the chosen one
  std::optional<bool> desirable = {};  ///< the judgement of the last answer
};

/// Contents of rows that are not read, such as unknown fields, with the number of rows that have them.
using RowNotes = std::map<std::string, std::int64_t>;

/// The format of a data set's rows, from an entry of dataset_info.json or from detection.
struct RowFormat {
  enum class Kind { alpaca, sharegpt, openai, pair, text } kind = Kind::alpaca;
  // Names of columns; "" = the row has no such column.
  std::string prompt = "instruction", query = "input", response = "output", history;
  std::string messages = "conversations", system, tools;
  /// Columns of a chosen and a rejected answer; "" = rows have no pairs of answers.
  std::string chosen, rejected;
  /// Column of judgements: true for a desirable answer; "" = answers are not judged.
  std::string judgement;
  // Tags of sharegpt messages.
  std::string role_tag = "from", content_tag = "value", user_tag = "human", assistant_tag = "gpt";
  std::string observation_tag = "observation", function_tag = "function_call", system_tag = "system";
  std::vector<std::string> media;  ///< columns of images, videos and sounds; rows with media are refused
  bool any_role = false;           ///< reads the roles of all known formats, not only the tags above
  bool any_order = false;          ///< allows messages in any order; the template may refuse them
  bool has_pairs() const { return !chosen.empty(); }
  bool is_judged() const { return !judgement.empty(); }
  bool operator==(const RowFormat&) const = default;
};

/// Rows of one file, read on demand. Thread-safe for reading.
class RowReader {
 public:
  virtual ~RowReader() = default;
  virtual std::int64_t size() const = 0;
  /// Parses row `i`. Throws Error with file and line if the row is broken.
  virtual Json row(std::int64_t i) const = 0;
  /// The path of the file.
  virtual const std::string& path() const = 0;
  /// "file.jsonl:12".
  virtual std::string where(std::int64_t i) const = 0;
};

/// Opens a data file: .json (a list of objects, or one object per line), .jsonl and .ndjson (one object per
/// line), .csv, .tsv, or .txt (one text per line, returned as {"text": line}). All of these may be gzipped
/// (.gz). If the program was built with Apache Arrow, also opens .parquet, .arrow and .feather. Files may be
/// larger than memory. Throws Error for another kind of file, and for a missing or broken file.
std::unique_ptr<RowReader> open_rows(const std::string& path);

/// Returns true if open_rows() supports the extension of this name.
bool is_data_file(const std::string& path);

/// Converts a row to a sample like LLaMA-Factory's converters. Returns nullopt and the reason in `why` if the
/// row is not usable. A field that masks or replaces trained text is applied, or the row is not usable
/// (src/data/fields.cc). Other unread fields are counted in `notes`.
std::optional<Sample> convert_row(const Json& row, const RowFormat& format, std::string* why,
                                  RowNotes* notes = nullptr);

/// Returns the turn for a role of messages: user, assistant, observation, function or system. Returns "" for
/// an unknown role.
std::string turn_of_role(const RowFormat& format, const std::string& role);

/// Detects the format of a row by its keys: messages, conversations, instruction, prompt + completion (or
/// response), input + target, {system,} user + assistant, text. Throws Error with the keys of the row if none
/// match.
RowFormat detect_format(const Json& row, const std::string& where);

/// Detects the format of a row with the columns chosen and rejected, like LLaMA-Factory, TRL, axolotl and
/// verl write it. The question is in messages, conversations, instruction, prompt, question or input. Or both
/// answers are conversations that differ in their last message. Throws Error like detect_format().
RowFormat detect_pairs(const Json& row, const std::string& where);

/// Detects the format of a row with a judged answer, like LLaMA-Factory (kto_tag), TRL and axolotl (label)
/// write it. The rest of the row is as for detect_format(), or a question with a completion. Throws Error
/// like detect_format().
RowFormat detect_judged(const Json& row, const std::string& where);

/// The answers of rows: one answer, a chosen and a rejected answer, or one judged answer.
enum class Answers { single, pairs, judged };

/// Columns of data sets without a dataset_info.json entry. "": the format is detected from column names.
struct Columns {
  std::string messages;          ///< conversations
  std::string prompt, response;  ///< or a question and an answer
};

/// Returns the format of rows with texts in these columns. `row` is one of the rows. With pairs, `response`
/// is the column of chosen answers.
RowFormat format_of_columns(const Columns& columns, const Json& row, Answers answers = Answers::single);

/// Reads an entry of dataset_info.json. If it has `columns`, unlisted columns are absent. Otherwise columns
/// have their default names. Throws Error unless "ranking" is true for pairs of answers, and false without.
/// Throws Error unless "columns" name a "kto_tag" for judged answers.
RowFormat format_of_entry(const Json& entry, const std::string& name, const std::string& where,
                          Answers answers = Answers::single);

/// One data set: the rows of its files, possibly limited or sampled.
struct DataSource {
  std::string name;
  std::vector<std::shared_ptr<RowReader>> files;
  RowFormat format;
  std::int64_t rows = 0;          ///< rows used: after max_samples and num_samples
  bool sampled = false;           ///< num_samples chose rows: each row once before any row repeats
  std::uint64_t sample_seed = 0;  ///< seed of this choice

  std::int64_t file_rows() const;  ///< rows of all files
  /// Returns the row at position `i` (0 … rows - 1), as an index into the concatenated files.
  std::int64_t row_at(std::int64_t i) const;
};

/// The columns of a data set that are read, and the unread columns with texts.
struct ColumnUse {
  std::vector<std::string> read, unread_texts;
  std::vector<std::string> message_fields;  ///< fields of messages that are read
  /// Whether columns or fields affect how texts are trained: enable_thinking, weight, function_call.
  bool decides = false;
};

/// Returns the columns in the first rows of each file.
ColumnUse column_use(const DataSource& source);

struct DataOptions {
  std::vector<std::string> dataset;  ///< names, paths or globs
  Columns columns;                   ///< for data sets given as paths
  std::string split;                 ///< split of folders; "": train, or for evaluation validation or test
  bool evaluates = false;            ///< the sets are for evaluation, not for training
  std::string dataset_dir = "data";
  std::optional<std::int64_t> max_samples;
  std::uint64_t seed = 42;
  std::string key = "dataset";  ///< configuration key, for messages
  Answers answers = Answers::single;
};

/// Resolves names (dataset_info.json), paths, folders and globs. Throws Error for a missing data set (with
/// the nearest known name), for a set without rows, and for an entry with an unsupported feature (a hub,
/// ranking, …).
std::vector<DataSource> open_datasets(const DataOptions& options);

}  // namespace octet::data
