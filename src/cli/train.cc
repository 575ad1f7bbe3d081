#include <csignal>
#include <cstdio>

#include "octet/config/config.h"
#include "octet/config/schema.h"
#include "octet/setup/setup.h"
#include "octet/train/trainer.h"
#include "options.h"

namespace octet::cli {

int train_command(const Arguments& arguments) {
  for (const auto& word : arguments) {
    if (word != "--help" && word != "-h") continue;
    std::printf(
        "trainer [train] CONFIG [key=value …]\n\nFine-tunes a model as CONFIG (YAML or JSON) says; under "
        "`mpirun -np N` or "
        "alone. Keys:\n\n%s",
        config::help_text().c_str());
    return 0;
  }
  const config::Resolved config = config::load(arguments);
  // Whoever reads the output may leave (a closed terminal, a dead `tee`): the run goes on.
  std::signal(SIGPIPE, SIG_IGN);
  const setup::SessionWish wish = setup::session_wish(config.config);
  runtime::Session session(wish.device, nullptr, wish.carrier);
  return session.run([&] {
    train::require_same_start(session, OCTET_VERSION, config.config);
    session.mention_idle_gpus("CONFIG");
    return train::train(session, config);
  });
}

}  // namespace octet::cli
