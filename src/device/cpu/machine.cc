#include "cpu/machine.h"

#include <omp.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <tuple>
#include <utility>
#include <vector>

#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "octet/device/cpu.h"
#include "octet/device/op_threads.h"

namespace octet::cpu {

namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::istringstream line(first_line(path));
  std::uint64_t value = 0;
  if (line >> value) return value;
  return std::nullopt;
}

/// Returns the folders of this process's control groups, from its group up to the mount. In a container,
/// the mount point is often the group itself, and the path from /proc does not exist.
std::vector<std::string> group_folders(const std::string& controller) {
  std::vector<std::string> folders;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first == std::string::npos ? first : first + 1);
    if (second == std::string::npos) continue;
    const std::string names = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string mount;
    if (names == ",,") {
      mount = "/sys/fs/cgroup";
    } else if (names.find("," + controller + ",") != std::string::npos) {
      mount = "/sys/fs/cgroup/" + controller;
    } else {
      continue;
    }
    for (std::string path = line.substr(second + 1); path.size() > 1; path.erase(path.rfind('/'))) {
      folders.push_back(mount + path);
      if (path.rfind('/') == 0) break;
    }
    folders.push_back(mount);
  }
  return folders;
}

/// Returns the CPU quota in whole cores, if there is a quota.
std::optional<int> quota_cores() {
  std::optional<int> least;
  const auto note = [&](double quota, double period) {
    if (quota <= 0 || period <= 0) return;
    const int cores = std::max(1, static_cast<int>(std::min(quota / period + 0.5, 1e6)));
    least = std::min(least.value_or(cores), cores);
  };
  for (const auto& folder : group_folders("cpu")) {
    std::istringstream line(first_line(folder + "/cpu.max"));
    double quota = 0, period = 0;
    if (line >> quota >> period) note(quota, period);  // "max 100000" does not parse: no quota
    std::istringstream old_quota(first_line(folder + "/cpu.cfs_quota_us"));
    std::istringstream old_period(first_line(folder + "/cpu.cfs_period_us"));
    if (old_quota >> quota && old_period >> period) note(quota, period);
  }
  return least;
}

/// The affinity mask of a process, for any number of CPUs.
class CpuMask {
 public:
  explicit CpuMask(pid_t pid) {
    for (std::size_t cpus = 1024; cpus <= (1u << 20); cpus *= 2) {
      words_.assign(cpus / (8 * sizeof(unsigned long)), 0);
      if (sched_getaffinity(pid, bytes(), set()) == 0) return;
    }
    words_.clear();
  }
  bool known() const { return !words_.empty(); }
  int count() const { return words_.empty() ? 0 : CPU_COUNT_S(bytes(), set()); }
  /// Removes the CPUs that are not in the list.
  void keep_only(const std::vector<int>& cpus) {
    constexpr std::size_t bits = 8 * sizeof(unsigned long);
    std::vector<unsigned long> kept(words_.size(), 0);
    for (const int cpu : cpus) {
      const std::size_t word = static_cast<std::size_t>(cpu) / bits;
      if (word < kept.size()) kept[word] |= words_[word] & (1ul << static_cast<std::size_t>(cpu) % bits);
    }
    words_ = std::move(kept);
  }
  /// Replaces the CPUs by the CPUs of all places of OpenMP.
  void take_places() {
    constexpr std::size_t bits = 8 * sizeof(unsigned long);
    std::ranges::fill(words_, 0);
    for (int place = 0; place < omp_get_num_places(); ++place) {
      std::vector<int> cpus(static_cast<std::size_t>(omp_get_place_num_procs(place)));
      omp_get_place_proc_ids(place, cpus.data());
      for (const int cpu : cpus) {
        const std::size_t word = static_cast<std::size_t>(cpu) / bits;
        if (word < words_.size()) words_[word] |= 1ul << static_cast<std::size_t>(cpu) % bits;
      }
    }
  }
  bool apply_to_caller() const { return known() && sched_setaffinity(0, bytes(), set()) == 0; }

 private:
  std::size_t bytes() const { return words_.size() * sizeof(unsigned long); }
  cpu_set_t* set() const { return reinterpret_cast<cpu_set_t*>(words_.data()); }
  mutable std::vector<unsigned long> words_;
};

/// Returns whether OpenMP binds threads to places (OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY).
bool threads_are_bound() {
  return omp_get_proc_bind() != omp_proc_bind_false && omp_get_num_places() > 0;
}

/// Returns the CPUs of all places of OpenMP.
CpuMask places_of_threads() {
  CpuMask mask(0);
  mask.take_places();
  return mask;
}

