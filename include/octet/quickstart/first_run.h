// The quickstart room writes all files of a first run, without downloads: the data of a task, a tokenizer, a
// small model and configurations. The room train trains the model, and the room cli reads the command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace octet::quickstart {

/// Options of a first run.
struct Wish {
  std::string folder;  ///< new or empty
  std::int64_t rows = 57600, held_out = 200;
  bool distillation = false;  ///< a task of prompt distillation instead of sorting
  std::uint64_t seed = 42;    ///< seed of the random lists of `distillation`
};

/// Writes the files and returns the paths of the configurations, in the order of their runs. Locks the folder
/// meanwhile. Throws Error (usage) if the folder is not empty: existing files are never replaced.
std::vector<std::string> make_first_run(const Wish& wish);

}  // namespace octet::quickstart
