// What `trainer generate` is asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octet/base/dtype.h"
#include "octet/device/gpu_choice.h"
#include "octet/generate/decoder.h"

namespace octet::cli {

/// `--shard 2/4`: the second quarter of the rows.
struct Shard {
  std::int64_t number = 1, of = 1;
};

/// A retry is a tenth of the temperature hotter than the attempt before it.
inline constexpr double kHotter = 0.1;

struct GenerateOptions {
  std::string model, template_name, system;
  std::string enable_thinking;  ///< true, false or null, as in training; "" : as the model's template does
  std::optional<std::string> default_system;  ///< in place of the template's own
  std::string adapter;                        ///< folders to add to the model, with commas between; "" : none
  DeviceWish device = DeviceWish::automatic;
  int tensor_parallel_size = 1;    ///< ranks that have a piece of every layer each
  int pipeline_parallel_size = 1;  ///< stages of blocks on ranks of their own
  DType dtype = DType::f32;        ///< that is computed with
  bool dtype_of_model = false;     ///< `dtype` follows the weights, once they are known
  bool fp8 = false;                ///< weights of blocks, and what they multiply, in E4M3
  bool fp8_blocks = false;         ///< by RecipeKind::block, as trained with; else RecipeKind::rows
  bool strict = false;             ///< DecoderOptions::strict
  bool fp8_cache = false;          ///< keys and values, too
  std::int64_t page_tokens = 64;   ///< of a page of the cache
  bool share_prefixes = true;      ///< what prompts begin with alike is computed once
  std::optional<std::size_t> kv_cache_bytes;     ///< of its pages
  std::optional<double> gpu_memory_utilization;  ///< of what is free, for all that a rank holds
  std::vector<std::string> questions;
  std::int64_t max_length = 2048, batch = 32;
  std::optional<std::int64_t> batched_tokens;  ///< of a pass at most (batched_tokens())
  generate::AnswerOptions answers;
  std::int64_t samples = 1;            ///< answers to a question
  std::vector<std::string> stops;      ///< texts that end an answer
  std::vector<std::int32_t> stop_ids;  ///< ids that do
  std::vector<std::int32_t> eos_ids;   ///< the model's own, from generation_config.json
  bool ignore_eos = false;             ///< neither they nor the template's end an answer

  std::string file, out;
  bool overwrite = false, exact_match = false, rouge_l = false, score = false;
  std::int64_t best = 0;  ///< most probable tokens told with each score
  bool hdf5 = false;      ///< `out` is the HDF5 file of scores (score_file.h)
  Shard shard;
  std::int64_t max_broken_rows = 0;
  double gpu_hour_price = 0.0;

  std::string prompt_file;             ///< text with {text} in it, around each row's own
  std::optional<std::string> extract;  ///< regular expression whose group is the answer
  std::vector<std::string> allow;      ///< the only answers that count
  std::int64_t retries = 0;            ///< more attempts where nothing is extracted
};

/// Parses the shard in "2/4". Throws Error (usage).
Shard parse_shard(const std::string& text);

/// Takes from the generation_config.json of `folder` what was not given on the command line (`given`, by
/// the file's names), and returns what was taken, for people. eos_token_id adds to the ids that end an
/// answer. Throws Error for a file that is no JSON or holds values of another type.
std::string take_model_defaults(GenerateOptions& options, const std::string& folder,
                                const std::vector<std::string>& given);

}  // namespace octet::cli
