// Runs the trainer as a user would, and keeps its output.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "support/temporary_folder.h"

namespace octet::test {

struct Outcome {
  int code = 0;
  std::string out;  ///< standard output
  std::string err;  ///< standard error
  std::string both() const { return out + err; }
};

inline std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline void spill(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

/// Runs a shell command with a time limit in seconds.
inline Outcome shell(const std::string& command, int limit = 120) {
  const TemporaryFolder folder("run");
  const std::string line = "timeout -k 5 " + std::to_string(limit) + " sh -c '" + command + "' >" +
                           (folder / "out") + " 2>" + (folder / "err") + " </dev/null";
  const int status = std::system(line.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), slurp(folder / "out"),
          slurp(folder / "err")};
}

/// Runs `trainer ARGUMENTS` alone (np 0) or under mpirun. OCTET_TRAINER is the program.
inline Outcome trainer(const std::string& arguments, int np = 0, int limit = 120) {
  const std::string launch =
      np == 0 ? std::string() : OCTET_SOURCE_DIR "/launch/mpirun -np " + std::to_string(np) + " ";
  return shell(launch + OCTET_TRAINER + " " + arguments, limit);
}

/// Runs one command as rank 0 and another as rank 1. Does not use `mpirun ONE : OTHER`: with some
/// packages of Open MPI 5.0 (among them 5.0.7 of Debian 13), mpirun itself ends by signal 11 for any two
/// programs.
inline Outcome two_ranks(const std::string& first, const std::string& second) {
  return shell(OCTET_SOURCE_DIR
               "/launch/mpirun -np 2 sh -c \"if [ \\${OMPI_COMM_WORLD_RANK:-\\$PMI_RANK} = 0 ]; then exec " +
               first + "; else exec " + second + "; fi\"");
}

}  // namespace octet::test
