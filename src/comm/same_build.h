// The first thing that ranks tell each other: which program they are, in bytes that every version of it
// reads. Whatever is said after that, one version may say otherwise than another.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace octet::comm {

/// The size of what each rank tells. It stays, in all versions to come.
inline constexpr std::size_t kIntroductionBytes = 512;

/// What a rank tells of itself: so many bytes.
std::string introduction(const std::string& version, const std::string& build, const std::string& host);

/// Throws Error (usage), agreed upon by all ranks, where one of them is another version or build than rank 0:
/// it names that rank, its host and both programs. `told`: every rank's introduction, by rank; `rank`: this
/// one's number.
void require_same_build(const std::vector<std::string>& told, int rank);

}  // namespace octet::comm
