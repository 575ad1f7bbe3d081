#include "mpi/mpi_world.h"

#include <array>
#include <string>
#include <utility>

#include "mpi/mpi_survival.h"
#include "octet/base/error.h"
#include "octet/comm/job.h"

namespace octet::comm {
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
