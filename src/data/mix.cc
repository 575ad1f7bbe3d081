#include "octet/data/mix.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/random.h"
#include "octet/base/strings.h"

namespace octet::data {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 33;

void check_weights(const std::vector<double>& weights, std::size_t sets) {
  if (weights.empty()) return;
  const bool usable = std::ranges::all_of(weights, [](double w) { return std::isfinite(w) && w > 0; });
  if (weights.size() == sets && usable) return;
  throw Error({.what = "interleave_probs does not fit the data sets",
               .expected = std::to_string(sets) + " numbers above 0, one for each data set",
               .found = std::to_string(weights.size()) + " numbers" +
                        (usable ? "" : ", among them one that is not above 0"),
               .where = "configuration key 'interleave_probs'",
               .fix = "give one number per data set, or leave interleave_probs out for equal shares",
               .code = ExitCode::usage});
}

// Draws data sets by weight, with a counter-based generator: draw i depends only on (seed, i) and on the sets
// that are not dropped. Without weights, sets take turns.
class Draw {
 public:
  Draw(const MixOptions& options, std::size_t sets) : options_(options), alive_(sets, true) {}
  void drop(std::size_t set) { alive_[set] = false; }
  std::size_t next() {
    if (options_.weights.empty()) {
      do turn_ = turn_ + 1 == alive_.size() ? 0 : turn_ + 1;
      while (!alive_[turn_]);
      return turn_;
    }
    double total = 0;
    for (std::size_t s = 0; s < alive_.size(); ++s) total += alive_[s] ? options_.weights[s] : 0;
    const auto bits = philox(options_.seed, RandomUse::data, count_++, 0x3117u);
    double left = (static_cast<double>(bits[0]) * 0x1p-32 + static_cast<double>(bits[1]) * 0x1p-64) * total;
    std::size_t last = 0;
    for (std::size_t s = 0; s < alive_.size(); ++s) {
      if (!alive_[s]) continue;
      last = s;
      if (left < options_.weights[s]) break;
      left -= options_.weights[s];
    }
    return last;
  }

 private:
  const MixOptions& options_;
  std::vector<bool> alive_;
  std::size_t turn_ = static_cast<std::size_t>(-1);
  std::uint64_t count_ = 0;
};

}  // namespace

RowMix::RowMix(std::vector<DataSource> sources, const MixOptions& options)
    : sources_(std::move(sources)), options_(options) {
  for (const DataSource& source : sources_) begins_.push_back(begins_.back() + source.rows);
  rows_ = begins_.back();
  check_weights(options.weights, sources_.size());
  if (options.strategy != "concat" && sources_.size() > 1) interleave(options);
}

void RowMix::interleave(const MixOptions& options) {
  const std::size_t sets = sources_.size();
  std::vector<std::int64_t> used(sets, 0);
  std::vector<bool> ended(sets, false);
  std::size_t left = sets;
  Draw draw(options, sets);
  while (left > 0) {
    const std::size_t s = draw.next();
    order_.push_back(begins_[s] + used[s] % sources_[s].rows);
    if (static_cast<std::int64_t>(order_.size()) > kMost) {
      throw Error({.what = "the mixture of data sets has too many rows",
                   .expected = "at most " + with_commas(kMost),
                   .where = "configuration keys 'mix_strategy' and 'interleave_probs'",
                   .fix = "raise the smallest weight, or use mix_strategy: interleave_under",
                   .code = ExitCode::usage});
    }
    if (++used[s] < sources_[s].rows || ended[s]) continue;
    ended[s] = true;
    --left;
    if (options.strategy == "interleave_under") break;
    if (options.strategy == "interleave_once") draw.drop(s);
  }
  rows_ = static_cast<std::int64_t>(order_.size());
}

std::vector<std::int64_t> RowMix::distinct_rows() const {
  const auto repeats = [](const DataSource& source) { return source.rows > source.file_rows(); };
  std::vector<std::int64_t> numbers;
  if (order_.empty() && std::ranges::none_of(sources_, repeats)) return numbers;
  std::map<std::pair<const RowReader*, std::int64_t>, std::int64_t> known;
  for (std::int64_t p = 0; p < rows_; ++p) {
    const Place place = at(p);
    const auto number = static_cast<std::int64_t>(known.size());
    numbers.push_back(known.try_emplace({place.file, place.row}, number).first->second);
  }
  return numbers;
}

Recipe RowMix::recipe() const {
  Recipe out;
  if (sources_.size() > 1) {
    std::string weights;
    for (const double w : options_.weights) weights += (weights.empty() ? "" : ", ") + std::to_string(w);
    out.emplace_back("mix_strategy", options_.strategy);
    if (!weights.empty()) out.emplace_back("interleave_probs", weights);
    if (!weights.empty()) out.emplace_back("seed of the mixture", std::to_string(options_.seed));
  }
  for (std::size_t s = 0; s < sources_.size(); ++s) {
    const DataSource& source = sources_[s];
    const RowFormat& f = source.format;
    const std::string name = "data set " + std::to_string(s + 1);
    out.emplace_back(name, source.name);
    out.emplace_back(name + ": rows", std::to_string(source.rows));
    if (source.sampled) out.emplace_back(name + ": seed of its rows", std::to_string(source.sample_seed));
    Json format{static_cast<int>(f.kind),
                f.prompt,
                f.query,
                f.response,
                f.history,
                f.messages,
                f.system,
                f.tools,
                f.role_tag,
                f.content_tag,
                f.user_tag,
                f.assistant_tag,
                f.observation_tag,
                f.function_tag,
                f.system_tag,
                f.media,
                f.any_role};
    // Recipes of rows without pairs have no entries for pairs, so cached tokens remain valid.
    if (!f.chosen.empty() || !f.rejected.empty()) format.insert(format.end(), {f.chosen, f.rejected});
    if (f.is_judged()) format.push_back("judgement " + f.judgement);
    out.emplace_back(name + ": columns", format.dump());
    for (std::size_t i = 0; i < source.files.size(); ++i) {
      const std::string path = std::filesystem::absolute(source.files[i]->path()).lexically_normal().string();
      out.emplace_back(name + ": file " + std::to_string(i + 1), path + ", " + file_state(path));
    }
  }
  return out;
}

std::vector<std::int64_t> RowMix::choose(std::int64_t count, std::uint64_t seed) const {
  std::vector<std::int64_t> places;
  std::set<RowKey> known;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto place = static_cast<std::int64_t>(
        permute(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(rows_), seed, 0xE7A1u));
    const Place row = at(place);
    if (known.emplace(row.file, row.row).second) places.push_back(place);
  }
  std::ranges::sort(places);
  return places;
}

RowMix::Place RowMix::at(std::int64_t place) const {
  check(place >= 0 && place < rows_, "a row lies inside its data sets");
  std::int64_t row = order_.empty() ? place : order_[static_cast<std::size_t>(place)];
  const auto s = static_cast<std::size_t>(std::ranges::upper_bound(begins_, row) - begins_.begin() - 1);
  const DataSource& source = sources_[s];
  row -= begins_[s];
  row = source.row_at(row);
  for (const auto& file : source.files) {
    if (row < file->size()) return {&source, file.get(), row};
    row -= file->size();
  }
  throw Error("a row is outside its data set");
}

}  // namespace octet::data
