#include "arguments.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "octet/base/terminal.h"
#include "octet/launch/hosts.h"
#include "octet/launch/mpirun_options.h"

namespace octet::launch {
namespace {

namespace fs = std::filesystem;

template <std::size_t N>
bool is_one_of(const std::string& word, const std::array<const char*, N>& names) {
  return std::ranges::any_of(names, [&](const char* name) { return word == name; });
}

constexpr std::array kRanksPerHost{"-N", "-npernode", "--npernode", "-ppn"};
constexpr std::array kWithEquals{"--host", "--hostfile", "--np", "--machinefile"};

void require_hostfile(const std::string& path) {
  // A pipe can be read only once, by mpirun.
  std::error_code none;
  if (!fs::is_fifo(path, none) && !path.starts_with("/dev/fd/")) read_hostfile(path);
}

void require_ranks(const std::string& option, const std::string& value) {
  if (count_of(value)) return;
  throw Error({.what = "the number of ranks cannot be used",
               .expected = "a whole number of at least 1 after " + option,
               .found = value.empty() ? "nothing" : printable_line(value),
               .where = line_of(value.empty() ? Words{"mpirun", option} : Words{"mpirun", option, value}),
               .fix = "write " + option + " N",
               .code = ExitCode::usage});
}

void require_hosts_of_environment(const Environment& environment) {
  for (const char* name : kHostfileVariables) {
    const std::string& path = value_in(environment, name);
    if (!path.empty() && path != "none") require_hostfile(path);
  }
  for (const char* name : {"SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    const std::string& list = value_in(environment, name);
    if (("," + list).find(",-") == std::string::npos) continue;
    throw Error({.what = "a host name is not valid",
                 .expected = "names that do not begin with -",
                 .found = list,
                 .where = std::string(name) + " in the environment",
                 .fix = "correct the variable: ssh would take such a name as an option",
                 .code = ExitCode::usage});
  }
}

}  // namespace

const std::string& value_in(const Environment& environment, const std::string& name) {
  static const std::string nothing;
  const auto found = environment.find(name);
  return found == environment.end() ? nothing : found->second;
}

bool is_above(const Environment& environment, const std::string& name, int least) {
  const std::optional<int> value = count_of(value_in(environment, name));
  return value && *value > least;
}

std::string line_of(const Words& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + printable_line(word);
  return line;
}

std::vector<OptionValue> options_of(const Words& words, const Environment& environment) {
  std::vector<OptionValue> options;
  bool before_program = true;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == ":") {
      before_program = true;
      continue;
    }
    if (!before_program) continue;
    OptionValue option{.name = words[i], .word = i + 1};
    if (const std::size_t equals = words[i].find('=');
        equals != std::string::npos && is_one_of(words[i].substr(0, equals), kWithEquals)) {
      option = {.name = words[i].substr(0, equals), .word = i, .start = equals + 1};
    }
    const std::string& name = option.name;
    if (names_hosts(name) || is_hostfile(name) || counts_ranks(name) || is_one_of(name, kRanksPerHost)) {
      i = std::min(option.word, words.size() - 1);
      if (option.word < words.size()) option.value = words[option.word].substr(option.start);
      options.push_back(std::move(option));
      continue;
    }
    // The first word that names a program ends mpirun's options. Values of other options are not programs.
    std::error_code none;
    if (!name.starts_with('-') && !fs::is_directory(name, none) &&
        !files_of_program(name, value_in(environment, "PATH")).empty())
      before_program = false;
  }
  return options;
}

bool is_hostfile(const std::string& option) {
  return names_hostfile(option) || option == "-f";
}

int require_usable_call(const Words& words, const Environment& environment) {
  int ranks = 1;
  for (const auto& [name, value, word, start] : options_of(words, environment)) {
    if (names_hosts(name)) {
      parse_host_list(value, value.empty() ? name : name + " " + value);
    } else if (is_hostfile(name)) {
      require_hostfile(value);
    } else {
      require_ranks(name, value);
      if (counts_ranks(name)) ranks = *count_of(value);
    }
  }
  require_hosts_of_environment(environment);
  return ranks;
}

