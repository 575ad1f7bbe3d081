// The first message between ranks: the program's version and build, in bytes that every version can read.
// Later messages may differ between versions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace octet::comm {

/// Size of an introduction in bytes. Fixed for all future versions.
inline constexpr std::size_t kIntroductionBytes = 512;

/// Returns this rank's introduction, of kIntroductionBytes bytes.
std::string introduction(const std::string& version, const std::string& build, const std::string& host);

/// Throws Error (usage), agreed by all ranks, if a rank runs another version or build than rank 0. It names
/// that rank, its host and both programs. `told`: introductions by rank; `rank`: this rank.
void require_same_build(const std::vector<std::string>& told, int rank);

}  // namespace octet::comm
