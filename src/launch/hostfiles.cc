#include "hostfiles.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "octet/base/error.h"
#include "octet/base/terminal.h"
#include "octet/launch/hosts.h"

namespace octet::launch {
namespace {

// Returns the path of a file in memory with this text, for child processes.
std::string file_with(const std::string& text, const std::string& of) {
  const int file = ::memfd_create("hostfile", 0);
  for (std::size_t done = 0; file >= 0 && done < text.size();) {
    const ssize_t n = ::write(file, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    done += static_cast<std::size_t>(n);
    if (done == text.size()) return "/dev/fd/" + std::to_string(file);
  }
  throw Error({.what = "the hostfile cannot be translated for mpirun",
               .expected = "memory for a copy",
               .found = std::strerror(errno),
               .where = printable_line(of),
               .fix = "write a line NAME slots=RANKS for each host (MPICH: NAME:RANKS)"});
}

// Returns the path that mpirun reads in place of `path`.
std::string readable_path(const std::string& path, Mpi mpi) {
  std::error_code none;
  if (std::filesystem::is_fifo(path, none) || path.starts_with("/dev/fd/")) return path;
  const auto text =
      translated_hostfile(path, mpi == Mpi::open ? HostfileReader::open_mpi : HostfileReader::mpich);
  return text ? file_with(*text, path) : path;
}

}  // namespace

Words with_readable_hostfiles(const Words& words, Environment& environment, Mpi mpi) {
  Words readable_words = words;
  for (const OptionValue& option : options_of(words, environment)) {
    if (!is_hostfile(option.name) || option.value.empty()) continue;
    std::string& word = readable_words[option.word];
    word = word.substr(0, option.start) + readable_path(option.value, mpi);
  }
  for (const char* name : kHostfileVariables) {
    const std::string path = value_in(environment, name);
    if (!path.empty() && path != "none") environment[name] = readable_path(path, mpi);
  }
  return readable_words;
}

}  // namespace octet::launch