/// Returns the process id of the nearest ancestor that is Open MPI's launcher or daemon; 0 if there is none.
pid_t launcher() {
  pid_t pid = getppid();
  for (int depth = 0; depth < 16 && pid > 1; ++depth) {
    const std::string folder = "/proc/" + std::to_string(pid);
    const std::string name = first_line(folder + "/comm");
    for (const char* known : {"mpirun", "orterun", "orted", "prterun", "prted", "prte", "mpiexec"}) {
      if (name == known) return pid;
    }
    // "pid (name) state parent": the name may hold spaces and parentheses.
    const std::string stat = first_line(folder + "/stat");
    const auto after = stat.rfind(')');
    if (after == std::string::npos) return 0;
    std::istringstream rest(stat.substr(after + 1));
    char state = 0;
    if (!(rest >> state >> pid)) return 0;
  }
  return 0;
}

/// Returns true if the user chose a binding of Open MPI, which this program must keep.
bool user_chose_binding() {
  for (const char* name : {"OMPI_MCA_hwloc_base_binding_policy", "PRTE_MCA_hwloc_default_binding_policy",
                           "OMPI_MCA_hwloc_base_cpu_list", "OMPI_MCA_hwloc_base_cpu_set"}) {
    if (environment_variable(name) != nullptr) return true;
  }
  return false;
}

}  // namespace

int allowed_cores() {
  int cores = std::max(1, CpuMask(0).count());
  // If OpenMP binds threads, the mask of this thread is only one of the places.
  if (threads_are_bound()) cores = std::max(cores, places_of_threads().count());
  if (const auto quota = quota_cores()) cores = std::min(cores, *quota);
  return cores;
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const auto colon = line.find(':');
    if (colon == std::string::npos || colon + 2 >= line.size()) continue;
    return line.substr(colon + 2);
  }
  utsname names{};
  return uname(&names) == 0 ? names.machine : "unknown processor";
}

MemoryInfo machine_memory() {
  MemoryInfo memory;
  std::ifstream info("/proc/meminfo");
  std::uint64_t free_pages = 0, cached = 0;
  bool available = false;
  for (std::string line; std::getline(info, line);) {
    std::istringstream fields(line);
    std::string key;
    std::uint64_t kib = 0;
    if (!(fields >> key >> kib)) continue;
    if (key == "MemTotal:") memory.total = kib * 1024;
    if (key == "MemFree:") free_pages = kib * 1024;
    if (key == "Cached:") cached = kib * 1024;
    if (key == "MemAvailable:") {
      memory.free = kib * 1024;
      available = true;
    }
  }
  if (!available) memory.free = free_pages + cached;
  const auto limit = [&](std::optional<std::uint64_t> most, std::optional<std::uint64_t> used,
                         std::uint64_t reclaimable) {
    if (!most || *most >= memory.total) return;
    memory.total = *most;
    const std::uint64_t busy = used.value_or(0) - std::min(used.value_or(0), reclaimable);
    memory.free = std::min<std::uint64_t>(memory.free, *most > busy ? *most - busy : 0);
  };
  for (const auto& folder : group_folders("memory")) {
    // The group counts inactive file pages as used memory, but the kernel can reclaim them.
    std::uint64_t reclaimable = 0;
    std::ifstream stat(folder + "/memory.stat");
    std::string key;
    for (std::uint64_t value = 0; stat >> key >> value;) {
      if (key == "inactive_file" || key == "total_inactive_file") reclaimable = value;
    }
    limit(number_in(folder + "/memory.max"), number_in(folder + "/memory.current"), reclaimable);
    limit(number_in(folder + "/memory.limit_in_bytes"), number_in(folder + "/memory.usage_in_bytes"),
          reclaimable);
  }
  return memory;
}

