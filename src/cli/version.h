#pragma once

#include <string>

namespace octet::cli {

/// Returns the text of `trainer --version`: version, commit and built-in features.
std::string version_text();

/// Returns "commit a47908d4b219", followed by " and changes" for uncommitted sources. The build generates its
/// body.
const char* commit_text();

}  // namespace octet::cli
