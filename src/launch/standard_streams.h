// Writes to the standard streams without delay. A missing reader is no error: it must not affect a run.
#pragma once

#include <exception>
#include <string_view>

namespace octet::launch {

/// Writes all bytes. Returns false if the file accepts none, like a pipe without a reader.
bool write_all(int file, std::string_view text);

/// Writes to standard error.
void write_error(std::string_view text);

/// Writes the message of an exception to standard error, and returns its exit code.
int tell_exception(const std::exception& e);

}  // namespace octet::launch
