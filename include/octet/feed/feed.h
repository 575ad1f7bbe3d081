// The feed room: the data of a run on its ranks. The ranks tokenise the rows together, and then each has all
// tokens. From seed and step alone, a rank computes its samples and prepares its micro-batches ahead of the
// step. The room does not depend on the model. This file: the micro-batches of a run, from a set in memory or
// from a stream that is tokenised during training. All ranks make the same calls.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>

#include "octet/base/error.h"
#include "octet/base/json_fwd.h"
#include "octet/config/derive.h"
#include "octet/config/keys.h"
#include "octet/feed/corpus.h"
#include "octet/feed/loader.h"
#include "octet/feed/sample_order.h"
#include "octet/runtime/session.h"

namespace octet::feed {

/// Thrown on all ranks before a step if its data cannot be read. The training state
/// is then the state after the previous step.
class DataError : public Error {
 public:
  using Error::Error;
};

class Feed {
 public:
  /// Upper limits of a micro-batch.
  struct Shape {
    std::int64_t tokens = 0;
    std::int64_t longest = 0;  ///< tokens that attend to each other
    std::int64_t documents = 1;
  };
  /// A step over all ranks.
  struct Step {
    std::int64_t samples = 0;
    std::int64_t tokens = 0;
    double epoch = 0;  ///< passes over the data, up to this step
    bool ends_epoch = false;
  };

  virtual ~Feed() = default;
  virtual Shape shape() const = 0;
  virtual std::int64_t examples() const = 0;
  /// Returns the number of items in an epoch; nullopt if it is unknown before the end of the epoch.
  virtual std::optional<std::int64_t> items_of_epoch() const = 0;
  /// Returns the number of steps in an epoch; 0 if it is unknown before the end of the epoch.
  virtual std::int64_t steps_per_epoch() const = 0;
  /// Returns the number of epochs in `steps` steps, which may be an estimate.
  virtual double epochs(std::int64_t steps) const = 0;
  /// Returns the mean context length over all tokens. The work of attention is proportional to it.
  virtual double mean_context() const = 0;
  /// Returns documents that the run shows to the user.
  virtual const data::Encoded& shown() const = 0;
  /// Returns a hash of the data and their order, to recognise them on resume.
  virtual std::string fingerprint() const = 0;

  /// Before start(): moves to the position of a checkpoint, `steps` steps after the start of the run. `state`
  /// is the state of the checkpoint, with the result of position() as "place". `where` names the checkpoint.
  /// The place counts samples, so later steps may have another batch size. Throws Error if the place does not
  /// exist in these data.
  virtual void go_on(std::int64_t steps, const Json& state, const std::string& where) = 0;
  /// Returns the step after which this run has trained as many samples as a fresh run of `steps` steps.
  virtual std::int64_t steps_until_end_of(std::int64_t steps) const = 0;
  /// Starts to prepare micro-batches.
  virtual void start(const Deal& deal) = 0;
  /// Returns the next micro-batch of this rank. Adds the seconds of waiting to *waited. `first_of_step`: the
  /// first micro-batch of a step; if one rank has an Error, all ranks throw.
  virtual runtime::HostBatch next(bool first_of_step, double* waited) = 0;
  /// Returns true if a later next() will throw on this rank only.
  virtual bool failed() const = 0;
  /// Throws DataError on all ranks if failed() is true on one of them.
  virtual void require_data() = 0;
  /// Returns the step of the latest micro-batches from next(). Before that, an empty step at the place of
  /// go_on().
  virtual Step step() const = 0;
  /// The place after the step of the latest micro-batches from next(), for go_on().
  virtual Json position() const = 0;
  /// Logs counts of all rows that were read, if the start could not know them.
  virtual void report_end() const {}
};

/// The largest number of tokens that attend to each other: of a document, or of a sequence with shared
/// context.
inline std::int64_t longest_context(const data::Encoded& set, const data::Items& items) {
  const std::int64_t own = items.shared_context ? items.longest(set) : set.longest();
  return set.mismatched ? std::max(own, set.mismatched->longest()) : own;
}

/// The tokens of the longest item, also with mismatched answers.
inline std::int64_t most_tokens(const data::Encoded& set, const data::Items& items) {
  const std::int64_t own = items.longest(set);
  return set.mismatched ? std::max(own, items.longest(*set.mismatched)) : own;
}

/// The mean over all tokens of the length of their context: a document, or a sequence with shared context. 0
/// without tokens.
inline double mean_context(const data::Encoded& set, const data::Items& items) {
  double tokens = 0, squares = 0;
  for (std::int64_t i = 0; i < items.size(); ++i) {
    if (items.shared_context) {
      const auto length = static_cast<double>(items.tokens(set, i));
      tokens += length, squares += length * length;
      continue;
    }
    for (std::int64_t j = items.begins[static_cast<std::size_t>(i)];
         j < items.begins[static_cast<std::size_t>(i) + 1]; ++j) {
      const auto length = static_cast<double>(set.length(items.documents[static_cast<std::size_t>(j)]));
      tokens += length, squares += length * length;
    }
  }
  return tokens > 0 ? squares / tokens : 0;
}

/// The feed of a corpus. `corpus` must outlive it. `strict`: the samples of a step do not depend on the
/// number of ranks (setup::is_strict).
std::unique_ptr<Feed> make_feed(runtime::Session& session, const config::DataKeys& config, bool strict,
                                const config::Batch& batch, const data::Encoder& encoder,
                                const Corpus& corpus);

}  // namespace octet::feed
