// `trainer generate`: answers from the terminal or a file.
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <optional>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/data/dataset.h"
#include "octet/data/template_encoder.h"
#include "octet/generate/decoder.h"
#include "octet/runtime/model_folder.h"
#include "octet/runtime/session.h"
#include "octet/setup/adapters.h"
#include "octet/setup/setup.h"
#include "options.h"

namespace octet::cli {
namespace {

struct GenerateOptions {
  std::string model, adapter, template_name, file, system;
  DeviceWish device = DeviceWish::automatic;
  DType dtype = DType::f32;
  std::vector<std::string> questions;
  std::int64_t max_new = 256, max_length = 2048, batch = 32;
  generate::Sampling sampling;
  bool exact_match = false;
};

// A question with the answer that a file gives, if any.
struct Asked {
  std::vector<data::Turn> turns;  ///< up to and with the question
  std::string system, tools;
  std::string answer;
  bool has_answer = false;
};

Asked ask(const std::string& question, const std::string& system) {
  Asked asked;
  asked.turns.push_back({"user", question});
  asked.system = system;
  return asked;
}

std::vector<Asked> read_questions(const std::string& path) {
  const auto rows = data::open_rows(path);
  if (rows->size() == 0)
    throw Error({.what = "there are no questions", .where = path, .code = ExitCode::usage});
  const data::RowFormat format = data::detect_format(rows->row(0), rows->where(0));
  std::vector<Asked> all;
  for (std::int64_t i = 0; i < rows->size(); ++i) {
    std::string why;
    auto sample = data::convert_row(rows->row(i), format, &why);
    if (!sample) throw Error({.what = why, .where = rows->where(i), .code = ExitCode::usage});
    if (sample->plain) sample->turns = {{"user", sample->text}};
    Asked asked;
    asked.turns = std::move(sample->turns);
    asked.system = sample->system, asked.tools = sample->tools;
    if (asked.turns.back().role == "assistant") {
      asked.answer = asked.turns.back().content;
      asked.has_answer = true;
      asked.turns.pop_back();
    }
    all.push_back(std::move(asked));
  }
  return all;
}

// The last adapter that brings a tokenizer, with the tokens and the template of its training; else the base.
std::string tokenizer_folder(const setup::NamedModel& model) {
  for (auto folder = model.adapters.rbegin(); folder != model.adapters.rend(); ++folder) {
    if (path_exists(*folder + "/tokenizer.json")) return *folder;
  }
  return model.folder;
}

// A model, its tokenizer and its template, ready to answer.
class Answerer {
 public:
  Answerer(runtime::Session& session, const GenerateOptions& o) : options_(o) {
    session.job().together([&] {
      const setup::NamedModel named = setup::named_model(
          o.model, o.adapter.empty() ? std::vector<std::string>() : setup::adapter_folders(o.adapter));
      folder_ = named.folder;
      encoder_.emplace(data::TemplateEncoderOptions{
          .folder = tokenizer_folder(named),
          .template_name = o.template_name.empty() ? std::nullopt : std::optional(o.template_name)});
      generate::DecoderOptions decoder;
      decoder.architecture = runtime::read_model(folder_);
      decoder.adapters = setup::added_adapters(named.adapters, decoder.architecture);
      runtime::require_fit(encoder_->tokenizer(), decoder.architecture, folder_);
      decoder.recipe.compute = o.dtype;
      decoder.sequences = o.batch;
      decoder.capacity = o.max_length;
      decoder_ =
          std::make_unique<generate::Decoder>(session.device(), session.job(), session.data(), decoder);
    });
    decoder_->load_weights(folder_);
  }

  std::vector<std::int32_t> prompt(const Asked& asked) const {
    const auto& chat = encoder_->chat_template();
    if (!chat) return encoder_->tokenizer().encode(asked.turns.back().content, {.add_special = true}).ids;
    text::Conversation conversation;
    for (const data::Turn& turn : asked.turns) conversation.messages.push_back({turn.role, turn.content});
    conversation.system = asked.system.empty() ? options_.system : asked.system;
    conversation.tools = asked.tools;
    const text::Prompt prompt = chat->encode_prompt(encoder_->tokenizer(), conversation);
    if (prompt.outcome != text::Example::Outcome::kept) {
      throw Error({.what = "a question cannot be written with this template",
                   .found = prompt.reason,
                   .code = ExitCode::usage});
    }
    return prompt.prompt_ids;
  }

  std::vector<std::string> answer(const std::vector<Asked>& asked, std::uint64_t first_number) {
    std::vector<generate::Request> requests;
    for (const Asked& a : asked) requests.push_back({prompt(a), first_number + requests.size()});
    std::vector<std::string> texts;
    for (const auto& ids :
         decoder_->complete(requests, encoder_->stop_ids(), options_.max_new, options_.sampling)) {
      texts.push_back(encoder_->tokenizer().decode(ids, true));
    }
    return texts;
  }

  // Prints an answer while it is made.
  std::string stream(const Asked& asked, std::uint64_t number) {
    text::StreamDecoder decoder(encoder_->tokenizer());
    std::string whole;
    const auto say = [&whole](const std::string& piece) {
      std::fwrite(piece.data(), 1, piece.size(), stdout);
      std::fflush(stdout);
      whole += piece;
    };
    decoder_->complete({{prompt(asked), number}}, encoder_->stop_ids(), options_.max_new, options_.sampling,
                       [&](std::size_t, std::int32_t token) { say(decoder.push(token)); });
    say(decoder.finish());
    std::printf("\n");
    return whole;
  }

