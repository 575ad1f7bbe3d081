#include "gemm_autotune_cache.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"

namespace octet::ops {

namespace {

/// Version of the keys and of the way of choosing. Files of other versions are ignored.
constexpr int kFormat = 1;
/// Limit of stored choices: otherwise a run with many different shapes would make the file grow without
/// bound.
constexpr std::size_t kMostKept = 4096;
/// A shape that comes this often in a row gets a choice. A micro-batch uses a shape once per layer, so
/// documents of varying lengths never reach this number.
constexpr int kRecurs = 1000;

using Choices = std::map<GemmKey, AlgorithmBits>;

std::string variable(const char* name) {
  const char* value = environment_variable(name);
  return value != nullptr ? value : "";
}

template <std::size_t N, typename T>
std::array<T, N> numbers(const Json& list) {
  if (!list.is_array() || list.size() != N)
    throw Error("a list of " + std::to_string(N) + " numbers is missing");
  std::array<T, N> result{};
  for (std::size_t i = 0; i < N; ++i) {
    if (!list[i].is_number_integer()) throw Error("a number is not whole");
    result[i] = list[i].get<T>();
  }
  return result;
}

Json listed(const GemmKey& key, const AlgorithmBits& algorithm) {
  return {{"product", key}, {"algorithm", algorithm}};
}

/// Throws Error if the text was not made by listed().
Choices choices_in(const Json& object, const char* name) {
  if (!object.contains(name) || !object[name].is_array()) {
    throw Error("'" + std::string(name) + "' is no list");
  }
  Choices result;
  for (const Json& choice : object[name]) {
    if (!choice.is_object() || !choice.contains("product") || !choice.contains("algorithm")) {
      throw Error("a choice has no 'product' or no 'algorithm'");
    }
    result[numbers<16, std::int64_t>(choice["product"])] = numbers<8, std::uint64_t>(choice["algorithm"]);
  }
  return result;
}

}  // namespace

std::string cache_folder() {
  if (const std::string told = variable("OCTETRUN_CACHE"); !told.empty()) return told == "off" ? "" : told;
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/octet";
  if (const std::string home = variable("HOME"); !home.empty()) return home + "/.cache/octet";
  return "";
}

AutotuneCache::AutotuneCache(const std::string& folder, std::string machine) : machine_(std::move(machine)) {
  if (folder.empty()) return;
  std::string name;
  for (const char c : machine_) name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '-';
  path_ = folder + "/products-" + name + ".json";
  try {
    choices_ = read();
  } catch (const std::exception& e) {
    log::warn(
        "the stored algorithms of GEMMs in " + path_ + " cannot be read and are chosen again: " + e.what(),
        log::Importance::setting);
  }
}

std::map<GemmKey, AlgorithmBits> AutotuneCache::read() const {
  if (!path_exists(path_)) return {};
  const Json file = read_json(path_);
  if (!file.is_object()) throw Error("it is no object");
  if (json_int(file, "format", 0, 0, 1 << 20, path_) != kFormat ||
      json_string(file, "machine", "", path_) != machine_) {
    return {};
  }
  return choices_in(file, "choices");
}

std::optional<AlgorithmBits> AutotuneCache::find(const GemmKey& key) const {
  const auto found = choices_.find(key);
  if (found == choices_.end()) return std::nullopt;
  return found->second;
}

void AutotuneCache::keep(const std::vector<GemmKey>& gemms, const AlgorithmBits& algorithm) {
  for (const GemmKey& key : gemms) choices_[key] = algorithm;
  if (path_.empty()) return;
  try {
    std::map<GemmKey, AlgorithmBits> others;
    try {
      others = read();
    } catch (const std::exception&) {
      // Damaged: reported when it was first read.
    }
    choices_.merge(others);
    Json list = Json::array();
    for (const GemmKey& key : gemms) {
      list.push_back(listed(key, algorithm));
    }
    for (const auto& [key, its] : choices_) {
      if (list.size() >= kMostKept) break;
      if (std::find(gemms.begin(), gemms.end(), key) == gemms.end()) {
        list.push_back(listed(key, its));
      }
    }
    make_folders(path_.substr(0, path_.rfind('/')));
    write_file_atomically(
        path_, Json{{"format", kFormat}, {"machine", machine_}, {"choices", std::move(list)}}.dump() + "\n");
  } catch (const std::exception& e) {
    log::warn(
        "the algorithms of GEMMs cannot be stored for the next run (name another folder with OCTETRUN_CACHE, "
        "or set it to off): " +
            std::string(e.what()),
        log::Importance::setting);
    path_.clear();
  }
}

std::optional<AlgorithmBook::Known> AlgorithmBook::known(const GemmKey& exact, const GemmKey& similar,
                                                         bool may_choose) {
  const auto in_run = [](const std::map<GemmKey, AlgorithmBits>& map,
                         const GemmKey& key) -> std::optional<Known> {
    const auto found = map.find(key);
    if (found == map.end()) return std::nullopt;
    return Known{.algorithm = found->second, .of = key};
  };
  const auto of_earlier_runs = [&](const GemmKey& key) -> std::optional<Known> {
    const auto found = kept_.find(key);
    if (!may_choose || !found || bad_.contains(key)) return std::nullopt;
    return Known{.algorithm = *found, .of = key, .checked = false};
  };
  if (auto known = in_run(exact_, exact)) return known;
  if (auto known = of_earlier_runs(exact)) return known;
  if (may_choose) {
    Streak& streak = streaks_[similar];
    if (streak.exact != exact) streak = {.exact = exact};
    if (++streak.length > kRecurs) return std::nullopt;
  }
  if (auto known = in_run(similar_, similar)) return known;
  return of_earlier_runs(similar);
}

std::optional<AlgorithmBook::Known> AlgorithmBook::nearest(const GemmKey& similar, std::size_t tokens) const {
  std::optional<Known> best;
  double distance = 0;
  for (const auto& [key, algorithm] : similar_) {
    GemmKey like = key;
    like[tokens] = similar[tokens];
    if (like != similar) continue;
    const double far = std::abs(std::log2(static_cast<double>(key[tokens])) -
                                std::log2(static_cast<double>(similar[tokens])));
    // Keys come in ascending order of their tokens.
    if (best && far > distance) continue;
    best = Known{.algorithm = algorithm, .of = key};
    distance = far;
  }
  return best;
}

void AlgorithmBook::checked(const Known& known, const GemmKey& similar, bool good) {
  if (!good) {
    bad_.insert(known.of);
    return;
  }
  if (known.of != similar) exact_[known.of] = known.algorithm;
  similar_.try_emplace(similar, known.algorithm);
}

void AlgorithmBook::choose(const GemmKey& exact, const GemmKey& similar, const AlgorithmBits& algorithm) {
  exact_[exact] = algorithm;
  std::vector<GemmKey> gemms = {exact};
  if (similar_.try_emplace(similar, algorithm).second) gemms.push_back(similar);
  kept_.keep(gemms, algorithm);
}

std::string AlgorithmBook::text() const {
  const auto list = [](const Choices& choices) {
    Json all = Json::array();
    for (const auto& [key, algorithm] : choices) all.push_back(listed(key, algorithm));
    return all;
  };
  return Json{{"format", kFormat}, {"exact", list(exact_)}, {"similar", list(similar_)}}.dump();
}

void AlgorithmBook::learn(const std::string& text) {
  const Json told = parse_json(text, "choices of GEMMs");
  if (!told.is_object() || json_int(told, "format", 0, 0, 1 << 20, "choices of GEMMs") != kFormat) {
    throw Error(Problem{.what = "the autotuned GEMMs of another rank cannot be read",
                        .expected = "format " + std::to_string(kFormat),
                        .fix = "start the same program on all hosts"});
  }
  exact_.merge(choices_in(told, "exact"));
  similar_.merge(choices_in(told, "similar"));
}

}  // namespace octet::ops
