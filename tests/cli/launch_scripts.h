// Tests of the scripts in launch/, with stand-ins for mpirun, srun and other programs.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "cli/task.h"

namespace octet::test {

/// A folder with scripts as stand-ins for programs.
class Launch : public testing::Test {
 protected:
  Launch() : folder_("launch") {}
  void script(const std::string& name, const std::string& text) const {
    spill(folder_ / name, "#!/bin/bash\n" + text + "\n");
    std::filesystem::permissions(folder_ / name, std::filesystem::perms::owner_all);
  }
  /// Runs a command in the folder, with the folder's bin first in PATH.
  Outcome run(const std::string& command) const {
    return shell("cd " + folder_.path() +
                     " && unset OCTETRUN_BUILD OCTETRUN_LAUNCHER OCTETRUN_VERBOSE && PATH=" +
                     (folder_ / "bin") + ":$PATH && " + command,
                 15);
  }
  std::string said(const std::string& name) const { return slurp(folder_ / name); }
  TemporaryFolder folder_;
};

inline void expect_says(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

/// launch/mpirun with a stand-in for mpirun.
class Mpirun : public Launch {
 protected:
  void stands_in(const std::string& version, const std::string& text) const {
    script("bin/mpirun", "[ \"$1\" = --version ] && { echo \"" + version + "\"; exit 0; }\n" + text);
  }
  Outcome start(const std::string& words, const std::string& environment = "") const {
    return run(environment + " " OCTET_SOURCE_DIR "/launch/mpirun " + words);
  }
};

}  // namespace octet::test
