#include "mpi/mpi_world.h"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "octet/base/error.h"
#include "octet/comm/job.h"

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

namespace {

namespace mpi = boost::mpi;

std::string error_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

}  // namespace

World* World::of_process = nullptr;

void must(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  if (tells_of_lost_ranks(code)) throw RanksLost();
  throw Error(Problem{
      .what = std::string(call) + " failed: " + error_text(code),
      .fix = "look for a failed rank or a broken network; earlier lines of mpirun may name the cause"});
}

bool truncated(int code) {
  int error_class = 0;
  MPI_Error_class(code, &error_class);
  return error_class == MPI_ERR_TRUNCATE;
}

std::string mpi_library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string version(text.data(), static_cast<std::size_t>(length));
  return version.substr(0, version.find_first_of(",\n"));
}

World::World()
    : environment(mpi::threading::serialized, false),
      thread_level(mpi::environment::thread_level()),
      all(MPI_COMM_WORLD, mpi::comm_attach) {}

void World::leave_out_the_lost() {
  MPI_Comm left = MPI_COMM_NULL;
  must(shrink(all, &left), "MPIX_Comm_shrink");
  lost = missing_from(all, left);
  lost_any = true;
  auto* const never_freed = new std::vector<mpi::communicator>(std::move(lanes));
  never_freed->push_back(std::exchange(all, mpi::communicator(left, mpi::comm_take_ownership)));
  never_freed->push_back(std::exchange(last_words, mpi::communicator()));
  lanes.clear();
}

}  // namespace octet::comm
