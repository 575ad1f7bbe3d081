#include "octet/train/start_checks.h"

#include "octet/base/error.h"
#include "octet/base/json.h"

namespace octet::train {

void require_template_of(const checkpoint::Checkpoint& checkpoint, const config::Config& run,
                         const data::TemplateEncoder& encoder, const std::string& fix) {
  const std::string words = json_string(checkpoint.state(), "template_words", "", checkpoint.path());
  const auto& chat = encoder.chat_template();
  if (words.empty() || !chat || !run.template_name || chat->words_hash() == words) return;
  throw Error({.what = "the file of the template changed after the checkpoint was written",
               .expected = "the file that the run was trained with",
               .found = *run.template_name + ", with another template",
               .where = checkpoint.path(),
               .fix = fix,
               .code = ExitCode::usage});
}

}  // namespace octet::train
