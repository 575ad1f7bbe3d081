#include "tokenise.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "octet/base/files.h"
#include "octet/base/log.h"
#include "octet/data/token_cache.h"
#include "octet/feed/corpus.h"
#include "octet/feed/gather.h"
#include "octet/setup/setup.h"

namespace octet::feed {
namespace {

void require_usable(runtime::Session& session, const config::DataKeys& config, const data::Encoded& set) {
  session.job().together([&] {
    if (setup::refuses_long_rows(config) && set.counts.truncated > 0)
      throw data::truncated_rows(set.counts, config.cutoff_len);
    if (set.counts.broken > config.max_broken_rows)
      throw data::too_many_broken(set.counts, config.max_broken_rows);
  });
}

// Returns the tokens in tokenized_path if all ranks find them; logs the reason otherwise.
std::optional<data::Encoded> load_tokens(runtime::Session& session, const config::DatasetKeys& config,
                                         const data::Recipe& recipe, const std::string& what) {
  const data::TokenCache cache(*config.tokenized_path);
  bool damaged = false;
  std::optional<data::Encoded> found;
  if (!config.overwrite_cache) found = cache.load(recipe, &damaged);
  // If one rank does not find the tokens, no rank uses them.
  if (session.job().all_max(found ? 0 : 1) == 0) {
    if (session.prints()) log::debug(what + ": tokens taken from " + cache.path(recipe));
    return found;
  }
  if (session.prints() && damaged) {
    log::warn(what + ": " + cache.path(recipe) + " is damaged; the data are tokenised again",
              log::Importance::setting);
  } else if (session.prints() && !config.overwrite_cache) {
    const auto differences = cache.nearest_differences(recipe);
    if (!differences.empty()) {
      std::string text =
          what + ": tokenized_path holds tokens of other data or settings; the data are tokenised again";
      for (std::size_t i = 0; i < std::min<std::size_t>(5, differences.size()); ++i)
        text += "\n  " + differences[i];
      if (differences.size() > 5) text += "\n  and " + std::to_string(differences.size() - 5) + " more";
      log::info(text);
    }
  }
  return std::nullopt;
}

// Writes the tokens once per file system: if ranks of another node do not see the file, one of them writes
// it, too.
void store_tokens(runtime::Session& session, const config::DatasetKeys& config, const data::Recipe& recipe,
                  const data::Encoded& set, const std::string& what) {
  const data::TokenCache cache(*config.tokenized_path);
  session.job().together([&] {
    if (!session.prints()) return;
    cache.store(recipe, set);
    log::debug(what + ": tokens kept in " + cache.path(recipe));
  });
  session.job().together([&] {
    if (session.place().local_rank == 0 && !path_exists(cache.path(recipe))) cache.store(recipe, set);
  });
}

}  // namespace

data::Encoded encode_together(runtime::Session& session, const config::DataKeys& config, const Rows& which,
                              const data::Encoder& encoder) {
  const std::int64_t rows = which.size();
  const comm::Place& place = session.place();
  data::Encoded own;
  session.job().together([&] {
    data::EncodeShare share;
    share.first_row = rows * place.rank / place.size;
    share.last_row = rows * (place.rank + 1) / place.size;
    share.threads = setup::tokenising_threads(config);
    share.max_broken = config.max_broken_rows;
    share.name_truncated = setup::refuses_long_rows(config);
    share.places = which.places;
    own = data::encode_rows(which.mix, encoder, share);
  });
  data::Encoded all = gather_parts(session.job(), std::move(own));
  require_usable(session, config, all);
  return all;
}

data::Encoded tokens_of(runtime::Session& session, const config::DataKeys& config, const data::RowMix& mix,
                        const data::Encoder& encoder, const std::string& what) {
  std::optional<data::Encoded> all;
  data::Recipe recipe;
  if (config.tokenized_path) {
    session.job().together([&] {
      recipe = encoder.recipe();
      for (auto& part : mix.recipe()) recipe.push_back(std::move(part));
    });
    all = load_tokens(session, config, recipe, what);
  }
  const bool made = !all;
  if (made) all = encode_together(session, config, {mix}, encoder);
  if (!made) require_usable(session, config, *all);
  if (made && config.tokenized_path) store_tokens(session, config, recipe, *all, what);
  if (session.prints()) report_counts(*all, what);
  return std::move(*all);
}

}  // namespace octet::feed
