// Parts of the conversion of rows to samples. All functions throw Unusable for a row that cannot be used.
#pragma once

#include "fields.h"
#include "octet/base/json_fwd.h"
#include "octet/data/dataset.h"

namespace octet::data {

/// Converts a row of messages.
Sample convert_messages(const Json& row, const RowFormat& format, Noted& noted);

/// Converts a question and an answer of which at least one is a list of messages (TRL, verl). Answers in the
/// question are context and are not trained.
Sample convert_message_pair(const Json& question, const Json& answer, const RowFormat& format, Noted& noted);

/// Converts a row with a question column and an answer column.
Sample convert_pair(const Json& row, const RowFormat& format, Noted& noted);

/// Converts a row with a chosen and a rejected answer. The chosen answer is the last turn.
Sample convert_preference(const Json& row, const RowFormat& format, Noted& noted);

/// Reads the system text and the tools of a row from its columns.
void read_columns_beside(const Json& row, const RowFormat& format, Sample& sample, Noted& noted);

}  // namespace octet::data
