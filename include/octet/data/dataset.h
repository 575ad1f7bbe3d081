// The data room: from files on disk to micro-batches in memory. Rows are read and turned into samples
// (dataset.h), tokenised, each rank its share (encode.h), dealt out by arithmetic from seed and step alone
// (schedule.h) and laid flat for the core ahead of the step (loader.h). Nothing here knows about devices.
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
  std::string thought = {};        ///< what an answer thinks before it speaks; "" = none
  std::string thought_field = {};  ///< the field that held the thought, for messages
  std::string text = {};           ///< of a function turn: the text before the calls
  bool trained = true;             ///< false: an answer that is shown and not trained
};

/// One row of a data set after conversion: a conversation that ends in an answer, or plain text.
struct Sample {
  std::vector<Turn> turns;                   ///< user and assistant in turn; empty for plain text
  std::string system;                        ///< "" = none
  std::string tools;                         ///< a JSON list as text; "" = none
  std::string text;                          ///< plain text, when turns is empty
  bool plain = false;                        ///< the row is plain text
  std::optional<bool> enable_thinking = {};  ///< the row's own choice, in place of the configuration's
};

/// What was found in rows and not read, with the number of rows.
using RowNotes = std::map<std::string, std::int64_t>;

/// How a data set's rows are to be read: an entry of dataset_info.json, or what was detected.
struct RowFormat {
  enum class Kind { alpaca, sharegpt, openai, pair, text } kind = Kind::alpaca;
  // Columns; "" = the row has none.
  std::string prompt = "instruction", query = "input", response = "output", history;
  std::string messages = "conversations", system, tools;
  // Tags of sharegpt messages.
  std::string role_tag = "from", content_tag = "value", user_tag = "human", assistant_tag = "gpt";
  std::string observation_tag = "observation", function_tag = "function_call", system_tag = "system";
  std::vector<std::string> media;  ///< columns of images, videos, sounds: rows that have some are refused
  bool any_role = false;           ///< reads the roles of all known formats, not only the tags above
  bool any_order = false;          ///< messages in any order, of which a template decides
  bool operator==(const RowFormat&) const = default;
};

/// Rows of one file, read on demand. Thread-safe for reading.
class RowReader {
 public:
  virtual ~RowReader() = default;
  virtual std::int64_t size() const = 0;
  /// Parses row `i`. Throws Error naming file and line when it is broken.
  virtual Json row(std::int64_t i) const = 0;
  /// The file.
  virtual const std::string& path() const = 0;
  /// "file.jsonl:12".
  virtual std::string where(std::int64_t i) const = 0;
};

/// Opens .json (a list of objects, or an object a line), .jsonl/.ndjson (an object a line), .csv/.tsv, .txt
/// (a text a line, given as {"text": line}), each also gzipped (.gz), and .parquet, .arrow and .feather where
/// the program was built with Apache Arrow. Files may be larger than memory. Throws Error for other kinds, a
/// missing or a broken file.
std::unique_ptr<RowReader> open_rows(const std::string& path);

/// True when open_rows knows the ending of this name.
bool is_data_file(const std::string& path);

/// Turns a row into a sample as LLaMA-Factory's converters do. Returns nullopt and the reason in `why` if the
/// row is not usable. A field that masks or replaces trained text is honoured, or its row is not usable
/// (src/data/fields.cc). Other fields that are not read are counted in `notes`.
std::optional<Sample> convert_row(const Json& row, const RowFormat& format, std::string* why,
                                  RowNotes* notes = nullptr);

/// Returns the turn that a role of messages names: user, assistant, observation, function, system; or "".
std::string turn_of_role(const RowFormat& format, const std::string& role);

/// Recognises the format of a row by its keys: messages, conversations, instruction, prompt + completion (or
/// response), input + target, {system,} user + assistant, text. Throws Error naming what was found.
RowFormat detect_format(const Json& row, const std::string& where);

/// Columns of data sets that nothing else describes; "": rows are recognised by the names of their columns.
struct Columns {
  std::string messages;          ///< conversations
  std::string prompt, response;  ///< or a question and an answer
};

/// The format of rows of which one is `row`, whose texts stand in these columns.
RowFormat format_of_columns(const Columns& columns, const Json& row);

/// Reads an entry of dataset_info.json. Unlisted columns are absent when `columns` is given, else the
/// defaults hold.
RowFormat format_of_entry(const Json& entry, const std::string& name, const std::string& where);

/// One data set: its rows in order, the first `limit` of them.
struct DataSource {
  std::string name;
  std::vector<std::shared_ptr<RowReader>> files;
  RowFormat format;
  std::int64_t rows = 0;          ///< rows used: after max_samples and num_samples
  bool sampled = false;           ///< num_samples chose some, every row once before any row twice
  std::uint64_t sample_seed = 0;  ///< … by this seed

  std::int64_t file_rows() const;  ///< of all files
  /// Row of the files, one behind the other, that stands at `i` (0 … rows - 1).
  std::int64_t row_at(std::int64_t i) const;
};

/// The columns of a data set that are read, and those with texts that are not.
struct ColumnUse {
  std::vector<std::string> read, unread_texts;
  std::vector<std::string> message_fields;  ///< fields of messages that are read
  /// Columns or fields decide how texts are trained: enable_thinking, weight, function_call.
  bool decides = false;
};

/// Looks at the first rows of each file.
ColumnUse column_use(const DataSource& source);

struct DataOptions {
  std::vector<std::string> dataset;  ///< names, paths or globs
  Columns columns;                   ///< of paths
  std::string split;                 ///< of folders; "": train, for evaluation validation or test if there
  bool evaluates = false;            ///< the sets are evaluated, not trained
  std::string dataset_dir = "data";
  std::optional<std::int64_t> max_samples;
  std::uint64_t seed = 42;
  std::string key = "dataset";  ///< configuration key, for messages
};

/// Resolves names (dataset_info.json), paths, folders and globs. Throws Error for what is missing (with the
/// nearest known name), for sets without rows, and for entries that need what is not there (a hub, ranking,
/// …).
std::vector<DataSource> open_datasets(const DataOptions& options);

}  // namespace octet::data
