// Options of `trainer generate`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octet/base/dtype.h"
#include "octet/device/gpu_choice.h"
#include "octet/generate/decoder.h"

namespace octet::answers {

/// `--shard 2/4`: the second quarter of the rows.
struct Shard {
  std::int64_t number = 1, of = 1;
};

/// Each retry raises the temperature by this share of the configured temperature.
inline constexpr double kHotter = 0.1;

struct GenerateOptions {
  std::string model, template_name, system;
  std::string enable_thinking;  ///< true, false or null, as in training; "": the template's default
  std::optional<std::string> default_system;  ///< replaces the default system prompt of the template
  std::string adapter;                        ///< folders of adapters, separated by commas; "": none
  DeviceWish device = DeviceWish::automatic;
  int tensor_parallel_size = 1;                  ///< ranks that share every layer
  int pipeline_parallel_size = 1;                ///< number of stages; each has its own ranks
  DType dtype = DType::f32;                      ///< compute dtype
  bool dtype_of_model = false;                   ///< `dtype` follows the weights after the model is found
  bool fp8 = false;                              ///< weights of blocks and their inputs in E4M3
  bool fp8_blocks = false;                       ///< RecipeKind::block, as in training; else RecipeKind::rows
  bool strict = false;                           ///< DecoderOptions::strict
  bool fp8_cache = false;                        ///< keys and values in FP8
  std::int64_t page_tokens = 64;                 ///< tokens per page of the cache
  bool share_prefixes = true;                    ///< common prefixes of prompts are computed once
  std::optional<std::size_t> kv_cache_bytes;     ///< size of the cache pages
  std::optional<double> gpu_memory_utilization;  ///< share of free memory for all that a rank holds
  std::vector<std::string> questions;
  std::int64_t max_length = 2048, batch = 32;
  std::optional<std::int64_t> batched_tokens;  ///< most tokens of a forward pass (batched_tokens())
  generate::AnswerOptions answers;
  std::int64_t samples = 1;            ///< answers per question
  std::vector<std::string> stops;      ///< texts that end an answer
  std::vector<std::int32_t> stop_ids;  ///< ids that end an answer
  std::vector<std::int32_t> eos_ids;   ///< of the model, from generation_config.json
  bool ignore_eos = false;             ///< neither `eos_ids` nor the ids of the template end an answer

  std::string file, out;
  bool overwrite = false, exact_match = false, rouge_l = false, score = false;
  bool reward = false;       ///< the model is a reward model, which scores the rows of `file`
  std::int64_t best = 0;     ///< most probable tokens in each score
  bool hdf5 = false;         ///< `out` is the HDF5 file of scores (output_files.h)
  std::string save_routing;  ///< file of the experts of answers (feed/routing_file.h); "": none
  Shard shard;
  std::int64_t max_broken_rows = 0;
  double gpu_hour_price = 0.0;

  std::string prompt_file;  ///< file with the text around each row; {text} marks the place of the row
  std::optional<std::string> extract;  ///< regular expression; its first group is the answer
  std::vector<std::string> allow;      ///< accepted answers; empty: all
  std::int64_t retries = 0;            ///< further attempts if nothing is extracted
};

/// Parses the shard in "2/4". Throws Error (usage).
Shard parse_shard(const std::string& text);

/// Whether the name of an OUT requests an HDF5 file of scores: it ends in .h5 or .hdf5.
bool named_as_hdf5(const std::string& path);

/// Takes settings from the generation_config.json of `folder` unless the command line gives them (`given`, by
/// the names in that file). Returns the taken settings for people. eos_token_id adds to the ids that end an
/// answer. Throws Error for invalid JSON or values of another type.
std::string take_model_defaults(GenerateOptions& options, const std::string& folder,
                                const std::vector<std::string>& given);

}  // namespace octet::answers
