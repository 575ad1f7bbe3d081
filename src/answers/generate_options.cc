#include "octet/answers/generate_options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/model_file.h"

namespace octet::answers {
namespace {

Json read_settings(const std::string& folder) {
  try {
    return read_model_file(folder, "generation_config.json");
  } catch (const Error& error) {
    Problem problem = error.problem();
    problem.fix += "; or leave the file out with --no-model-defaults";
    throw Error(problem);
  }
}

// Formats a number for people: 20 instead of 20.0.
std::string number(double value) {
  const double whole = std::round(value);
  return value == whole && std::abs(whole) < 1e15 ? std::to_string(std::llround(whole)) : Json(value).dump();
}

}  // namespace

Shard parse_shard(const std::string& text) {
  Shard shard;
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, shard.number);
  const bool slash = first.ec == std::errc() && first.ptr != end && *first.ptr == '/';
  const auto second = slash ? std::from_chars(first.ptr + 1, end, shard.of) : first;
  if (!slash || second.ec != std::errc() || second.ptr != end || shard.number < 1 ||
      shard.of < shard.number) {
    throw Error({.what = "--shard is not a part of the rows",
                 .expected = "I/N with I from 1 to N, as in 2/4",
                 .found = text,
                 .where = "command line",
                 .fix = "write the part and the number of parts, with a slash between",
                 .code = ExitCode::usage});
  }
  return shard;
}

bool named_as_hdf5(const std::string& path) {
  std::string name = path;
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name.ends_with(".h5") || name.ends_with(".hdf5");
}

std::string take_model_defaults(GenerateOptions& options, const std::string& folder,
                                const std::vector<std::string>& given) {
  const std::string path = folder + "/generation_config.json";
  if (!path_exists(path)) return "";
  const Json file = read_settings(folder);
  std::string taken;
  const auto open = [&](const char* key) {
    return file.contains(key) && !file[key].is_null() && std::ranges::find(given, key) == given.end();
  };
  const auto take = [&](const char* key, double& value, double fallback) {
    if (!open(key)) return;
    const double found = json_number(file, key, fallback, path);
    if (found == value) return;
    value = found;
    taken += (taken.empty() ? "" : ", ") + std::string(key) + " " + number(found);
  };
  const auto take_whole = [&](const char* key, std::int64_t& value, std::int64_t least, std::int64_t most) {
    if (!open(key)) return;
    const std::int64_t found = json_int(file, key, value, least, most, path);
    if (found == value) return;
    value = found;
    taken += (taken.empty() ? "" : ", ") + std::string(key) + " " + std::to_string(found);
  };
  generate::Sampling& sampling = options.answers.sampling;
  // Without do_sample decoding is greedy, and temperature and filters have no effect.
  const bool samples = json_bool(file, "do_sample", false, path);
  if (samples) {
    if (std::ranges::find(given, "temperature") == given.end()) {
      sampling.temperature = 1.0;
      if (!open("temperature") || file["temperature"] == 1.0) taken = "temperature 1.0";
    }
    take("temperature", sampling.temperature, 1.0);
    take("top_p", sampling.top_p, 1.0);
    take("min_p", sampling.min_p, 0.0);
    take_whole("top_k", sampling.top_k, 0, INT64_C(1) << 31);
  }
  take("repetition_penalty", sampling.repetition_penalty, 1.0);
  take_whole("max_new_tokens", options.answers.max_new, 1, 1 << 20);
  std::ranges::copy(token_ids(file, "eos_token_id"), std::back_inserter(options.eos_ids));
  return taken;
}

}  // namespace octet::answers
