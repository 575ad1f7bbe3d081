// NCCL as a library that is loaded when it is first needed, so that a program that was built with it starts
// where there is none. Everything that decides lies here, in every build: which files are tried, which
// versions will do, and what is said when it does not work. Nothing here knows NCCL's types.
#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include "octet/base/error.h"

namespace octet::comm {

/// The oldest NCCL that will do. Versions are NCCL's own numbers: 22809 is 2.28.9.
inline constexpr int least_nccl_version = 22200;
/// "2.28.9" of 22809.
std::string nccl_version_name(int version);

/// The files that are tried, in order. When the environment's OCTETRUN_NCCL_LIBRARY names one, that one
/// alone. Otherwise libnccl.so.2 where the loader finds it (LD_LIBRARY_PATH, /etc/ld.so.conf), then in the
/// Python environment that is active (VIRTUAL_ENV), then in the CUDA toolkit.
std::vector<std::string> nccl_files();

/// A loaded NCCL that has all functions that Octet calls. It stays loaded until the process ends: NCCL has
/// threads of its own.
class NcclLibrary {
 public:
  /// Takes the first of `files` that can be loaded. Throws Error when there is none, when it is older than
  /// least_nccl_version, and when it lacks a function.
  explicit NcclLibrary(const std::vector<std::string>& files);
  NcclLibrary(const NcclLibrary&) = delete;
  NcclLibrary& operator=(const NcclLibrary&) = delete;

  int version() const { return version_; }
  /// Where it was found.
  const std::string& file() const { return file_; }
  /// "NCCL 2.28.9 (/usr/lib/libnccl.so.2)".
  std::string description() const;

  /// Points `function`, whose type the caller knows, at the function of that name, which is one of those that
  /// the constructor looked for.
  template <typename Function>
  void find(Function*& function, const char* name) const {
    static_assert(std::is_function_v<Function>);
    function = reinterpret_cast<Function*>(address_of(name));
  }

 private:
  void* address_of(const char* name) const;

  void* handle_ = nullptr;
  int version_ = 0;
  std::string file_;
};

/// NCCL for this process: nccl_files(), loaded by the first call. Throws what NcclLibrary throws, at every
/// call then.
const NcclLibrary& nccl_library();

/// Throws Error, the same on all ranks, when the versions differ (by rank): it names the ranks whose version
/// is not that of most. NCCL itself would refuse some of them, after the others have begun to wait.
void require_one_nccl_version(const std::vector<int>& versions);

/// Throws Error, the same on all ranks, when two of them compute on the same GPU (UUIDs, by rank): NCCL takes
/// one rank of a group for each GPU, and some ranks would wait for those that it refuses.
void require_a_gpu_each(const std::vector<std::string>& gpus);

/// A call of NCCL that did not succeed.
struct NcclFailure {
  std::string call;     ///< "ncclSend"
  int code = 0;         ///< ncclResult_t
  std::string reason;   ///< NCCL's words for the code
  std::string detail;   ///< its latest warning; may be empty, or about something else
  std::string library;  ///< NcclLibrary::description()
  int member = 0;       ///< of the group
  int members = 1;
  int peer = -1;  ///< the member that the call was about; -1: all
};
/// What to tell the user about it.
Problem nccl_problem(const NcclFailure& failure);

}  // namespace octet::comm
