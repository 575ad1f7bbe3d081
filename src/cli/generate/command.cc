// `trainer generate`: answers from the terminal or a file.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>

#include "command.h"
#include "generate/answer_file.h"
#include "generate/answerer.h"
#include "generate/cache_size.h"
#include "generate/generate_options.h"
#include "generate/rows.h"
#include "generate/score_file.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/generate/team.h"
#include "octet/plan/memory.h"
#include "octet/runtime/model_folder.h"
#include "octet/runtime/session.h"
#include "octet/setup/adapters.h"
#include "octet/setup/setup.h"
#include "options.h"

namespace octet::cli {
namespace {

std::string stream(Answerer& answerer, const Question& question, std::uint64_t number) {
  std::string text = answerer.answer(question, number, [](const std::string& piece) {
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  });
  std::printf("\n");
  return text;
}

// A conversation with whoever types; lines of a pipe are questions of their own.
void converse(Answerer& answerer, const GenerateOptions& o) {
  Question chat;
  chat.system = o.system;
  const bool terminal = ::isatty(STDIN_FILENO) != 0;
  std::uint64_t number = 0;
  std::string line;
  while (true) {
    if (terminal) std::fprintf(stderr, "> ");
    if (!std::getline(std::cin, line)) break;
    if (trim(line).empty()) continue;
    if (!terminal) chat.turns.clear();
    chat.turns.push_back({"user", line});
    chat.turns.push_back({"assistant", stream(answerer, chat, number++)});
  }
}

// What can be said only when the model's own settings are known.
void require_possible(const GenerateOptions& o) {
  generate::require_possible(o.answers.sampling);
  if (o.retries > 0 && o.answers.sampling.temperature == 0) {
    throw Error({.what = "at temperature 0 every retry gives the same answer",
                 .where = "command line",
                 .fix = "give --temperature, or leave out --retries",
                 .code = ExitCode::usage});
  }
}

// Those that answer: every rank, or the leaders of a model whose layers are split.
void answer(runtime::Session& session, comm::Channel& ranks, Answerer& answerer, const GenerateOptions& o,
            std::chrono::steady_clock::time_point began) {
  if (!o.file.empty()) return answer_file(session, ranks, answerer, o, began);
  if (!session.prints()) return;
  std::uint64_t number = 0;
  for (const std::string& question : o.questions) stream(answerer, ask(question, o.system), number++);
  if (o.questions.empty()) converse(answerer, o);
}

// Null where every rank has the whole model.
std::unique_ptr<generate::Team> team_of(runtime::Session& session, const GenerateOptions& o,
                                        const setup::NamedModel& named) {
  const int tensor = o.tensor_parallel_size, stages = o.pipeline_parallel_size;
  if (tensor == 1 && stages == 1) return nullptr;
  session.job().together([&] { model::require_splits(runtime::read_model(named.folder), tensor, stages); });
  return std::make_unique<generate::Team>(session.job(), session.device(), tensor, stages);
}

void tell_team(runtime::Session& session, generate::Team& team, const generate::Decoder& decoder) {
  const std::int64_t most = session.job().all_max(static_cast<std::int64_t>(decoder.arena().bytes()));
  const bool crosses = session.job().all_max(team.crosses_nodes() ? 1 : 0) == 1;
  if (!session.prints()) return;
  const model::Share& share = team.share();
  log::info("the model's layers are split among " + std::to_string(share.tensor_size) + " x " +
            std::to_string(share.stages) + " ranks, of which one reserves " + with_commas(most) +
            " bytes at most; " + std::to_string(team.replicas()) +
            (team.replicas() == 1 ? " replica answers" : " replicas answer"));
  if (crosses)
    log::warn(
        "ranks with pieces of the same layers stand on several nodes, between which every layer sends: "
        "choose a tensor_parallel_size that divides the ranks of a node");
}

int generate(runtime::Session& session, GenerateOptions o, const std::vector<std::string>& given,
             bool model_defaults) {
  const auto began = std::chrono::steady_clock::now();
  setup::NamedModel named;
  session.job().together([&] {
    named = setup::named_model(
        o.model, o.adapter.empty() ? std::vector<std::string>() : setup::adapter_folders(o.adapter));
    if (!path_exists(named.folder)) {
      throw Error({.what = "the folder of the model is not there",
                   .where = named.folder,
                   .fix = "name the folder that holds it",
                   .code = ExitCode::usage});
    }
    if (!model_defaults) return;
    const std::string taken = take_model_defaults(o, named.folder, given);
    if (session.prints() && !taken.empty()) {
      log::info("from generation_config.json: " + taken + " (--no-model-defaults leaves it out)");
    }
  });
  session.job().together([&] { require_possible(o); });
  const std::unique_ptr<generate::Team> team = team_of(session, o, named);
  Answerer answerer(session, team.get(), o, named);
  if (!team) {
    answer(session, session.job(), answerer, o, began);
    return 0;
  }
  tell_team(session, *team, answerer.decoder());
  return generate::lead_or_follow(*team, answerer.decoder(),
                                  [&] { answer(session, team->peers(), answerer, o, began); });
}

void add_answer_options(CLI::App& app, GenerateOptions& o) {
  generate::Sampling& sampling = o.answers.sampling;
  app.add_option("--max-new", o.answers.max_new, "most tokens of an answer")
      ->check(Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--min-new", o.answers.min_new, "fewest tokens of an answer")
      ->check(Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--max-length", o.max_length, "most tokens of question and answer together")
      ->check(Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--temperature", sampling.temperature, "divides the logits; 0 takes the most probable token")
      ->capture_default_str();
  app.add_option("--top-k", sampling.top_k, "draw from that many of the most probable tokens; 0: from all")
      ->capture_default_str();
  app.add_option("--top-p", sampling.top_p,
                 "draw from the most probable tokens that together reach this probability")
      ->capture_default_str();
  app.add_option("--min-p", sampling.min_p,
                 "draw from tokens at least this probable relative to the most probable one")
      ->capture_default_str();
  app.add_option("--repetition-penalty", sampling.repetition_penalty,
                 "above 1: tokens that were used become less probable")
      ->capture_default_str();
  app.add_option("--seed", sampling.seed, "of the draws")->capture_default_str();
  app.add_option("--stop", o.stops,
                 "text that ends an answer and is no part of it; may be given several times")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--stop-id", o.stop_ids, "token id that ends an answer; may be given several times")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->check(Range(0, INT32_MAX));
  app.add_flag("--ignore-eos", o.ignore_eos, "answers end at their limit alone");
}

void add_file_options(CLI::App& app, GenerateOptions& o, std::string& shard, std::string& pattern) {
  app.add_option("--file,--input_file", o.file,
                 "questions in a file: a data set, lines, or rows of prompt_ids");
  app.add_option("--out,--output_file", o.out,
                 "file for the answers, a data set; what it holds is not computed again");
  app.add_flag("--overwrite", o.overwrite, "begin --out anew");
  app.add_option("--n", o.samples, "answers to each question")->check(Range(1, 4096))->capture_default_str();
  app.add_option("--logprobs", o.answers.logprobs,
                 "tell the log-probability of each token, and of that many of the most probable ones")
      ->check(Range(0, 1000));
  app.add_flag(
      "--score", o.score,
      "tell the log-probability of every token of the file's texts, as HDF5 where --out ends in .h5 or "
      ".hdf5, else as lines of JSON; answer nothing");
  app.add_flag("--exact-match", o.exact_match,
               "with --file: print only how many answers are exactly the file's");
  app.add_flag("--rouge-l", o.rouge_l,
               "the same for ROUGE-L, the F1 of the longest sequence of words that both answers have; with "
               "--out each row gets its own");
  app.add_option("--prompt-file", o.prompt_file, "text with {text} in it that is put around each row's own");
  app.add_option("--extract", pattern,
                 "regular expression (RE2) whose first group, where it fits last, is the answer");
  app.add_option("--allow", o.allow, "the only answers of --extract that count, with commas between")
      ->delimiter(',');
  app.add_option("--retries", o.retries, "attempts more, each a tenth hotter, where --extract finds nothing")
      ->check(Range(0, 1000))
      ->capture_default_str();
  app.add_option("--max-broken-rows", o.max_broken_rows, "rows without an answer that are left out")
      ->check(Range(std::int64_t{0}, INT64_MAX))
      ->capture_default_str();
  app.add_option("--shard", shard, "I/N: answer the I-th of N parts of the rows");
  app.add_option("--gpu-hour-price", o.gpu_hour_price,
                 "price of a device for an hour, for the cost at the end")
      ->check(FromZero(FromZero::Zero::allowed));
}

void add_split_options(CLI::App& app, GenerateOptions& o) {
  app.add_option("--tensor_parallel_size,--tensor-parallel-size", o.tensor_parallel_size,
                 "ranks that have a piece of every layer each, under mpirun: heads, the width of MLPs and "
                 "experts, and the vocabulary are cut")
      ->check(Range(1, 4096))
      ->capture_default_str();
  app.add_option(
         "--pipeline_parallel_size,--pipeline-parallel-size", o.pipeline_parallel_size,
         "stages of layers, on such ranks of their own each; the product of both divides the number of "
         "ranks, and the replicas draw rows from one queue")
      ->check(Range(1, 4096))
      ->capture_default_str();
}

struct CacheWords {
  std::string bytes;
  bool no_sharing = false;
  double utilization = kGpuMemoryUtilization;
};

void add_cache_options(CLI::App& app, GenerateOptions& o, CacheWords& words) {
  app.add_option("--kv-cache-bytes", words.bytes,
                 "memory for keys and values, such as 8GiB; else, on a CPU, as much as --batch questions of "
                 "--max-length tokens fill. A full cache puts the youngest question back");
  app.add_option("--gpu-memory-utilization", words.utilization,
                 "share of a GPU's free memory for weights, keys and values and all else; by itself no more "
                 "than --batch questions of --max-length tokens fill")
      ->capture_default_str();
  app.add_option("--kv-page-tokens", o.page_tokens,
                 "tokens of a page of the cache, a power of two; below 64 a GPU reads them slower")
      ->check(Range(1, 4096))
      ->capture_default_str();
  app.add_flag("--no-prefix-sharing", words.no_sharing,
               "compute every prompt whole, also what others begin with");
}

void take_cache_words(const CLI::App& app, GenerateOptions& o, const CacheWords& words) {
  o.share_prefixes = !words.no_sharing;
  const bool bytes = app.count("--kv-cache-bytes") > 0, share = app.count("--gpu-memory-utilization") > 0;
  if (bytes && share) {
    throw Error({.what = "--kv-cache-bytes and --gpu-memory-utilization both say how large the cache is",
                 .where = "command line",
                 .fix = "give one of them",
                 .code = ExitCode::usage});
  }
  if (bytes) o.kv_cache_bytes = plan::parse_bytes(words.bytes, "--kv-cache-bytes");
  if (!share) return;
  require_share(words.utilization, "--gpu-memory-utilization");
  o.gpu_memory_utilization = words.utilization;
}

void require_consistent(const GenerateOptions& o) {
  const auto refuse = [](const std::string& what, const std::string& fix) {
    throw Error({.what = what, .where = "command line", .fix = fix, .code = ExitCode::usage});
  };
  const auto needs_file = [&](bool given, const std::string& option) {
    if (given && o.file.empty()) refuse(option + " needs questions in a file", "name it with --file");
  };
  needs_file(o.exact_match, "--exact-match");
  needs_file(o.rouge_l, "--rouge-l");
  needs_file(!o.out.empty(), "--out");
  needs_file(o.score, "--score");
  needs_file(!o.prompt_file.empty(), "--prompt-file");
  needs_file(o.extract.has_value(), "--extract");
  needs_file(o.samples > 1, "--n");
  needs_file(o.answers.logprobs >= 0, "--logprobs");
  needs_file(o.shard.of > 1, "--shard");
  if (!o.file.empty() && !o.questions.empty())
    refuse("questions stand on the command line and in a file", "give one of them");
  if (!o.extract && (!o.allow.empty() || o.retries > 0))
    refuse("--allow and --retries are for what --extract finds", "give --extract");
  if (o.overwrite && o.out.empty()) refuse("--overwrite needs --out", "name the file");
  if (o.score && (o.exact_match || o.rouge_l || o.extract || o.samples > 1 || !o.prompt_file.empty()))
    refuse("--score answers nothing", "leave out --exact-match, --rouge-l, --extract, --n and --prompt-file");
  if (!o.score && named_as_hdf5(o.out))
    refuse("--out asks for HDF5, which only scores are written as",
           "give --score, or a name that ends in .jsonl");
  if (o.answers.min_new > o.answers.max_new) refuse("--min-new is above --max-new", "lower it");
  for (const std::string& input : {o.file, o.prompt_file}) {
    if (o.out.empty() || input.empty()) continue;
    for (const std::string& output : {o.out, o.out + ".rows"}) {
      std::error_code none;
      if (std::filesystem::equivalent(input, output, none))
        refuse("answers would be written over " + input, "name another file with --out");
    }
  }
}

// Recipes of training that answers cannot have are known, so that their refusal says why.
void require_answerable(const std::string& recipe, const GenerateOptions& o, bool given) {
  const auto refuse = [](const std::string& what, const std::string& expected) {
    throw Error({.what = what, .expected = expected, .where = "command line", .code = ExitCode::usage});
  };
  if (given && !o.fp8) refuse("--fp8-recipe is of --dtype fp8", "--dtype fp8, or no --fp8-recipe");
  if (recipe == "current" || recipe == "delayed") {
    const char* const why = recipe == "current" ? "whose scales are those of all tokens of a batch"
                                                : "whose scales are a history of training";
    refuse("answers are not made with fp8_recipe: " + recipe + ", " + why,
           o.strict ? "--fp8-recipe block" : "--fp8-recipe rows or block");
  }
  if (o.strict && o.fp8 && recipe != "block")
    refuse(
        "--deterministic strict has no answers with FP8 scales of whole rows: nothing is trained with them",
        "--fp8-recipe block, or --dtype bf16");
  if (o.strict && o.fp8_cache)
    refuse("--deterministic strict has no cache in FP8: training rounds no keys and values",
           "--kv-cache-dtype auto");
}

}  // namespace

int generate_command(const Arguments& arguments) {
  Options options("generate", "Answers questions: from the command line, from a file, or typed in");
  options.example("trainer generate models/qwen3-8b \"What is FP8?\"");
  options.example(
      "launch/mpirun -np 8 build/bin/trainer generate models/qwen3-8b --file questions.jsonl --out "
      "answers.jsonl");
  GenerateOptions o;
  std::string shard, pattern, dtype = "fp32", cache = "auto", device = "auto";
  std::string recipe = "rows", deterministic = "auto";
  bool no_model_defaults = false;
  CacheWords words;
  auto& app = options.app();
  // A script's own options may be followed by those of whoever calls it.
  app.option_defaults()->take_last();
  app.add_option("MODEL", o.model,
                 "Hugging Face folder: weights, config.json, tokenizer; or an adapter's, whose "
                 "adapter_config.json names its base")
      ->required();
  app.add_option("--adapter", o.adapter,
                 "folder of an adapter, as PEFT writes it, to add to the model; several with commas between");
  app.add_option("QUESTION", o.questions, "questions; without any, they are read from standard input")
      ->take_all();
  app.add_option("--template", o.template_name,
                 "chat template; else the one that writes as the model's own, or text is continued");
  app.add_option("--system", o.system, "system message");
  app.add_option("--batch", o.batch, "questions answered side by side")
      ->check(Range(1, 4096))
      ->capture_default_str();
  app.add_option("--max-num-batched-tokens", o.batched_tokens,
                 "tokens of a forward pass at most, one of each question that is being answered and prompts "
                 "beside them; unless given 4096 on a GPU and 512 on a CPU, or twice --batch where that is "
                 "more. Never "
                 "fewer than --batch")
      ->check(Range(1, 1 << 20));
  add_answer_options(app, o);
  app.add_flag("--no-model-defaults", no_model_defaults,
               "take nothing from the model's generation_config.json");
  add_file_options(app, o, shard, pattern);
  app.add_option("--dtype", dtype,
                 "fp32, bf16, or fp8: bf16 with the blocks' weights in E4M3 (a byte a parameter, a scale for "
                 "each output), multiplied with activations in E4M3 (a scale for each token)")
      ->check(CLI::IsMember({"fp32", "bf16", "fp8"}))
      ->capture_default_str();
  app.add_option(
         "--fp8-recipe", recipe,
         "of --dtype fp8: rows, as said there, or block, as fp8_recipe: block trains (E4M3 with a scale "
         "for 128 values of a token, and for a square of a weight)")
      ->check(CLI::IsMember({"rows", "block", "current", "delayed"}))
      ->capture_default_str();
  app.add_option(
         "--deterministic", deterministic,
         "strict: the log-probability of a token has the bits of what a training step with "
         "deterministic: strict computes for it, whatever is answered beside it; slower. auto: but for "
         "roundings")
      ->check(CLI::IsMember({"auto", "strict"}))
      ->capture_default_str();
  app.add_option(
         "--kv-cache-dtype", cache,
         "auto: keys and values lie as they are computed; fp8: in E4M3, with a scale for each key and "
         "each value of a head")
      ->check(CLI::IsMember({"auto", "fp8"}))
      ->capture_default_str();
  add_cache_options(app, o, words);
  add_split_options(app, o);
  app.add_option("--device", device, "auto, cpu or cuda")->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  if (!options.parse(arguments)) return 0;
  o.dtype = dtype == "fp32" ? DType::f32 : DType::bf16;
  o.fp8 = dtype == "fp8";
  o.fp8_cache = cache == "fp8";
  o.strict = deterministic == "strict";
  require_answerable(recipe, o, app.count("--fp8-recipe") > 0);
  o.fp8_blocks = o.fp8 && recipe == "block";
  take_cache_words(app, o, words);
  o.device = setup::device_wish(device);
  if (!shard.empty()) o.shard = parse_shard(shard);
  if (!pattern.empty()) o.extract = pattern;
  o.best = o.score ? std::max<std::int64_t>(0, o.answers.logprobs) : 0;
  o.hdf5 = o.score && named_as_hdf5(o.out);
  require_consistent(o);
  std::vector<std::string> given;
  for (const auto& [option, name] : {std::pair{"--temperature", "temperature"},
                                     {"--top-k", "top_k"},
                                     {"--top-p", "top_p"},
                                     {"--min-p", "min_p"},
                                     {"--repetition-penalty", "repetition_penalty"},
                                     {"--max-new", "max_new_tokens"}}) {
    if (app.count(option) > 0) given.emplace_back(name);
  }
  runtime::Session session(o.device);
  return session.run([&] { return generate(session, o, given, !no_model_defaults); });
}

}  // namespace octet::cli
