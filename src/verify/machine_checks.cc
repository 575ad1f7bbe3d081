// Checks of processes and of the resources of their machines.
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "octet/base/build.h"
#include "octet/base/files.h"
#include "octet/base/strings.h"
#include "octet/base/timing.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/checkpoint/folder.h"
#include "octet/checkpoint/save.h"
#include "octet/comm/libraries.h"
#include "octet/device/cpu.h"
#include "octet/device/device.h"
#include "octet/device/gpus.h"
#include "octet/train/trainer.h"
#include "verify_checks.h"

namespace octet::verify {
namespace {

// Least memory for a rank of the smallest models, and least disk space for a few of their checkpoints.
constexpr std::int64_t kLeastMemory = std::int64_t{512} << 20;
constexpr std::int64_t kLeastRoom = std::int64_t{1} << 30;

// Returns the free bytes of the file system of a folder; -1 if unknown.
std::int64_t free_at(const std::string& folder) {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0 || disk.f_blocks == 0) return -1;
  return static_cast<std::int64_t>(disk.f_bavail) * static_cast<std::int64_t>(disk.f_frsize);
}

rlim_t limit_of(int which) {
  rlimit limit{};
  return ::getrlimit(static_cast<__rlimit_resource>(which), &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

std::string text_of(rlim_t limit, bool bytes) {
  if (limit == RLIM_INFINITY) return "unlimited";
  return bytes ? human_bytes(static_cast<double>(limit)) : with_commas(static_cast<std::int64_t>(limit));
}

}  // namespace

Error failed(const std::string& what, const std::string& expected, const std::string& found,
             const std::string& fix) {
  return Error({.what = what, .expected = expected, .found = found, .fix = fix});
}

std::string per_second(double bytes, double seconds) {
  return human_bytes(bytes / std::max(seconds, 1e-9)) + " per second";
}

std::string check_ranks(runtime::Session& session) {
  const comm::Place& place = session.place();
  std::string text = std::to_string(place.size) + (place.size == 1 ? " rank" : " ranks") + " on " +
                     std::to_string(place.nodes) + (place.nodes == 1 ? " node" : " nodes");
  const comm::RunningMpi mpi = comm::running_mpi();
  session.job().together([&] {
    if (mpi.enough) return;
    throw failed("this MPI does not support threads", "MPI_THREAD_FUNNELED or more",
                 mpi.threads + " (" + mpi.library + ")",
                 "use an MPI that was built with thread support, and build the program with it");
  });
  return text + (mpi.library.empty() ? ", without a launcher" : ", " + mpi.threads + ", " + mpi.library);
}

std::string check_sameness(runtime::Session& session, const config::Config& config) {
  train::require_same_start(session, program_version(), config);
  return session.place().size == 1 ? "only one rank, nothing to compare"
                                   : "build, configuration and variables are the same on every rank";
}

std::string check_cores(runtime::Session& session) {
  const std::int64_t threads = cpu::op_threads();
  const std::int64_t least = session.job().all_min(threads);
  const std::int64_t all = session.job().all_sum(threads);
  std::string text = std::to_string(all) + " threads in all, at least " + std::to_string(least) + " per rank";
  const long cores = ::sysconf(_SC_NPROCESSORS_ONLN);
  if (session.place().local_size > cores) text += "; more ranks than cores: they share cores";
  return text;
}

std::string check_memory(runtime::Session& session) {
  const std::unique_ptr<Device> host = make_cpu_device({.threads = cpu::op_threads()});
  const auto free = static_cast<std::int64_t>(host->memory().free);
  const std::int64_t ranks = session.place().local_size;
  session.job().together([&] {
    if (free >= kLeastMemory * ranks) return;
    throw failed(
        "the host has too little free memory for its ranks",
        human_bytes(static_cast<double>(kLeastMemory)) + " for each of " + std::to_string(ranks) +
            (ranks == 1 ? " rank" : " ranks") + ", and what the model needs (trainer plan)",
        human_bytes(static_cast<double>(free)) + " free",
        "end other programs (top), start fewer ranks, or raise the limit of the container or the job");
  });
  const std::int64_t least = session.job().all_min(free);
  std::string text = human_bytes(static_cast<double>(least)) + " of the host are free";
  return session.place().nodes > 1 ? text + ", on the host with least" : text;
}

std::string check_limits(runtime::Session& session) {
  constexpr std::int64_t kSharedMemory = std::int64_t{32} << 20;
  constexpr rlim_t kFiles = 256, kStack = rlim_t{1} << 20;
  const std::int64_t shared = free_at("/dev/shm");
  const rlim_t files = limit_of(RLIMIT_NOFILE), stack = limit_of(RLIMIT_STACK);
  session.job().together([&] {
    const std::int64_t wanted = kSharedMemory * session.place().local_size;
    if (session.place().local_size > 1 && shared >= 0 && shared < wanted) {
      throw failed("/dev/shm is too small for the ranks of this host",
                   human_bytes(static_cast<double>(wanted)),
                   human_bytes(static_cast<double>(shared)) + " free",
                   "make it larger (mount -o remount,size=1g /dev/shm; docker run --shm-size=1g)");
    }
    if (files < kFiles)
      throw failed("too few files may be open", text_of(kFiles, false), text_of(files, false),
                   "ulimit -n 1024");
    if (stack < kStack)
      throw failed("the stack is too small", text_of(kStack, true), text_of(stack, true), "ulimit -s 8192");
  });
  return "/dev/shm has " +
         (shared < 0 ? "an unknown amount free" : human_bytes(static_cast<double>(shared)) + " free") + ", " +
         text_of(files, false) + " files may be open, stack " + text_of(stack, true) + ", locked memory " +
         text_of(limit_of(RLIMIT_MEMLOCK), true);
}

std::string check_environment(runtime::Session& session, const config::Strings& notes) {
  config::Strings harms;
  std::string text;
  for (const std::string& note : notes) {
    if (!note.starts_with("environment ")) continue;
    if (note.find(": harms:") != std::string::npos) harms.push_back(note);
    text += "\n              " + note.substr(12);
  }
  session.job().together([&] {
    if (harms.empty()) return;
    const std::string harm = harms.front().substr(12, harms.front().find("; to do: ") - 12);
    throw failed("a variable harms", "it is not set", harm, "unset it");
  });
  return text.empty() ? "nothing is set that other trainers read" : "set for other programs:" + text;
}

std::string check_disk(runtime::Session& session, const std::string& folder, Leftovers& leftovers) {
  constexpr std::size_t kBytes = std::size_t{32} << 20;
  double seconds = 0;
  std::int64_t free = -1;
  session.job().together([&] {
    const std::string bytes(kBytes, 'x');
    make_folders(folder);
    const Leftovers::Own own(leftovers, folder + "/.verify-rank" + std::to_string(session.place().rank) +
                                            "-" + std::to_string(::getpid()));
    make_folders(own.path());
    const std::string path = own.path() + "/file";
    const auto start = Clock::now();
    write_file_atomically(path, bytes);
    seconds = seconds_since(start);
    if (read_file(path) != bytes)
      throw failed("a file does not hold what was written", "the same bytes", path,
                   "look at the disk (dmesg)");
  });
  session.job().together([&] {
    free = free_at(folder);
    if (free < 0 || free >= kLeastRoom) return;
    throw failed(
        "the disk has too little room for checkpoints",
        human_bytes(static_cast<double>(kLeastRoom)) + " at least, and what the model needs (trainer plan)",
        human_bytes(static_cast<double>(free)) + " free at " + folder,
        "free some disk space, or name another folder with --folder (output_dir of a run)");
  });
  return folder + " takes " + per_second(static_cast<double>(kBytes), seconds) + " from each rank, synced; " +
         (free < 0 ? "its file system does not say how much is free"
                   : human_bytes(static_cast<double>(free)) + " free");
}

std::string check_checkpoint(runtime::Session& session, const std::string& folder, Leftovers& leftovers) {
  constexpr std::int64_t kCount = std::int64_t{1} << 20;  // of each rank
  comm::Job& job = session.job();
  const std::int64_t size = job.size(), rank = job.rank();
  std::string path = folder + "/.verify-checkpoint-" + std::to_string(::getpid());
  path = job.all_gather_bytes(path).front();
  leftovers.add(path);
  std::vector<float> values(kCount);
  for (std::int64_t i = 0; i < kCount; ++i)
    values[static_cast<std::size_t>(i)] = static_cast<float>(rank * kCount + i);
  const auto slice = [&](std::vector<float>& data) {
    return std::vector<TensorSlice>{
        {"verify", DType::f32, {size * kCount}, rank * kCount, kCount, data.data()}};
  };
  std::exception_ptr problem;
  double seconds = 0;
  try {
    const auto start = Clock::now();
    const std::string saved = checkpoint::save(
        job, path, {.step = 1, .zero_stage = 3, .slices = slice(values), .state = {}, .config_yaml = ""});
    seconds = seconds_since(start);
    job.together([&] {
      std::vector<float> read(kCount);
      checkpoint::Checkpoint(saved).read(slice(read));
      if (read != values)
        throw failed("a checkpoint gives back other values", "the saved values", saved,
                     "look at the disk (dmesg)");
    });
  } catch (const Error& e) {
    if (!e.problem().agreed) throw;
    problem = std::current_exception();
  }
  job.barrier();
  leftovers.remove(path);  // by every rank, because a rank may not see the files of others yet
  if (problem) std::rethrow_exception(problem);
  return "HDF5 from all ranks, read again and verified: " +
         human_bytes(static_cast<double>(size * kCount) * sizeof(float)) + ", written at " +
         per_second(static_cast<double>(size * kCount) * sizeof(float), seconds);
}

std::string check_device(runtime::Session& session, const std::optional<Problem>& unopened) {
  if (unopened) {
    Problem problem = *unopened;
    if (!problem.what.empty()) problem.fix += "; the checks below ran on the CPU";
    throw Error(problem);
  }
  const MemoryInfo memory = session.device().memory();
  const std::string others = session.device().traits().counts_as_gpu ? "" : amd_gpus_text();
  return session.device().description() + ", " + human_bytes(static_cast<double>(memory.free)) + " free" +
         (others.empty() ? "" : "; " + others);
}

}  // namespace octet::verify
