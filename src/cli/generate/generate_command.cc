#include "generate/generate_command.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "command.h"
#include "generate/vllm_words.h"
#include "octet/answers/answer.h"
#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "octet/generate/cache_budget.h"
#include "octet/plan/memory.h"
#include "octet/runtime/session.h"
#include "octet/setup/setup.h"
#include "octet/train/trainer.h"

namespace octet::cli {
namespace {

using answers::GenerateCall;
using answers::GenerateOptions;

void add_answer_options(Options& options, GenerateOptions& o) {
  generate::Sampling& sampling = o.answers.sampling;
  options.add_option("--max-new,--max-tokens", o.answers.max_new, "max new tokens per answer")
      .check(whole(1, 1 << 20))
      .shows_default();
  options
      .add_option("--min-new", o.answers.min_new,
                  "min new tokens per answer, before which no end token is taken")
      .check(whole(0, 1 << 20))
      .shows_default();
  options
      .add_option("--max-length,--max-model-len", o.max_length,
                  "max tokens of a question and its answer together")
      .check(whole(2, 1 << 20))
      .shows_default();
  options
      .add_option("--temperature", sampling.temperature,
                  "divides the logits; 0 takes the most probable token")
      .shows_default();
  options.add_option("--top-k", sampling.top_k, "sample from the k most probable tokens; 0: from all")
      .shows_default();
  options
      .add_option("--top-p", sampling.top_p,
                  "sample from the most probable tokens, up to a total probability of p")
      .shows_default();
  options
      .add_option("--min-p", sampling.min_p,
                  "sample from tokens that are at least p times as probable as the most probable one")
      .shows_default();
  options
      .add_option("--repetition-penalty", sampling.repetition_penalty,
                  "above 1: tokens that occurred before become less probable")
      .shows_default();
  options.add_option("--seed", sampling.seed, "seed of sampling").shows_default();
  options
      .add_option("--stop", o.stops,
                  "stop string: ends an answer and is not part of it; may be given several times")
      .repeated();
  options
      .add_option("--stop-id", o.stop_ids,
                  "stop token: an id that ends an answer; may be given several times")
      .repeated()
      .check(whole(0, INT32_MAX));
  options.add_flag("--ignore-eos", o.ignore_eos, "end tokens do not end an answer; only its limit does");
}

void add_file_options(Options& options, GenerateOptions& o, std::string& shard, std::string& pattern) {
  options.add_option("--file,--input_file", o.file,
                     "questions in a file: a data set, lines, or rows of prompt_ids");
  options.add_option("--out,--output_file", o.out,
                     "file for the answers, a data set; answers in it are not computed again");
  options.add_flag("--overwrite", o.overwrite, "replace what --out holds");
  options.add_option("--n", o.samples, "answers per question").check(whole(1, 4096)).shows_default();
  options
      .add_option("--logprobs", o.answers.logprobs,
                  "write the log-probability of each token, and of the N most probable tokens in its place")
      .check(whole(0, 1000));
  options.add_flag("--score", o.score,
                   "write the log-probability of every token of the file's texts, as HDF5 where --out ends "
                   "in .h5 or .hdf5, else as JSON lines; no answers are made");
  options.add_flag("--reward", o.reward,
                   "MODEL is a reward model: write the score of the answer of each row of --file, or of its "
                   "chosen and rejected answers, as JSON lines");
  options.add_flag("--exact-match", o.exact_match,
                   "with --file: print only the share of answers that are exactly the file's");
  options.add_flag("--rouge-l", o.rouge_l,
                   "the same for ROUGE-L, the F1 of the longest sequence of words that both answers have; "
                   "with --out each row gets its score");
  options.add_option("--prompt-file", o.prompt_file,
                     "prompt: a text in which {text} is replaced by the text of each row");
  options.add_option("--extract", pattern,
                     "regular expression (RE2); the first group of its last match is the answer");
  options.add_option("--allow", o.allow, "the only answers of --extract that count, with commas between")
      .split_at(',');
  options
      .add_option("--retries", o.retries,
                  "extra attempts if --extract finds nothing, each at a 10 % higher temperature")
      .check(whole(0, 1000))
      .shows_default();
  options
      .add_option("--max-broken-rows", o.max_broken_rows,
                  "rows that may fail, and are left out, before the command fails")
      .check(whole(std::int64_t{0}, INT64_MAX))
      .shows_default();
  options.add_option(
      "--save-routing", o.save_routing,
      "with --out, mixtures of experts: file for the experts of each token of the answers, for "
      "training with moe_routing_file");
  options.add_option("--shard", shard, "I/N: answer the I-th of N parts of the rows");
  options
      .add_option("--gpu-hour-price", o.gpu_hour_price,
                  "price of a device per hour: the cost is printed at the end")
      .check(at_least_zero());
}

void add_split_options(Options& options, GenerateOptions& o) {
  options
      .add_option("--tensor-parallel-size", o.tensor_parallel_size,
                  "tensor parallelism: ranks, under mpirun, that every layer is split over (attention heads, "
                  "width of MLPs and experts, vocabulary)")
      .check(whole(1, 4096))
      .shows_default();
  options
      .add_option(
          "--pipeline-parallel-size", o.pipeline_parallel_size,
          "pipeline parallelism: stages that the layers are split into; the product of both sizes divides "
          "the number of ranks, and the replicas take rows from one queue")
      .check(whole(1, 4096))
      .shows_default();
}

/// Options of vLLM's scripts that are accepted and have no effect.
struct VllmWords {
  std::string model;
  bool trust_remote_code = false, enforce_eager = false;
};

void add_vllm_options(Options& options, VllmWords& words) {
  options.add_option("--model", words.model, "MODEL, as vLLM's scripts name it");
  options.add_flag("--trust-remote-code", words.trust_remote_code,
                   "changes nothing: no code of a model is ever run");
  options.add_flag("--enforce-eager", words.enforce_eager,
                   "changes nothing: OCTETRUN_RECORDING=off starts kernels one by one");
}

struct CacheWords {
  std::string bytes;
  bool no_sharing = false;
  double utilization = generate::kGpuMemoryUtilization;
};

void add_cache_options(Options& options, GenerateOptions& o, CacheWords& words) {
  options.add_option("--kv-cache-bytes", words.bytes,
                     "memory of the KV cache, such as 8GiB; default on a CPU: room for --batch questions of "
                     "--max-length tokens. When it is full, the youngest question goes back to the queue");
  options
      .add_option("--gpu-memory-utilization", words.utilization,
                  "share of a GPU's free memory for weights, KV cache and everything else; unless given, the "
                  "cache is no larger than --batch questions of --max-length tokens need")
      .shows_default();
  options
      .add_option("--kv-page-tokens", o.page_tokens,
                  "tokens per page of the KV cache, a power of two; below 64 a GPU reads them more slowly")
      .check(whole(1, 4096))
      .shows_default();
  options.add_flag("--no-prefix-sharing", words.no_sharing,
                   "compute every prompt in full, even if several share their first tokens");
}

void take_cache_words(const Options& options, GenerateOptions& o, const CacheWords& words) {
  o.share_prefixes = !words.no_sharing;
  const bool bytes = options.count("--kv-cache-bytes") > 0,
             share = options.count("--gpu-memory-utilization") > 0;
  if (bytes && share) {
    throw Error({.what = "--kv-cache-bytes and --gpu-memory-utilization both set the size of the cache",
                 .expected = "--kv-cache-bytes or --gpu-memory-utilization, not both",
                 .found = "--kv-cache-bytes " + words.bytes + " and --gpu-memory-utilization",
                 .where = "command line",
                 .fix = "give one of them",
                 .code = ExitCode::usage});
  }
  if (bytes) o.kv_cache_bytes = plan::parse_bytes(words.bytes, "--kv-cache-bytes");
  if (!share) return;
  generate::require_share(words.utilization, "--gpu-memory-utilization");
  o.gpu_memory_utilization = words.utilization;
}

void require_consistent(const GenerateOptions& o) {
  const auto refuse = [](const std::string& what, const std::string& fix) {
    throw Error({.what = what, .where = "command line", .fix = fix, .code = ExitCode::usage});
  };
  const auto needs_file = [&](bool given, const std::string& option) {
    if (given && o.file.empty()) refuse(option + " needs questions in a file", "name the file with --file");
  };
  needs_file(o.exact_match, "--exact-match");
  needs_file(o.rouge_l, "--rouge-l");
  needs_file(!o.out.empty(), "--out");
  needs_file(o.score, "--score");
  needs_file(o.reward, "--reward");
  needs_file(!o.prompt_file.empty(), "--prompt-file");
  needs_file(o.extract.has_value(), "--extract");
  needs_file(o.samples > 1, "--n");
  needs_file(o.answers.logprobs >= 0, "--logprobs");
  needs_file(o.shard.of > 1, "--shard");
  if (!o.file.empty() && !o.questions.empty())
    refuse("questions are given on the command line and in a file", "give questions or --file, not both");
  if (!o.extract && (!o.allow.empty() || o.retries > 0))
    refuse("--allow and --retries need --extract", "give --extract");
  if (o.overwrite && o.out.empty()) refuse("--overwrite needs --out", "name the file");
  if (!o.save_routing.empty() && o.out.empty())
    refuse("--save-routing needs --out", "name the file of answers");
  if (!o.save_routing.empty() && (o.save_routing == o.out || o.save_routing == o.out + ".rows"))
    refuse("--save-routing and --out name one file", "name another file with --save-routing");
  if (o.score && !o.save_routing.empty())
    refuse("--score gives no answers, and --save-routing writes the experts of answers",
           "leave one of them out");
  if (o.score && (o.exact_match || o.rouge_l || o.extract || o.samples > 1 || !o.prompt_file.empty()))
    refuse("--score gives no answers",
           "leave out --exact-match, --rouge-l, --extract, --n and --prompt-file");
  if (o.reward && (o.fp8 || o.tensor_parallel_size > 1 || o.pipeline_parallel_size > 1))
    refuse("--reward computes with whole layers in fp32 or bf16",
           "leave out --dtype fp8, --tensor-parallel-size and --pipeline-parallel-size");
  if (!o.score && answers::named_as_hdf5(o.out))
    refuse("--out names an HDF5 file, but only scores are written as HDF5",
           "give --score, or a name that ends in .jsonl");
  for (const char* ending : {".parquet", ".arrow", ".csv", ".tsv", ".gz"}) {
    if (o.out.ends_with(ending))
      refuse(std::string("--out names a file in ") + ending + ", but rows are written as JSON lines",
             "give a name that ends in .jsonl");
  }
  // Limit on pairs of a token and its log-probability. They stay in memory until all answers of a row are
  // done.
  constexpr std::int64_t kMostScores = 1 << 24;
  const std::int64_t scores = o.samples * o.answers.max_new;  // at most 2^32
  if (!o.score && scores * std::max<std::int64_t>(0, o.answers.logprobs) > kMostScores)
    refuse(
        "--n x --max-new x --logprobs is above " + with_commas(kMostScores) + ", which is too much for a row",
        "lower one of them: --logprobs to " + std::to_string(kMostScores / scores) + " or less");
  if (o.answers.min_new > o.answers.max_new)
    refuse("--min-new " + std::to_string(o.answers.min_new) + " is above --max-new " +
               std::to_string(o.answers.max_new),
           "lower --min-new, or raise --max-new");
  for (const std::string& input : {o.file, o.prompt_file}) {
    if (o.out.empty() || input.empty()) continue;
    for (const std::string& output : {o.out, o.out + ".rows"}) {
      std::error_code none;
      if (std::filesystem::equivalent(input, output, none))
        refuse("answers would be written over " + input, "name another file with --out");
    }
  }
}

// Throws Error for options of answers with --reward.
void require_no_answers(const Options& options) {
  for (const char* option :
       {"--score", "--exact-match", "--rouge-l", "--extract", "--n", "--prompt-file", "--save-routing",
        "--max-new", "--min-new", "--temperature", "--top-k", "--top-p", "--min-p", "--repetition-penalty",
        "--stop", "--stop-id", "--ignore-eos", "--logprobs", "--max-broken-rows"}) {
    if (options.count(option) == 0) continue;
    throw Error({.what = std::string("--reward gives no answers, so ") + option + " has no effect",
                 .expected = std::string("--reward without ") + option,
                 .where = "command line",
                 .fix = std::string("leave out ") + option,
                 .code = ExitCode::usage});
  }
}

// Refuses known recipes of training that decoding does not support, with the reason.
void require_answerable(const std::string& recipe, const GenerateOptions& o, bool given) {
  const auto refuse = [](const std::string& what, const std::string& instead) {
    throw Error({.what = what,
                 .expected = instead,
                 .where = "command line",
                 .fix = "give " + instead,
                 .code = ExitCode::usage});
  };
  if (given && !o.fp8)
    refuse("--fp8-recipe is a setting of --dtype fp8", "--dtype fp8, or leave --fp8-recipe out");
  if (recipe == "current" || recipe == "delayed") {
    const char* const why = recipe == "current" ? "because all tokens of a batch share a scale"
                                                : "because its scales need a history of training";
    refuse("answers cannot be computed with fp8_recipe: " + recipe + ", " + why,
           o.strict ? "--fp8-recipe block" : "--fp8-recipe rows or block");
  }
  if (o.strict && o.fp8 && recipe != "block")
    refuse("--deterministic strict excludes FP8 scales of whole rows: training does not use them",
           "--fp8-recipe block, or --dtype bf16");
  if (o.strict && o.fp8_cache)
    refuse("--deterministic strict excludes a cache in FP8: training does not round keys and values",
           "--kv-cache-dtype auto");
}

}  // namespace

std::optional<GenerateCall> read_generate_call(const Arguments& arguments) {
  Options options("generate", "Answers questions: from the command line, from a file, or typed in");
  options.example("trainer generate models/qwen3-8b \"What is FP8?\"");
  options.example(
      "launch/mpirun -np 8 build/bin/trainer generate models/qwen3-8b --file questions.jsonl --out "
      "answers.jsonl");
  GenerateCall call;
  GenerateOptions& o = call.options;
  std::string shard, pattern, dtype = "fp32", cache = "auto", device = "auto";
  std::string recipe = "rows", deterministic = "auto";
  bool no_model_defaults = false;
  CacheWords words;
  // A script may append the options of its caller to its own.
  options.last_value_counts();
  options
      .add_option(
          "MODEL", o.model,
          "Hugging Face folder (weights, config.json, tokenizer); or folder of an adapter, if its "
          "adapter_config.json names the base; or checkpoint-N; or folder of a run (its newest checkpoint)")
      .required();
  options.add_option(
      "--adapter", o.adapter,
      "folder of an adapter, as PEFT writes it, to add to the model; several with commas between");
  options.add_option("QUESTION", o.questions, "questions; without any, they are read from standard input")
      .takes_all();
  options.add_option("--template", o.template_name,
                     "chat template; default: the template of the checkpoint's run, or a template equal to "
                     "that of the model; a model without one continues text");
  options.add_option("--system", o.system, "system message of each question that has none");
  std::string default_system;
  options.add_option("--default-system", default_system,
                     "as in training: replaces the template's system message, for questions without a system "
                     "message and without --system; default: as in the checkpoint's run");
  options
      .add_option(
          "--enable-thinking", o.enable_thinking,
          "as in training, for templates with thoughts: with true the model writes them, with false and "
          "null the prompt ends in empty ones; default: as in the checkpoint's run, else true, or the "
          "default of a template in Jinja")
      .check(one_of({"true", "false", "null"}));
  options
      .add_option("--batch,--max-num-seqs", o.batch,
                  "batch size: questions that are answered at the same time")
      .check(whole(1, 4096))
      .shows_default();
  options
      .add_option("--max-num-batched-tokens", o.batched_tokens,
                  "tokens per forward pass, at most: one for each question that is being answered, the rest "
                  "for prompts; default: 4096 on a GPU and 512 on a CPU, or twice --batch if that is more. "
                  "Never less than --batch")
      .check(whole(1, 1 << 20));
  add_answer_options(options, o);
  options.add_flag("--no-model-defaults", no_model_defaults,
                   "do not read the model's generation_config.json");
  add_file_options(options, o, shard, pattern);
  options
      .add_option("--dtype", dtype,
                  "compute dtype: fp32, bf16, or fp8: bf16 with the blocks' weights in E4M3 (one byte per "
                  "parameter, a scale per output) and activations in E4M3 (a scale per token); auto: bf16 if "
                  "the weights are stored in 16 bits, else fp32")
      .check(one_of({"fp32", "bf16", "fp8", "auto"}))
      .shows_default();
  options
      .add_option("--fp8-recipe", recipe,
                  "of --dtype fp8: rows, as described there, or block, as trained with fp8_recipe: block "
                  "(E4M3 with a "
                  "scale per 128 values of a token, and per 128 x 128 values of a weight)")
      .check(one_of({"rows", "block", "current", "delayed"}))
      .shows_default();
  options
      .add_option("--deterministic", deterministic,
                  "strict: log-probabilities have the bits of a training step with deterministic: strict, in "
                  "any batch; slower. auto: equal up to rounding")
      .check(one_of({"auto", "strict"}))
      .shows_default();
  options
      .add_option(
          "--kv-cache-dtype", cache,
          "dtype of the KV cache: auto, as keys and values are computed; fp8: E4M3, with a scale per key and "
          "value of each head")
      .check(one_of({"auto", "fp8"}))
      .shows_default();
  add_cache_options(options, o, words);
  add_split_options(options, o);
  VllmWords vllm;
  add_vllm_options(options, vllm);
  options.add_option("--device", device, "auto, cpu or cuda").check(one_of({"auto", "cpu", "cuda"}));
  if (!options.parse(without_vllm_words(arguments))) return std::nullopt;
  if (options.count("--default-system") > 0) o.default_system = default_system;
  o.dtype_of_model = dtype == "auto";
  o.dtype = dtype == "bf16" || dtype == "fp8" ? DType::bf16 : DType::f32;
  o.fp8 = dtype == "fp8";
  o.fp8_cache = cache == "fp8";
  o.strict = deterministic == "strict";
  require_answerable(recipe, o, options.count("--fp8-recipe") > 0);
  o.fp8_blocks = o.fp8 && recipe == "block";
  take_cache_words(options, o, words);
  o.device = setup::device_wish(device);
  if (!shard.empty()) o.shard = answers::parse_shard(shard);
  if (!pattern.empty()) o.extract = pattern;
  o.best = o.score ? std::max<std::int64_t>(0, o.answers.logprobs) : 0;
  o.hdf5 = o.score && answers::named_as_hdf5(o.out);
  if (o.reward) require_no_answers(options);
  require_consistent(o);
  call.model_defaults = !no_model_defaults;
  for (const auto& [option, name] : {std::pair{"--temperature", "temperature"},
                                     {"--top-k", "top_k"},
                                     {"--top-p", "top_p"},
                                     {"--min-p", "min_p"},
                                     {"--repetition-penalty", "repetition_penalty"},
                                     {"--max-new", "max_new_tokens"}}) {
    if (options.count(option) > 0) call.given.emplace_back(name);
  }
  return call;
}

// `trainer generate`: answers from the terminal or a file.

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
