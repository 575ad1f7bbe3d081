#pragma once

#include <string>

namespace octet::cli {

/// `trainer --version`: version, commit, and what was built in.
std::string version_text();

/// "commit a47908d4b219", with " and changes" where sources were not committed. The build writes its body.
const char* commit_text();

}  // namespace octet::cli
