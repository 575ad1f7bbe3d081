// What a run trains, micro-batch by micro-batch: a set that lies in memory, or a stream that is tokenised on
// the way. All ranks call its functions alike.
#pragma once

#include <cstdint>
#include <memory>

#include "octet/base/json.h"
#include "octet/config/config.h"
#include "octet/config/derive.h"
#include "octet/data/loader.h"
#include "octet/data/schedule.h"
#include "octet/train/corpus.h"
#include "octet/train/session.h"

namespace octet::train {

class Feed {
 public:
  /// The most that a micro-batch holds.
  struct Shape {
    std::int64_t tokens = 0;
    std::int64_t longest = 0;  ///< tokens that see each other
    std::int64_t documents = 1;
  };
  /// A step over all ranks.
  struct Step {
    std::int64_t samples = 0;
    std::int64_t tokens = 0;
    double epoch = 0;  ///< passes over the data behind it
    bool ends_epoch = false;
  };

  virtual ~Feed() = default;
  virtual Shape shape() const = 0;
  virtual std::int64_t examples() const = 0;
  /// Steps of an epoch; 0 where only its end tells.
  virtual std::int64_t steps_per_epoch() const = 0;
  /// Passes over the data that so many steps are, perhaps estimated.
  virtual double epochs(std::int64_t steps) const = 0;
  /// Tokens of a document on average.
  virtual double mean_length() const = 0;
  /// Documents to show.
  virtual const data::Encoded& shown() const = 0;
  /// Names the data and their order, to recognise them when a run goes on.
  virtual std::string fingerprint() const = 0;

  /// Goes to where `steps` steps are behind; `position` is what position() gave there. Throws Error when that
  /// does not tell the place.
  virtual void start(const data::Deal& deal, std::int64_t steps, const Json& position) = 0;
  /// The next micro-batch of this rank; `waited` is raised by the seconds that had to be waited.
  /// `first_of_step`: the first of a step, where all ranks throw when one met an Error.
  virtual data::HostBatch next(bool first_of_step, double* waited) = 0;
  /// The step of which next() gave micro-batches last; before that, the place of start() with nothing in it.
  virtual Step step() const = 0;
  /// For start(): null where the number of steps says it all.
  virtual Json position() const = 0;
};

/// The most tokens that see each other: of a document, or of a sequence whose documents share their context.
inline std::int64_t longest_context(const data::Encoded& set, const data::Items& items) {
  return items.shared_context ? items.longest(set) : set.longest();
}

/// The feed of a corpus. `corpus` must outlive it.
std::unique_ptr<Feed> make_feed(Session& session, const config::Config& config, const config::Batch& batch,
                                const data::Encoder& encoder, const Corpus& corpus);

}  // namespace octet::train