 private:
  GenerateOptions options_;
  std::string folder_;  ///< of the whole model
  std::optional<data::TemplateEncoder> encoder_;
  std::unique_ptr<generate::Decoder> decoder_;
};

// Questions of a file are dealt to the ranks; rank 0 prints all answers in order.
void answer_file(runtime::Session& session, Answerer& answerer, const GenerateOptions& o) {
  comm::Job& job = session.job();
  std::vector<Asked> all;
  job.together([&] { all = read_questions(o.file); });
  const auto share = [&](int rank) {
    return all.size() * static_cast<std::size_t>(rank) / static_cast<std::size_t>(job.size());
  };
  const std::size_t first = share(job.rank()), last = share(job.rank() + 1);
  Json own = Json::array();
  job.together([&] {
    own = answerer.answer(
        {all.begin() + static_cast<std::ptrdiff_t>(first), all.begin() + static_cast<std::ptrdiff_t>(last)},
        first);
  });
  const auto parts = job.all_gather_bytes(own.dump(-1, ' ', false, Json::error_handler_t::replace));
  if (!session.prints()) return;
  std::size_t i = 0, right = 0, judged = 0;
  for (const std::string& part : parts) {
    for (const Json& answer : parse_json(part, "answers of a rank")) {
      const Asked& asked = all[i++];
      Json line{{"question", asked.turns.back().content}, {"answer", answer}};
      if (asked.has_answer) {
        const bool match = trim(answer.get<std::string>()) == trim(asked.answer);
        line["expected"] = asked.answer;
        line["exact_match"] = match;
        ++judged;
        right += match ? 1 : 0;
      }
      if (!o.exact_match) std::printf("%s\n", line.dump().c_str());
    }
  }
  if (o.exact_match) {
    if (judged == 0)
      throw Error(
          {.what = "the file has no answers to compare with", .where = o.file, .code = ExitCode::usage});
    std::printf("held-out exact match: %.4g %%\n",
                100.0 * static_cast<double>(right) / static_cast<double>(judged));
  }
}

int generate(runtime::Session& session, const GenerateOptions& o) {
  Answerer answerer(session, o);
  if (!o.file.empty()) {
    answer_file(session, answerer, o);
    return 0;
  }
  if (!session.prints()) return 0;
  std::uint64_t number = 0;
  for (const std::string& question : o.questions) answerer.stream(ask(question, o.system), number++);
  if (!o.questions.empty()) return 0;
  Asked chat;
  chat.system = o.system;
  const bool terminal = ::isatty(STDIN_FILENO) != 0;
  std::string line;
  while (true) {
    if (terminal) std::fprintf(stderr, "> ");
    if (!std::getline(std::cin, line)) break;
    if (trim(line).empty()) continue;
    // In a terminal the conversation goes on; lines of a pipe are questions of their own.
    if (!terminal) chat.turns.clear();
    chat.turns.push_back({"user", line});
    const std::string answer = answerer.stream(chat, number++);
    chat.turns.push_back({"assistant", answer});
  }
  return 0;
}

}  // namespace

int generate_command(const Arguments& arguments) {
  Options options("generate", "Answers questions: from the command line, from a file, or typed in");
  GenerateOptions o;
  auto& app = options.app();
  app.add_option("MODEL", o.model,
                 "Hugging Face folder: weights, config.json, tokenizer; or an adapter's, whose "
                 "adapter_config.json names its base")
      ->required();
  app.add_option("--adapter", o.adapter,
                 "folder of an adapter, as PEFT writes it, to add to the model; several with commas between");
  app.add_option("QUESTION", o.questions, "questions; without any, they are read from standard input");
  app.add_option("--template", o.template_name, "chat template; without one, text is continued");
  app.add_option("--file", o.file, "questions in a file (as data sets for training); answers as JSON lines");
  app.add_flag("--exact-match", o.exact_match,
               "with --file: print only how many answers are exactly the file's");
  app.add_option("--system", o.system, "system message");
  app.add_option("--max-new", o.max_new, "tokens of an answer at most")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--max-length", o.max_length, "tokens of question and answer at most")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--batch", o.batch, "questions answered side by side")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--temperature", o.sampling.temperature, "0 takes the most probable token")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app.add_option("--top-p", o.sampling.top_p, "only the most probable tokens that together reach this")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--top-k", o.sampling.top_k, "only that many of the most probable tokens; 0: all")
      ->check(CLI::Range(0, 1 << 30));
  app.add_option("--seed", o.sampling.seed, "of the choice")->capture_default_str();
  const std::map<std::string, DType> formats{{"fp32", DType::f32}, {"bf16", DType::bf16}};
  std::string dtype = "fp32", device = "auto";
  app.add_option("--dtype", dtype, "fp32 or bf16")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  app.add_option("--device", device, "auto, cpu or cuda")->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  if (!options.parse(arguments)) return 0;
  o.dtype = formats.at(dtype);
  o.device = setup::device_wish(device);
  if (o.exact_match && o.file.empty()) {
    throw Error({.what = "--exact-match needs answers to compare with",
                 .fix = "name a file with --file",
                 .code = ExitCode::usage});
  }
  runtime::Session session(o.device);
  return session.run([&] { return generate(session, o); });
}

}  // namespace octet::cli
