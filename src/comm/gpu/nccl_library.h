// Loads NCCL at first use, so that a program built with NCCL starts on machines without it. Contains all NCCL
// decisions, in every build: the files to try, the accepted versions and the error messages. Does not use
// NCCL's types.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "gpu/exchange.h"
#include "octet/base/error.h"
#include "octet/device/device.h"

namespace octet::comm {

/// The oldest supported NCCL. Versions are NCCL's numbers: 22809 is 2.28.9.
inline constexpr int least_nccl_version = 22200;
/// "2.28.9" of 22809.
std::string nccl_version_name(int version);

/// Returns the files to try, in order. If the environment variable OCTETRUN_NCCL_LIBRARY names a file, only
/// that file. Otherwise libnccl.so.2 from the loader's paths (LD_LIBRARY_PATH, /etc/ld.so.conf), then from
/// the active Python environment (VIRTUAL_ENV), then from the CUDA toolkit.
std::vector<std::string> nccl_files();

/// A loaded NCCL with all functions that Octet calls. It stays loaded until the process ends, because NCCL
/// runs its own threads.
class NcclLibrary {
 public:
  /// Loads the first of `files` that can be loaded. Throws Error if none can be loaded, if it is older than
  /// least_nccl_version, or if it lacks a function.
  explicit NcclLibrary(const std::vector<std::string>& files);
  NcclLibrary(const NcclLibrary&) = delete;
  NcclLibrary& operator=(const NcclLibrary&) = delete;

  int version() const { return version_; }
  /// Returns the path of the loaded file.
  const std::string& file() const { return file_; }
  /// "NCCL 2.28.9 (/usr/lib/libnccl.so.2)".
  std::string description() const;

  /// Sets `function` to the address of the NCCL function `name`. The caller provides the type. `name` must be
  /// a function that the constructor looked up.
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

/// Returns NCCL for this process, loaded from nccl_files() by the first call. Throws like NcclLibrary; after
/// a failure, every call throws.
const NcclLibrary& nccl_library();

/// Throws Error, equal on all ranks, if the versions (by rank) differ. The Error names the ranks with a
/// version other than the most common. NCCL itself would reject some ranks after the others have begun to
/// wait.
void require_one_nccl_version(const std::vector<int>& versions);

/// Throws Error, equal on all ranks, if two ranks compute on the same GPU (UUIDs, by rank). NCCL accepts one
/// rank of a group per GPU, and some ranks would wait for the rejected ranks.
void require_a_gpu_each(const std::vector<std::string>& gpus);

/// A failed call of NCCL.
struct NcclFailure {
  std::string call;     ///< "ncclSend"
  int code = 0;         ///< ncclResult_t
  std::string reason;   ///< NCCL's text for the code
  std::string detail;   ///< its latest warning; may be empty or unrelated
  std::string library;  ///< NcclLibrary::description()
  int member = 0;       ///< rank in the group
  int members = 1;
  int peer = -1;  ///< the member that the call addressed; -1: all
};
/// Returns the message for the user.
Problem nccl_problem(const NcclFailure& failure);

// The NCCL carrier: an exchange for each queue, or the reason why it is unavailable. The only place where
// builds with and without CUDA and NCCL differ.

/// Loads NCCL and returns its version. Throws Error if it is missing, too old or not built in.
int load_nccl();
/// Returns the UUID of the GPU, equal for all processes that use it.
std::string gpu_uuid(Device& device);
/// Returns the bytes that identify one exchange. Called on one rank.
std::string make_nccl_id();
/// Called by all ranks together, with the bytes of rank 0, after load_nccl(). Returns when all ranks have
/// arrived and are connected.
std::unique_ptr<Exchange> make_nccl_exchange(Device& device, const std::string& id, int rank, int size);

}  // namespace octet::comm
