#include "mpi_transport.h"

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/log.h"
#include "self_transport.h"

namespace octet::comm {
namespace {

using Clock = std::chrono::steady_clock;

// How much longer than the rank below it a rank waits before it says why the job ends, how long it lets its
// announcement travel, and how long a silent rank waits to be ended.
constexpr auto turn_to_speak = std::chrono::milliseconds(300);
constexpr auto announcement = std::chrono::milliseconds(50);
constexpr auto last_words_patience = std::chrono::seconds(5);

std::string error_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

// Errors come back as codes and leave as Errors; whoever runs the collective adds its name and ends the job.
void must(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  throw Error(
      Problem{.what = std::string(call) + " failed: " + error_text(code),
              .fix = "look for a dead rank or a broken network; mpirun's own lines above may say more"});
}

class MpiTransport final : public Transport {
 public:
  MpiTransport() {
    int initialised = 0;
    MPI_Initialized(&initialised);
    if (initialised) {
      throw Error(Problem{.what = "MPI is initialised already", .fix = "make one communicator a process"});
    }
    int level = MPI_THREAD_SINGLE;
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS) {
      throw Error(Problem{
          .what = "MPI_Init_thread failed",
          .fix = "start with mpirun (or srun with PMIx) of the MPI that this program was built with"});
    }
    require_threads(level);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (MPI_Comm& queue : queues_) {
      must(MPI_Comm_dup(MPI_COMM_WORLD, &queue), "MPI_Comm_dup");
      must(MPI_Comm_set_errhandler(queue, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    }
    must(MPI_Comm_dup(MPI_COMM_WORLD, &last_words_), "MPI_Comm_dup");
    must(MPI_Comm_set_errhandler(last_words_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    find_place();
  }

  const Place& place() const override { return place_; }
  // Far from 2^31, as counts are ints and some paths inside MPI multiply them; and small enough that messages
  // complete now and then while a long slice travels, which is how the engine sees that something moves.
  std::size_t max_message() const override { return std::size_t{1} << 24; }

  int isend(Queue queue, int peer, int tag, const void* data, std::size_t bytes) override {
    const int ticket = new_ticket(tag, 0, Direction::send);
    must(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, peer, tag, comm_of(queue),
                   &requests_[ticket].request),
         "MPI_Isend");
    return ticket;
  }

  int irecv(Queue queue, int peer, int tag, void* data, std::size_t bytes) override {
    const int ticket = new_ticket(tag, bytes, Direction::receive);
    // Any tag: a message of another collective is an error to report, not one to wait behind for ever.
    must(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, peer, MPI_ANY_TAG, comm_of(queue),
                   &requests_[ticket].request),
         "MPI_Irecv");
    return ticket;
  }

  bool test(int ticket) override {
    Pending& pending = requests_[ticket];
    int through = 0;
    MPI_Status status;
    const int code = MPI_Test(&pending.request, &through, &status);
    if (code != MPI_SUCCESS) {
      int error_class = 0;
      MPI_Error_class(code, &error_class);
      if (error_class == MPI_ERR_TRUNCATE) {
        throw Error(mismatch(pending.tag, pending.bytes, status.MPI_TAG, pending.bytes + 1) + " or more");
      }
      must(code, "MPI_Test");
    }
    if (!through) return false;
    if (pending.direction == Direction::receive) {
      int bytes = 0;
      must(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
      if (status.MPI_TAG != pending.tag || static_cast<std::size_t>(bytes) != pending.bytes) {
        throw Error(mismatch(pending.tag, pending.bytes, status.MPI_TAG, static_cast<std::size_t>(bytes)));
      }
    }
    free_.push_back(ticket);
    return true;
  }

  std::optional<int> probe(Queue queue) override {
    int found = 0;
    MPI_Status status;
    must(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_of(queue), &found, &status), "MPI_Iprobe");
    return found != 0 ? std::optional<int>(status.MPI_SOURCE) : std::nullopt;
  }

  void progress() override {
    // Sends that are through for us may still lie in MPI's own queues, which move only inside its calls.
    int found = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_of(Queue::control), &found, MPI_STATUS_IGNORE);
  }

  void finish() override {
    for (MPI_Comm& queue : queues_) MPI_Comm_free(&queue);
    MPI_Comm_free(&last_words_);
    MPI_Finalize();
  }

  [[noreturn]] void end_job(const std::string& message, int code) override {
    if (!message.empty()) {
      if (may_speak()) {
        log::error(message);
      } else {
        std::this_thread::sleep_for(last_words_patience);  // whoever spoke ends this rank meanwhile
      }
    }
    MPI_Abort(MPI_COMM_WORLD, code);
    _exit(code);
  }

