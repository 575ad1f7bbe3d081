#include "mpi/mpi_survival.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>

namespace octet::comm {
namespace {

// Constants of Open MPI 5's mpi.h, for builds with an older version.
constexpr int proc_failed = 75, proc_failed_pending = 76, revoked = 77;

struct Functions {
  int (*revoke)(MPI_Comm) = nullptr;
  int (*shrink)(MPI_Comm, MPI_Comm*) = nullptr;
};

// The numbers above are Open MPI's.
bool is_open_mpi_5() {
  std::string text(MPI_MAX_LIBRARY_VERSION_STRING, '\0');
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string name = "Open MPI v";
  return text.starts_with(name) && std::atoi(text.c_str() + name.size()) >= 5;
}

const Functions& survival_functions() {
  static const Functions found = [] {
    Functions all;
    if (!is_open_mpi_5()) return all;
    const auto look_up = [](auto& function, const char* name) {
      void* const symbol = dlsym(RTLD_DEFAULT, name);
      static_assert(sizeof symbol == sizeof function);
      std::memcpy(&function, &symbol, sizeof symbol);
    };
    look_up(all.revoke, "MPIX_Comm_revoke");
    look_up(all.shrink, "MPIX_Comm_shrink");
    return all;
  }();
  return found;
}

}  // namespace

bool has_ulfm() {
  return survival_functions().revoke != nullptr && survival_functions().shrink != nullptr;
}

bool tells_of_lost_ranks(int code) {
  if (code == MPI_SUCCESS || !has_ulfm()) return false;
  int error_class = 0;
  MPI_Error_class(code, &error_class);
  return error_class == proc_failed || error_class == proc_failed_pending || error_class == revoked;
}

void revoke(MPI_Comm communicator) {
  survival_functions().revoke(communicator);
}

int shrink(MPI_Comm all, MPI_Comm* left) {
  return survival_functions().shrink(all, left);
}

std::vector<int> missing_from(MPI_Comm all, MPI_Comm left) {
  MPI_Group before = MPI_GROUP_NULL, after = MPI_GROUP_NULL;
  MPI_Comm_group(all, &before);
  MPI_Comm_group(left, &after);
  int size = 0;
  MPI_Group_size(before, &size);
  std::vector<int> ranks(static_cast<std::size_t>(size)), there(ranks.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  MPI_Group_translate_ranks(before, size, ranks.data(), after, there.data());
  MPI_Group_free(&before);
  MPI_Group_free(&after);
  std::vector<int> missing;
  for (const int rank : ranks) {
    if (there[static_cast<std::size_t>(rank)] == MPI_UNDEFINED) missing.push_back(rank);
  }
  return missing;
}

}  // namespace octet::comm
