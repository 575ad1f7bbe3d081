#include "mpi.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "cleanup.h"
#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "octet/base/terminal.h"
#include "octet/launch/mpirun_options.h"

namespace octet::launch {
namespace {

namespace fs = std::filesystem;

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool contains_any(std::string_view text, std::initializer_list<const char*> parts) {
  return std::ranges::any_of(parts, [&](const char* part) { return contains(text, part); });
}

struct Said {
  std::string text;
  bool succeeded = false;
};

// Runs a program and returns its output. Ends early, with the output so far, if a stop is requested.
Said ask_program(const std::string& program, const Words& arguments, bool with_errors, Requests& requests) {
  Words words{program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return {};
  const pid_t child = ::fork();
  if (child == 0) {
    requests.hand_over_to_mpirun();
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    const int nothing = ::open("/dev/null", O_RDWR);
    ::dup2(nothing, STDIN_FILENO);
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(with_errors ? ends[1] : nothing, STDERR_FILENO);
    ::execvp(program.c_str(), pointers.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  Said said;
  bool open = child > 0;
  while (open && !requests.stop_is_asked()) {
    std::array<pollfd, 2> files{pollfd{.fd = ends[0], .events = POLLIN, .revents = 0},
                                pollfd{.fd = requests.file(), .events = POLLIN, .revents = 0}};
    ::poll(files.data(), files.size(), -1);
    if (files[0].revents == 0) continue;
    std::array<char, 4096> bytes{};
    const ssize_t n = ::read(ends[0], bytes.data(), bytes.size());
    if (n > 0) said.text.append(bytes.data(), static_cast<std::size_t>(n));
    open = n > 0 || (n < 0 && errno == EINTR);
  }
  ::close(ends[0]);
  if (child > 0) {
    if (requests.stop_is_asked()) ::kill(child, SIGKILL);
    int status = 1;
    ::waitpid(child, &status, 0);
    said.succeeded = status == 0;
  }
  return said;
}

std::string version_of(const std::string& mpirun, Requests& requests) {
  return ask_program(mpirun, {"--version"}, true, requests).text;
}

// Returns "Open MPI", "MPICH" or "". Ubuntu 26.04's mpirun lacks its help texts and only prints the name of
// the missing file. mpiexec of Open MPI 4 prints OpenRTE.
std::string owner_of(std::string_view version) {
  if (contains_any(version, {"Open MPI", "OpenRTE", "PRRTE", "prterun", "help-schizo-ompi"}))
    return "Open MPI";
  if (contains_any(version, {"HYDRA", "MPICH", "Intel(R) MPI"})) return "MPICH";
  return "";
}

// Returns the MPI of the trainer among the words: "Open MPI 4.1.4"; "" if unknown.
std::string mpi_of_program(const Words& words, const Environment& environment, Requests& requests) {
  for (const std::string& word : words) {
    if (fs::path(word).filename() != "trainer") continue;
    const std::vector<std::string> files = files_of_program(word, value_in(environment, "PATH"));
    if (files.empty()) return "";
    const std::string said = ask_program(files.front(), {"--version"}, false, requests).text;
    for (const std::string_view name : {"Open MPI ", "MPICH "}) {
      const std::size_t at = said.find(name);
      if (at == std::string::npos) continue;
      const std::size_t end = said.find_first_not_of("0123456789.", at + name.size());
      return said.substr(at, end - at);
    }
    return "";
  }
  return "";
}

// Whether a file is this program under another name, or a script that calls it.
bool is_launcher(const std::string& file) {
  std::error_code none;
  if (fs::equivalent(file, "/proc/self/exe", none)) return true;
  std::ifstream text(file);
  std::string line;
  for (int i = 0; i < 2 && std::getline(text, line); ++i) {
    if (contains(line, "mpirun with what Octet wants")) return true;
  }
  return false;
}

Mpirun named_mpirun(const std::string& file) {
  if (::access(file.c_str(), X_OK) == 0) return {.file = file, .version = ""};
  throw Error(
      {.what = "OCTETRUN_MPIRUN_FILE is not a program",
       .expected = "the file of an mpirun",
       .found = printable_line(file),
       .where = "the environment",
       .fix = "name an mpirun (type -a mpirun), or unset OCTETRUN_MPIRUN_FILE to use the first one on PATH",
       .code = ExitCode::usage});
}

// Whether the daemons of Open MPI must block signals. Slurm sends signals of a job (scancel) to the daemons
// on other nodes, too, which would end them before their ranks have saved. `env` can block signals since
// coreutils 8.31.
bool slurm_signals_daemons(const Environment& environment, Requests& requests) {
  return is_above(environment, "SLURM_NNODES", 1) &&
         ask_program("env", {"--block-signal=TERM", "true"}, true, requests).succeeded;
}

// Sets a variable unless the user has set it.
void set_default(Environment& variables, const std::string& name, const std::string& value) {
  std::string& current = variables[name];
  if (current.empty()) current = value;
}

// A lost host is detected after 10 + 3 x 5 seconds. By default mpirun and its daemons wait for minutes.
void set_keepalive(Environment& variables, const std::string& prefix) {
  set_default(variables, prefix + "oob_tcp_keepalive_time", "10");
  set_default(variables, prefix + "oob_tcp_keepalive_intvl", "5");
  set_default(variables, prefix + "oob_tcp_keepalive_probes", "3");
}

std::string folder_for_temporary_files(const Environment& variables, const std::string& name) {
  const std::string& own = value_in(variables, name);
  if (!own.empty()) return own;
  const std::string& tmp = value_in(variables, "TMPDIR");
  return tmp.empty() ? "/tmp" : tmp;
}

void set_open_mpi_4(Settings& settings, bool hosts, Requests& requests) {
  Environment& variables = settings.variables;
  variables["OMPI_MCA_rmaps_base_oversubscribe"] = "1";
  variables["OMPI_MCA_hwloc_base_binding_policy"] = "none";
  variables["OMPI_MCA_mpi_yield_when_idle"] = "1";
  set_keepalive(variables, "OMPI_MCA_");
  set_default(variables, "OMPI_MCA_btl_vader_single_copy_mechanism", "none");
  if (slurm_signals_daemons(variables, requests))
    set_default(variables, "OMPI_MCA_orte_launch_agent", "env --block-signal=HUP,INT,TERM orted");
  // With this PMIx store, which container images set, PMIx takes a rank of another host for a local rank if
  // its host has several ranks. The start then hangs.
  const std::string gds = value_in(variables, "PMIX_MCA_gds");
  if (contains(gds, "hash") && hosts) {
    settings.warnings.push_back("PMIX_MCA_gds=" + gds +
                                " is not passed on: with it, a start on several hosts hangs");
    variables.erase("PMIX_MCA_gds");
  }
  // Open MPI creates a folder for all jobs of a user with the first job and removes it with the last. A job
  // that starts at that moment fails. A folder inside it keeps it.
  const std::string folder = folder_for_temporary_files(variables, "OMPI_MCA_orte_tmpdir_base") + "/ompi." +
                             short_host_name() + "." + std::to_string(::geteuid());
  constexpr mode_t kOwnOnly = 0700;
  ::mkdir(folder.c_str(), kOwnOnly);
  ::mkdir((folder + "/kept").c_str(), kOwnOnly);
  settings.sessions = folder + "/pid.";
}

void set_open_mpi_5(Settings& settings, Requests& requests) {
  Environment& variables = settings.variables;
  // Maps by slot, the default of Open MPI 4. With the qualifier alone all ranks start on the first of several
  // hosts.
  variables["PRTE_MCA_rmaps_default_mapping_policy"] = "slot:oversubscribe";
  variables["PRTE_MCA_hwloc_default_binding_policy"] = "none";
  variables["OMPI_MCA_mpi_yield_when_idle"] = "1";
  set_default(variables, "OMPI_MCA_btl_sm_single_copy_mechanism", "none");
  // Open MPI 5 does not read Open MPI 4's variable for the remote shell.
  const std::string agent = value_in(variables, "OMPI_MCA_plm_rsh_agent");
  if (!agent.empty()) set_default(variables, "PRTE_MCA_plm_ssh_agent", agent);
  set_keepalive(variables, "PRTE_MCA_");
  // By default 5.0 asks the kernel for routes. It finds none to a host's own addresses if there are IPv6
  // addresses, and each rank prints a message (open-mpi/ompi#14079).
  set_default(variables, "OMPI_MCA_reachable", "weighted");
  if (slurm_signals_daemons(variables, requests))
    set_default(variables, "PRTE_MCA_prte_launch_agent", "env --block-signal=HUP,INT,TERM,USR1,USR2 prted");
  settings.sessions = folder_for_temporary_files(variables, "PRTE_MCA_prte_tmpdir_base") + "/ompi.";
  // By default a rank that ends also ends the others. The program decides with how few of them it can
  // continue.
  if (!value_in(variables, "OCTETRUN_SURVIVORS").empty())
    settings.options.insert(settings.options.end(), {"--with-ft", "ulfm"});
}

// Open MPI only passes its own variables to other hosts, MPICH passes all.
void hand_on_variables(Settings& settings, const Words& words) {
  for (const auto& [name, value] : settings.variables) {
    if (!name.starts_with("OCTET")) continue;
    bool is_handed_on = false;
    for (std::size_t i = 0; i + 1 < words.size(); ++i)
      is_handed_on = is_handed_on ||
                     (words[i] == "-x" && (words[i + 1] == name || words[i + 1].starts_with(name + "=")));
    if (!is_handed_on) settings.options.insert(settings.options.end(), {"-x", name});
  }
}

// Tells the program that requests reach it, whether its output is a terminal, and the terminal's width.
void tell_program(Environment& variables) {
  variables["OCTETRUN_LAUNCHER"] = ::isatty(STDOUT_FILENO) == 1 ? "terminal" : "1";
  variables.erase("OCTETRUN_BAR_COLUMNS");
  if (::isatty(STDERR_FILENO) != 1) return;
  constexpr int kUsualColumns = 80;
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  variables["OCTETRUN_BAR_COLUMNS"] = std::to_string(known ? size.ws_col : kUsualColumns);
}

}  // namespace

Mpirun find_mpirun(const Words& words, const Environment& environment, Requests& requests) {
  const std::string& named = value_in(environment, "OCTETRUN_MPIRUN_FILE");
  if (!named.empty()) {
    Mpirun mpirun = named_mpirun(named);
    mpirun.version = version_of(mpirun.file, requests);
    return mpirun;
  }
  const std::string needed = mpi_of_program(words, environment, requests);
  std::string others;
  // Packages of several MPIs on one machine use these names.
  for (const char* name : {"mpirun", "mpiexec", "mpirun.openmpi", "mpirun.mpich", "mpiexec.hydra"}) {
    for (const std::string& file : files_of_program(name, value_in(environment, "PATH"))) {
      if (is_launcher(file)) continue;
      const std::string version = version_of(file, requests);
      if (requests.stop_is_asked()) return {};
      const std::string owner = owner_of(version);
      if (needed.empty() || owner.empty() || needed.starts_with(owner))
        return {.file = file, .version = version};
      others += (others.empty() ? "" : ", ") + file + " of " + owner;
    }
  }
  if (others.empty())
    throw Error({.what = "there is no mpirun",
                 .expected = "mpirun or mpiexec of Open MPI or MPICH on PATH",
                 .found = "PATH=" + printable_line(value_in(environment, "PATH")),
                 .fix = "install it (launch/setup), or load its module",
                 .code = ExitCode::usage});
  throw Error(
      {.what = "no mpirun belongs to the MPI of the program; ranks of another mpirun would not be connected",
       .expected = "an mpirun of " + needed + ", with which the program was built (trainer --version)",
       .found = printable_line(others),
       .fix = "install it (launch/setup for Open MPI), load its module, or name its file in "
              "OCTETRUN_MPIRUN_FILE",
       .code = ExitCode::usage});
}

Settings settings_for(const Mpirun& mpirun, const Words& words, Environment environment, bool hosts,
                      Requests& requests) {
  Settings settings{.options = {}, .variables = std::move(environment), .sessions = "", .warnings = {}};
  tell_program(settings.variables);
  const std::string owner = owner_of(mpirun.version);
  if (contains_any(mpirun.version, {"Open MPI) 4", "OpenRTE) 4"})) {
    set_open_mpi_4(settings, hosts, requests);
  } else if (owner == "Open MPI") {
    set_open_mpi_5(settings, requests);
  } else {
    settings.mpi = Mpi::hydra;
    if (owner.empty())
      settings.warnings.push_back(
          mpirun.file +
          " belongs neither to Open MPI nor to MPICH: signals reach only the ranks of this host");
  }
  if (::geteuid() == 0) {
    for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                             "PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"})
      settings.variables[name] = "1";
  }
  if (settings.mpi == Mpi::open) hand_on_variables(settings, words);
  return settings;
}

}  // namespace octet::launch
