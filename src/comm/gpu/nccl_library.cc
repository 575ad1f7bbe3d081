#include "gpu/nccl_library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "octet/base/environment.h"

namespace octet::comm {
namespace {

constexpr std::array needed_functions = {
    "ncclGetVersion",        "ncclGetUniqueId",  "ncclCommInitRankConfig",
    "ncclCommFinalize",      "ncclCommDestroy",  "ncclGetErrorString",
    "ncclCommGetAsyncError", "ncclGetLastError", "ncclGroupStart",
    "ncclGroupEnd",          "ncclSend",         "ncclRecv",
    "ncclReduceScatter",     "ncclAllGather",
};

std::string least() {
  return "NCCL " + nccl_version_name(least_nccl_version) + " or newer";
}

constexpr const char* install =
    "install NCCL (libnccl2 of NVIDIA's repository, or pip install nvidia-nccl-cu13) on every node, and name "
    "its folder in LD_LIBRARY_PATH or the file libnccl.so.2 itself in OCTETRUN_NCCL_LIBRARY";

/// Returns the paths of the NCCL wheel in a Python environment.
std::vector<std::string> files_of_wheels(const std::filesystem::path& environment) {
  std::vector<std::string> files;
  std::error_code none;  // missing folders hold no files
  for (const auto& folder : std::filesystem::directory_iterator(environment / "lib", none)) {
    const auto file = folder.path() / "site-packages/nvidia/nccl/lib/libnccl.so.2";
    if (std::filesystem::exists(file, none)) files.push_back(file);
  }
  std::ranges::sort(files);
  return files;
}

/// Returns the path that the loader found, which a name without a folder does not contain.
std::string file_of(void* handle, const std::string& name) {
  const link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map->l_name[0] == '\0') return name;
  return map->l_name;
}

/// Returns "rank 3" or "ranks 3, 4"; a long list is shortened.
std::string named(const std::vector<int>& ranks) {
  constexpr std::size_t most = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), most); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  if (ranks.size() > most) text += " and " + std::to_string(ranks.size() - most) + " more";
  return text;
}

}  // namespace

std::string nccl_version_name(int version) {
  // Up to 2.8, version numbers had two digits less.
  const int thousand = version < 10000 ? 1000 : 10000;
  return std::to_string(version / thousand) + "." + std::to_string(version % thousand / 100) + "." +
         std::to_string(version % 100);
}

std::vector<std::string> nccl_files() {
  if (const char* told = environment_variable("OCTETRUN_NCCL_LIBRARY"); told != nullptr && *told != '\0')
    return {told};
  std::vector<std::string> files = {"libnccl.so.2"};
  if (const char* environment = environment_variable("VIRTUAL_ENV");
      environment != nullptr && *environment != '\0') {
    std::ranges::copy(files_of_wheels(environment), std::back_inserter(files));
  }
  files.emplace_back("/usr/local/cuda/lib64/libnccl.so.2");
  return files;
}

NcclLibrary::NcclLibrary(const std::vector<std::string>& files) {
  std::string why;
  for (const std::string& file : files) {
    handle_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      file_ = file_of(handle_, file);
      break;
    }
    const char* reason = dlerror();
    why += (why.empty() ? "" : "; ") + (reason != nullptr ? std::string(reason) : file + " does not load");
  }
  if (handle_ == nullptr) {
    throw Error(Problem{.what = "NCCL, which sends data between GPUs, cannot be loaded",
                        .expected = least(),
                        .found = why,
                        .fix = install,
                        .code = ExitCode::usage});
  }
  // A rejected library has run only a function that returns a number, so it can be unloaded.
  const auto refuse = [&](Problem problem) {
    dlclose(handle_);
    problem.where = file_;
    problem.fix = install;
    problem.code = ExitCode::usage;
    throw Error(std::move(problem));
  };
  // Checks the version first: functions missing from an old version are not the actual problem.
  if (dlsym(handle_, needed_functions.front()) == nullptr) {
    refuse({.what = "a library is not NCCL",
            .expected = least(),
            .found = std::string("no function ") + needed_functions.front(),
            .fix = "set OCTETRUN_NCCL_LIBRARY to the path of libnccl.so.2, or unset it"});
  }
  int (*get_version)(int*) = nullptr;
  find(get_version, needed_functions.front());
  if (get_version(&version_) != 0 || version_ < least_nccl_version) {
    refuse({.what = "this NCCL is too old",
            .expected = least(),
            .found = version_ > 0 ? "NCCL " + nccl_version_name(version_) : "no version",
            .fix = "install a newer one (libnccl2 or the wheel nvidia-nccl-cu13), and name its libnccl.so.2 "
                   "in OCTETRUN_NCCL_LIBRARY"});
  }
  for (const char* name : needed_functions) {
    if (dlsym(handle_, name) != nullptr) continue;
    refuse({.what = std::string("this NCCL has no function ") + name,
            .expected = least() + ", complete",
            .found = "NCCL " + nccl_version_name(version_) + " without it",
            .fix = "install another one (libnccl2 or the wheel nvidia-nccl-cu13), and name its libnccl.so.2 "
                   "in OCTETRUN_NCCL_LIBRARY"});
  }
}