bool has_hosts(const Words& words, const Environment& environment) {
  for (const char* name : kHostfileVariables) {
    if (!value_in(environment, name).empty()) return true;
  }
  if (is_above(environment, "SLURM_NNODES", 1)) return true;
  return std::ranges::any_of(options_of(words, environment), [](const OptionValue& option) {
    return names_hosts(option.name) || is_hostfile(option.name);
  });
}

bool runs_trainer(const Words& words) {
  const auto program = std::ranges::find_if(
      words, [](const std::string& word) { return fs::path(word).filename() == "trainer"; });
  return program != words.end() && (program + 1 == words.end() || *(program + 1) != "verify");
}

void require_limits(int ranks, const Words& words) {
  const bool trains = runs_trainer(words);  // otherwise only the needs of mpirun itself count
  struct Row {
    __rlimit_resource resource;
    rlim_t least;
    const char* what;
    std::string fix;
  };
  const rlim_t files = 32 + 4 * static_cast<rlim_t>(ranks);
  const std::string for_files =
      files > 4096 ? "ulimit -n " + std::to_string(files) + ", or a smaller -np" : "ulimit -n 4096";
  const std::array rows{
      Row{RLIMIT_FSIZE, rlim_t{8} << 20, "bytes of a file", "ulimit -f 8192 or more"},
      Row{RLIMIT_STACK, rlim_t{256} << 10, "bytes of stack", "ulimit -s 8192"},
      Row{RLIMIT_NOFILE, files, "open files", for_files},
      Row{RLIMIT_NPROC, 32, "processes and threads of a user", "ulimit -u 4096"},
      Row{RLIMIT_AS, rlim_t{trains ? 352U : 96U} << 20, "bytes of address space", "ulimit -v unlimited"},
      Row{RLIMIT_DATA, rlim_t{trains ? 240U : 32U} << 20, "bytes of data", "ulimit -d unlimited"},
  };
  for (const Row& row : rows) {
    rlimit limit{};
    if (::getrlimit(row.resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) continue;
    // The limit on processes does not apply to root.
    if (limit.rlim_cur >= row.least || (row.resource == RLIMIT_NPROC && ::geteuid() == 0)) continue;
    throw Error({.what = "a limit of the system is too low for mpirun and its ranks",
                 .expected = "at least " + std::to_string(row.least) + " " + row.what,
                 .found = std::to_string(limit.rlim_cur),
                 .where = "the limits of this shell (ulimit -a)",
                 .fix = row.fix + " (/etc/security/limits.conf, or the limits of the container or job)",
                 .code = ExitCode::usage});
  }
}

bool is_only_launcher(const Words& words, const std::string& called, const Environment& environment) {
  const std::string& single = value_in(environment, "OCTETRUN_SINGLE");
  const std::string& place = value_in(environment, "SLURM_PROCID");
  const bool many = is_above(environment, "SLURM_STEP_NUM_TASKS", 1) && !place.empty();
  if (!many || !(single.empty() || single == "0")) return true;
  if (place != "0") return false;
  const std::string& tasks = value_in(environment, "SLURM_STEP_NUM_TASKS");
  throw Error({.what = "srun started " + tasks + " mpiruns: each would start a run, all into one folder",
               .expected = "one mpirun, which starts the ranks on all nodes of the job",
               .found = "SLURM_STEP_NUM_TASKS=" + tasks + ", SLURM_PROCID=0",
               .where = "the environment",
               .fix = "in a batch script or under salloc, without srun: " + called + " " + line_of(words) +
                      "\n            if you want a run for each of them: OCTETRUN_SINGLE=1",
               .code = ExitCode::usage});
}

}  // namespace octet::launch
