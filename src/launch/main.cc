// octet-mpirun, the program that launch/mpirun and launch/check-hosts run. `--called NAME` as the first words
// gives the name of the script. If the next word is `--check-hosts`, the program runs the checks of
// launch/check-hosts.
#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "octet/launch/check_hosts.h"
#include "octet/launch/launcher.h"

namespace {

// A pipe with the number of a closed standard stream would be used as that stream.
void open_standard_streams() {
  int file = 0;
  while (file >= 0 && file <= STDERR_FILENO) file = ::open("/dev/null", O_RDWR);
  if (file >= 0) ::close(file);
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  std::vector<std::string> words(argv, argv + argc);
  std::string called = words.empty() ? "octet-mpirun" : words.front();
  if (!words.empty()) words.erase(words.begin());
  if (words.size() > 1 && words.front() == "--called") {
    called = words[1];
    words.erase(words.begin(), words.begin() + 2);
  }
  const auto environment = octet::launch::environment_of(environ);
  if (!words.empty() && words.front() == "--check-hosts") {
    words.erase(words.begin());
    return octet::launch::check_hosts(words, called, environment);
  }
  const int code = octet::launch::launch(words, called, environment);
  // Exits without destructors: a thread may still wait for a reader of standard error.
  ::_exit(code);
}
