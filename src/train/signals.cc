#include "signals.h"

#include <csignal>
#include <initializer_list>

namespace octet::train {
namespace {

volatile std::sig_atomic_t save_asked = 0;
volatile std::sig_atomic_t stop_asked = 0;

void ask_save(int) {
  save_asked = 1;
}
void ask_stop(int signal) {
  stop_asked = 1;
  // A second one ends the program at once.
  std::signal(signal, SIG_DFL);
}

}  // namespace

Signals::Signals() {
  save_asked = 0;
  stop_asked = 0;
  std::signal(SIGUSR1, ask_save);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR2}) std::signal(signal, ask_stop);
}

Signals::~Signals() {
  for (const int signal : {SIGUSR1, SIGTERM, SIGINT, SIGUSR2}) std::signal(signal, SIG_DFL);
}

bool Signals::take_save() {
  const bool asked = save_asked != 0;
  save_asked = 0;
  return asked;
}

bool Signals::stop() const {
  return stop_asked != 0;
}

}  // namespace octet::train
