// Finds the MPI that this program was built with and its launcher.
#include <dlfcn.h>
#include <mpi.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <string_view>

#include "octet/base/environment.h"
#include "octet/base/strings.h"
#include "octet/comm/launchers.h"

namespace octet::comm {
namespace {

namespace fs = std::filesystem;

#if defined(OMPI_MAJOR_VERSION)
constexpr int kOpenMpi = OMPI_MAJOR_VERSION;
const std::string kName = "Open MPI " + std::to_string(OMPI_MAJOR_VERSION) + "." +
                          std::to_string(OMPI_MINOR_VERSION) + "." + std::to_string(OMPI_RELEASE_VERSION);
#elif defined(MPICH_VERSION)
constexpr int kOpenMpi = 0;
const std::string kName = std::string("MPICH ") + MPICH_VERSION;
#else
constexpr int kOpenMpi = 0;
const std::string kName = "another MPI";
#endif

bool is_program(const fs::path& file) {
  std::error_code none;
  return fs::is_regular_file(file, none) && ::access(file.c_str(), X_OK) == 0;
}

// Returns the folder of the loaded MPI; empty if it is unknown.
fs::path folder_of_library() {
  Dl_info found{};
  void* const function = ::dlsym(RTLD_DEFAULT, "MPI_Init");
  if (function == nullptr || ::dladdr(function, &found) == 0 || found.dli_fname == nullptr) return {};
  std::error_code none;
  return fs::canonical(found.dli_fname, none).parent_path();
}

// An installation has one root folder: lib/libmpi.so or lib/MACHINE/openmpi/lib/libmpi.so is under the same
// root as bin/mpirun.
std::vector<std::string> folders_to_look_in() {
  std::vector<std::string> folders;
  fs::path above = folder_of_library();
  for (int level = 0; level < 5 && above.has_relative_path(); ++level) {
    above = above.parent_path();
    folders.push_back(above / "bin");
  }
  const char* path = environment_variable("PATH");
  if (path != nullptr) {
    for (const std::string& folder : split(path, ':'))
      if (!folder.empty()) folders.push_back(folder);
  }
  return folders;
}

}  // namespace

std::string owner_of_mpirun(const std::string& file) {
  std::error_code none;
  if (!is_program(file)) return "";
  const fs::path real = fs::canonical(file, none);
  const std::string name = real.filename();
  for (const char* word : {"openmpi", "orterun", "prterun", "ompi"})
    if (name.find(word) != std::string::npos) return "Open MPI";
  for (const char* word : {"hydra", "mpich"})
    if (name.find(word) != std::string::npos) return "MPICH";
  // All MPIs use this name, so the neighbouring files of the package identify the MPI.
  const bool open = is_program(real.parent_path() / "ompi_info");
  const bool mpich =
      is_program(real.parent_path() / "mpichversion") || is_program(real.parent_path() / "hydra_pmi_proxy");
  if (open != mpich) return open ? "Open MPI" : "MPICH";
  return "";
}

std::string find_mpirun(const std::string& mpi, const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    for (const char* name : {"mpirun", "mpiexec", "mpirun.openmpi", "mpirun.mpich", "mpiexec.hydra"}) {
      std::string file = folder + "/" + name;
      const std::string owner = owner_of_mpirun(file);
      if (!owner.empty() && mpi.starts_with(owner)) return file;
    }
  }
  return "";
}

bool open_mpi_speaks_pmi2(int major_version, const std::string& folder) {
  if (major_version >= 5) return false;  // PMIx only
  std::error_code none;
  bool plugins = false;
  for (fs::recursive_directory_iterator at(folder, none), end; !none && at != end; at.increment(none)) {
    const std::string name = at->path().filename();
    if (!name.starts_with("mca_pmix_")) continue;
    if (name.starts_with("mca_pmix_s1.") || name.starts_with("mca_pmix_s2.")) return true;
    plugins = true;
  }
  return !plugins;
}

ProgramMpi program_mpi() {
  ProgramMpi mpi{.name = kName, .mpirun = find_mpirun(kName, folders_to_look_in())};
  const fs::path library = folder_of_library();
  if (kOpenMpi > 0 && !library.empty()) mpi.speaks_pmi2 = open_mpi_speaks_pmi2(kOpenMpi, library / "openmpi");
  return mpi;
}

}  // namespace octet::comm
