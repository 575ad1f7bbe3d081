// `trainer generate`: answers from the terminal or a file.
#include "command.h"
#include "generate/command_line.h"
#include "octet/answers/answer.h"
#include "octet/runtime/session.h"
#include "octet/train/trainer.h"

namespace octet::cli {

int generate_command(const Arguments& arguments) {
  const std::optional<answers::GenerateCall> call = read_generate_call(arguments);
  if (!call) return 0;
  runtime::Session session(call->options.device);
  return session.run([&] {
    train::require_same_start(session, OCTET_VERSION, {}, arguments);
    return answers::answer(session, *call);
  });
}

}  // namespace octet::cli
