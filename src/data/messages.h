// Lists of messages as samples.
#pragma once

#include "fields.h"
#include "octet/data/dataset.h"

namespace octet::data {

/// Converts a row of messages. Throws Unusable.
Sample convert_messages(const Json& row, const RowFormat& format, Noted& noted);

/// Converts a question and an answer of which at least one is a list of messages (TRL, verl). Answers in the
/// question are context and are not trained. Throws Unusable.
Sample convert_message_pair(const Json& question, const Json& answer, const RowFormat& format, Noted& noted);

/// Reads the system text and the tools of a row from its columns. Throws Unusable.
void read_columns_beside(const Json& row, const RowFormat& format, Sample& sample, Noted& noted);

}  // namespace octet::data
