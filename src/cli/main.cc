#include "octet/cli/cli.h"

int main(int argc, char** argv) {
  return octet::cli::run(argc, argv);
}
