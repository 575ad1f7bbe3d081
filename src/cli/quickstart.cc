// `trainer quickstart`: creates a model, data and a configuration for a first run.
#include "octet/quickstart/first_run.h"

#include <cstdio>

#include "options.h"

namespace octet::cli {

int quickstart_command(const Arguments& arguments) {
  Options options("quickstart",
                  "Makes a task (sorting words), a tokenizer, a small model to start from, and a "
                  "configuration to train it");
  options.example("trainer quickstart first && trainer first/config.yaml");
  quickstart::Wish wish{.folder = "runs/quickstart"};
  options.add_option("FOLDER", wish.folder, "folder for all files, new or empty").shows_default();
  options.add_option("--rows", wish.rows, "training questions").check(whole(100, 10000000)).shows_default();
  options.add_option("--held-out", wish.held_out, "questions that training never sees")
      .check(whole(1, 100000))
      .shows_default();
  options.add_flag("--distillation", wish.distillation,
                   "make a task of prompt distillation instead: lists of words, with rules in a prompt for "
                   "the teacher, and without the prompt for the student");
  options.add_option("--seed", wish.seed, "seed of the lists of --distillation").shows_default();
  if (!options.parse(arguments)) return 0;
  for (const std::string& path : quickstart::make_first_run(wish)) std::printf("%s\n", path.c_str());
  return 0;
}

}  // namespace octet::cli
