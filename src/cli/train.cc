#include <csignal>
#include <cstdio>

#include "octet/base/log_start.h"
#include "octet/config/config.h"
#include "octet/setup/setup.h"
#include "octet/train/trainer.h"
#include "options.h"
#include "survive.h"
#include "with_places.h"

namespace octet::cli {
namespace {

constexpr int kStartRows = 20;

int train_once(const Arguments& arguments) {
  const config::Resolved config = config::load(arguments);
  const setup::SessionWish wish = setup::session_wish(config.config);
  const log::StartScreen start(kStartRows);
  runtime::Session session(wish.device, nullptr, wish.carrying);
  return session.run([&] {
    return with_places(config, [&] {
      train::require_same_start(session, OCTET_VERSION, config.config);
      session.mention_idle_gpus("CONFIG");
      return train::train(session, config);
    });
  });
}

}  // namespace

int train_command(const Arguments& arguments) {
  Options options(
      "train",
      "Fine-tunes a model as CONFIG says, alone or on the ranks that `mpirun -np N` started. The word "
      "train may be left out");
  std::string config_file;
  options.add_option("CONFIG", config_file,
                     "YAML or JSON: our own, or LLaMA-Factory's, SFT-Play's, verl's, axolotl's");
  options.take_overrides();
  options.example("trainer config.yaml learning_rate=2e-5");
  options.example("launch/mpirun -np 8 build/bin/trainer config.yaml zero_stage=2");
  // Prints the help of one key, like `trainer --help KEY`.
  if (arguments.size() == 2 && arguments[0] == "--help" &&
      arguments[1].find_first_of("-/=") == std::string::npos && !arguments[1].ends_with(".yaml") &&
      !arguments[1].ends_with(".yml") && !arguments[1].ends_with(".json")) {
    std::printf("%s", key_text(arguments[1], terminal_width()).c_str());
    return 0;
  }
  if (options.only_tells(arguments)) {
    if (!arguments.empty()) std::printf("\nKeys:\n%s", keys_text(terminal_width()).c_str());
    return 0;
  }
  // The reader of the output may end (a closed terminal, a dead `tee`); the run continues.
  std::signal(SIGPIPE, SIG_IGN);
  return run_with_survivors(arguments, train_once);
}

}  // namespace octet::cli