  bool is_process() const override { return true; }

 private:
  enum class Direction { send, receive };
  struct Pending {
    MPI_Request request = MPI_REQUEST_NULL;
    int tag = 0;
    std::size_t bytes = 0;
    Direction direction = Direction::send;
  };

  // Often several ranks notice the same thing, and an abort takes its time: one of them should be heard, the
  // lowest if it is quick. So each waits longer than those below it, is silent once another has announced its
  // words, and announces its own before it says them.
  bool may_speak() {
    const auto until = [this](Clock::time_point end) {
      int announced = 0;
      do {
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, last_words_, &announced, MPI_STATUS_IGNORE);
        if (announced == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      } while (announced == 0 && Clock::now() < end);
      return announced != 0;
    };
    if (until(Clock::now() + turn_to_speak * std::min(place_.rank, 8))) return false;
    std::vector<MPI_Request> announcements;
    for (int peer = 0; peer < place_.size; ++peer) {
      if (peer == place_.rank) continue;
      MPI_Isend(nullptr, 0, MPI_BYTE, peer, 0, last_words_, &announcements.emplace_back());
    }
    // What is sent here may still lie in MPI's queues, which move only inside its calls. Where two announced
    // at the same moment, the lower one speaks.
    for (const auto end = Clock::now() + announcement; Clock::now() < end;) {
      int through = 0;
      MPI_Testall(static_cast<int>(announcements.size()), announcements.data(), &through,
                  MPI_STATUSES_IGNORE);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    int lower = 0;
    for (int peer = 0; peer < place_.rank && lower == 0; ++peer) {
      MPI_Iprobe(peer, MPI_ANY_TAG, last_words_, &lower, MPI_STATUS_IGNORE);
    }
    return lower == 0;
  }

  static std::string library_version() {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int length = 0;
    MPI_Get_library_version(text.data(), &length);
    const std::string version(text.data(), static_cast<std::size_t>(length));
    return version.substr(0, version.find_first_of(",\n"));
  }

  // Ends the job where a rank's MPI allows no thread beside the one that calls it; the lowest of these
  // speaks.
  static void require_threads(int level) {
    int rank = 0, size = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const int lacking = level < MPI_THREAD_FUNNELED ? rank : size;
    int lowest = size;
    MPI_Allreduce(&lacking, &lowest, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (lowest == size) return;
    if (rank == lowest) {
      log::error(Error(Problem{.what = "this MPI allows no threads beside it",
                               .expected = "MPI_THREAD_FUNNELED or more",
                               .found = "MPI_THREAD_SINGLE (" + library_version() + ")",
                               .fix = "use an MPI that is built with thread support"})
                     .what());
    }
    MPI_Barrier(MPI_COMM_WORLD);  // nobody ends the job before that was said
    MPI_Abort(MPI_COMM_WORLD, static_cast<int>(ExitCode::failure));
  }

  void find_place() {
    MPI_Comm_rank(MPI_COMM_WORLD, &place_.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &place_.size);
    MPI_Comm node = MPI_COMM_NULL;
    must(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, place_.rank, MPI_INFO_NULL, &node),
         "MPI_Comm_split_type");
    // A node is known by the lowest rank on it.
    int lowest = place_.rank;
    must(MPI_Bcast(&lowest, 1, MPI_INT, 0, node), "MPI_Bcast");
    MPI_Comm_free(&node);
    std::vector<int> lowest_of(place_.size);
    must(MPI_Allgather(&lowest, 1, MPI_INT, lowest_of.data(), 1, MPI_INT, MPI_COMM_WORLD), "MPI_Allgather");
    set_nodes(place_, lowest_of);
    place_.host = host_name();
  }

  MPI_Comm comm_of(Queue queue) const { return queues_[static_cast<int>(queue)]; }

  int new_ticket(int tag, std::size_t bytes, Direction direction) {
    if (free_.empty()) {
      free_.push_back(static_cast<int>(requests_.size()));
      requests_.emplace_back();
    }
    const int ticket = free_.back();
    free_.pop_back();
    requests_[ticket] = {MPI_REQUEST_NULL, tag, bytes, direction};
    return ticket;
  }

  Place place_;
  std::array<MPI_Comm, queue_count> queues_{};
  MPI_Comm last_words_ = MPI_COMM_NULL;
  std::vector<Pending> requests_;
  std::vector<int> free_;
};

}  // namespace

std::unique_ptr<Transport> make_mpi_transport() {
  return std::make_unique<MpiTransport>();
}

}  // namespace octet::comm