std::string NcclLibrary::description() const {
  return "NCCL " + nccl_version_name(version_) + " (" + file_ + ")";
}

void* NcclLibrary::address_of(const char* name) const {
  const bool looked_for =
      std::ranges::any_of(needed_functions, [&](std::string_view f) { return f == name; });
  octet::check(looked_for, "only functions of NCCL that were loaded are called");
  return dlsym(handle_, name);
}

const NcclLibrary& nccl_library() {
  // Never destroyed, because its threads may outlive main().
  static const NcclLibrary* const library = new NcclLibrary(nccl_files());
  return *library;
}

void require_one_nccl_version(const std::vector<int>& versions) {
  std::map<int, std::vector<int>> ranks_of;
  for (std::size_t rank = 0; rank < versions.size(); ++rank) {
    ranks_of[versions[rank]].push_back(static_cast<int>(rank));
  }
  if (ranks_of.size() <= 1) return;
  // The most common version; if two are equally common, the version of the lowest rank.
  const auto usual = std::ranges::max_element(ranks_of, [](const auto& a, const auto& b) {
    const std::vector<int>&left = a.second, &right = b.second;
    return left.size() != right.size() ? left.size() < right.size() : left.front() > right.front();
  });
  std::string found;
  for (const auto& [version, ranks] : ranks_of) {
    if (version == usual->first) continue;
    found += (found.empty() ? "NCCL " : "; NCCL ") + nccl_version_name(version) + " on " + named(ranks);
  }
  throw Error(Problem{
      .what = "ranks run different versions of NCCL",
      .expected = "NCCL " + nccl_version_name(usual->first) + " on all, as on " + named(usual->second),
      .found = found,
      .fix = "install the same NCCL on every node, or name the same file on all in "
             "OCTETRUN_NCCL_LIBRARY",
      .code = ExitCode::usage});
}

void require_a_gpu_each(const std::vector<std::string>& gpus) {
  std::map<std::string, std::vector<int>> ranks_of;
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    ranks_of[gpus[rank]].push_back(static_cast<int>(rank));
  }
  for (const auto& [gpu, ranks] : ranks_of) {
    if (ranks.size() == 1) continue;
    throw Error(Problem{.what = "NCCL allows only one rank on each GPU",
                        .found = named(ranks) + " on " + gpu,
                        .fix = "start one rank for each GPU, or set gpu_transport: auto"});
  }
}

Problem nccl_problem(const NcclFailure& failure) {
  std::string where =
      "member " + std::to_string(failure.member) + " of a group of " + std::to_string(failure.members);
  if (failure.peer >= 0) where += ", with member " + std::to_string(failure.peer);
  where += ", " + failure.library;
  const auto says = [&](const char* words) { return failure.detail.find(words) != std::string::npos; };
  // NCCL's texts up to 2.29 and from then on.
  if (failure.call == "ncclCommInitRankConfig" && (says("Duplicate GPU") || says("using the same GPU"))) {
    return {.what = "two ranks of one host use the same GPU, which NCCL does not allow",
            .expected = "a GPU for every rank",
            .found = failure.detail,
            .where = where,
            .fix =
                "start at most one rank for each GPU of a host (-np of mpirun, slots in the hostfile), and "
                "let ranks see different GPUs (CUDA_VISIBLE_DEVICES)",
            .code = ExitCode::usage};
  }
  return {.what = failure.call + " failed: " + failure.reason + " (" + std::to_string(failure.code) + ")",
          .found = failure.detail,
          .where = where,
          .fix =
              "read the messages of other ranks, which may have failed first; NCCL_DEBUG=INFO in the "
              "environment makes NCCL log its actions"};
}

}  // namespace octet::comm
