#include "octet/feed/trained_rows.h"

#include <algorithm>
#include <set>
#include <vector>

#include "held_out.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/random.h"
#include "octet/data/held_out.h"
#include "octet/data/mix.h"
#include "octet/setup/data_options.h"

namespace octet::feed {
namespace {

// Returns the rows that val_size holds out: for a stream like prepare_stream(), otherwise like
// data::hold_out().
std::set<data::RowKey> held_out_rows(const data::RowMix& mix, const config::DataKeys& config) {
  std::set<data::RowKey> keys;
  if (config.val_size <= 0) return keys;
  const auto add = [&](std::int64_t place) {
    const data::RowMix::Place at = mix.at(place);
    keys.emplace(at.file, at.row);
  };
  const std::vector<std::int64_t> distinct =
      config.streaming ? std::vector<std::int64_t>() : mix.distinct_rows();
  if (distinct.empty()) {
    std::ranges::for_each(mix.choose(held_out_of(mix.size(), config), config.order_seed()), add);
    return keys;
  }
  const std::int64_t rows = 1 + *std::ranges::max_element(distinct);
  const std::set<std::int64_t> chosen =
      data::held_out_numbers(rows, held_out_of(rows, config), config.order_seed());
  for (std::int64_t place = 0; place < mix.size(); ++place) {
    if (chosen.contains(distinct[static_cast<std::size_t>(place)])) add(place);
  }
  return keys;
}

}  // namespace

bool visit_trained_rows(const config::DataKeys& config, std::int64_t most,
                        const std::function<void(const data::Sample&)>& visit) {
  const data::RowMix mix(data::open_datasets(setup::data_options(config)), setup::mix_options(config));
  const std::set<data::RowKey> held_out = held_out_rows(mix, config);
  for (std::int64_t p = 0; p < std::min(most, mix.size()); ++p) {
    const data::RowMix::Place place = mix.at(p);
    if (held_out.contains({place.file, place.row})) continue;
    std::string why;
    try {
      const auto sample = data::convert_row(place.file->row(place.row), place.source->format, &why);
      if (sample) visit(*sample);
    } catch (const Error& e) {
      if (e.code() == ExitCode::storage) throw;  // the run has left this row out, too
    }
  }
  return most >= mix.size();
}

}  // namespace octet::feed