std::string thread_limits() {
  std::string text;
  const auto say = [&](const std::string& limit) { text += (text.empty() ? "" : ", ") + limit; };
  for (const auto& [resource, name, unit] :
       {std::tuple{RLIMIT_NPROC, "ulimit -u ", 1}, std::tuple{RLIMIT_AS, "ulimit -v ", 1024}}) {
    rlimit limit{};
    if (getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
      say(name + std::to_string(limit.rlim_cur / static_cast<rlim_t>(unit)));
  }
  for (const auto& folder : group_folders("pids")) {
    const auto most = number_in(folder + "/pids.max");
    if (!most) continue;
    const auto used = number_in(folder + "/pids.current");
    say("pids.max " + std::to_string(*most) + (used ? " (" + std::to_string(*used) + " in use)" : ""));
  }
  return text;
}

bool threads_are_few() {
  constexpr std::uint64_t many = 10000;
  rlimit limit{};
  if (getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur < many) return true;
  for (const auto& folder : group_folders("pids")) {
    if (number_in(folder + "/pids.max").value_or(many) < many) return true;
  }
  return false;
}

std::vector<int> parse_cpu_list(std::string_view text) {
  constexpr int most = 1 << 20;  // limit against invalid lists; no machine has this many CPUs
  const auto number = [](std::string_view digits) {
    int value = -1;
    const char* const end = digits.data() + digits.size();
    const auto [rest, error] = std::from_chars(digits.data(), end, value);
    return error == std::errc() && rest == end && value < most ? value : -1;
  };
  std::vector<int> cpus;
  for (const std::string& piece : split(trim(text), ',')) {
    const std::size_t dash = piece.find('-');
    const int first = number(std::string_view(piece).substr(0, dash));
    const int last = dash == std::string::npos ? first : number(std::string_view(piece).substr(dash + 1));
    if (first < 0 || last < first) return {};
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  std::ranges::sort(cpus);
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

int share_near(int share, int near_cpus, int ranks_there) {
  if (near_cpus <= 0 || ranks_there <= 0) return 0;
  const int part = std::min(share, near_cpus / ranks_there);
  return 2 * part >= share ? part : 0;
}

int claim_cores(int local_rank, int local_ranks, const CoresNear& near) {
  check(local_ranks >= 1 && local_rank >= 0 && local_rank < local_ranks,
        "the local rank is below the ranks of the node");
  if (environment_variable("OMPI_COMM_WORLD_SIZE") != nullptr && !user_chose_binding()) {
    // Open MPI may have bound this rank to fewer cores than the user gave the launcher (taskset, numactl, a
    // batch system). This rank takes the cores of the launcher.
    const CpuMask given(launcher());
    if (const CpuMask own(0); given.count() > own.count()) given.apply_to_caller();
  }
  if (threads_are_bound()) {
    // OpenMP has bound this thread to its first place, and threads that this thread starts inherit that.
    const CpuMask places = places_of_threads();
    if (places.count() > CpuMask(0).count()) places.apply_to_caller();
  }
  // Every rank gets the same number of threads, so that equal work takes equal time. A number of threads that
  // the user set applies to each rank, as in every OpenMP program.
  const std::optional<int> told = told_threads();
  const int share = std::max(1, allowed_cores() / local_ranks);
  const auto threads = [&told](int cores) { return std::min(told.value_or(cores), omp_get_thread_limit()); };
  if (near.numa_node < 0) return threads(share);
  CpuMask near_cpus(0);
  near_cpus.keep_only(parse_cpu_list(
      first_line("/sys/devices/system/node/node" + std::to_string(near.numa_node) + "/cpulist")));
  const int part = share_near(share, near_cpus.count(), near.ranks);
  const bool stays = part > 0 && near_cpus.apply_to_caller();
  return threads(stays ? part : share);
}

Crowd crowd_of(int local_ranks) {
  Crowd crowd{.ranks = local_ranks, .threads = op_threads(), .cores = allowed_cores()};
  const int all = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  // The ranks of a host may be bound to different cores, so all cores of the host count.
  if (local_ranks > 1) crowd.cores = std::min(std::max(1, all), quota_cores().value_or(all));
  crowd.told = told_threads().has_value();
  crowd.bound = threads_are_bound() && places_of_threads().count() == all;
  return crowd;
}

std::string crowd_text(const Crowd& crowd) {
  const auto count = [](int n, const char* what) {
    return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
  };
  const std::string begin = "the cores are shared: ", cores = count(crowd.cores, "core");
  if (crowd.ranks > crowd.cores) {
    return begin + count(crowd.ranks, "rank") + " compute on " + cores +
           " of this host, and wait for each other; to do: start at most " + count(crowd.cores, "rank") +
           " on this host";
  }
  const int fits = std::max(1, crowd.cores / crowd.ranks);
  if (crowd.told && crowd.threads > fits) {
    return begin + "OMP_NUM_THREADS gives " + count(crowd.threads, "thread") + " to each of " +
           count(crowd.ranks, "rank") + ", and this host has " + cores +
           " for them: threads wait for a core; to do: unset OMP_NUM_THREADS, or set it to " +
           std::to_string(fits);
  }
  if (crowd.bound && crowd.ranks > 1 && crowd.threads > 1) {
    return begin + "OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY binds the threads of all " +
           count(crowd.ranks, "rank") +
           " of this host to the same cores; to do: unset these variables, or give each rank its own cores";
  }
  return "";
}

}  // namespace octet::cpu
