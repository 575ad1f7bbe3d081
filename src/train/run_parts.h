// The parts that a run trains: the model, the data, the schedule and the engine.
#pragma once

#include <memory>
#include <optional>

#include "octet/base/json.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/config/derive.h"
#include "octet/data/template_encoder.h"
#include "octet/feed/corpus.h"
#include "octet/feed/feed.h"
#include "octet/feed/routing_file.h"
#include "octet/memory_tier/memory_tier.h"
#include "octet/model/architecture.h"
#include "octet/optim/schedule.h"
#include "octet/report/reporter.h"
#include "octet/train/engine.h"

namespace octet::train {

/// Later parts use earlier parts, and are destroyed first.
struct RunParts {
  model::Architecture architecture;
  Json adapters;       ///< adapter_state()
  Json model_config;   ///< runtime::config_state()
  bool fresh = false;  ///< the run begins with random weights
  std::unique_ptr<data::TemplateEncoder> encoder;
  config::Batch batch;
  feed::Corpus corpus;
  std::unique_ptr<feed::Feed> feed;
  std::unique_ptr<feed::RoutingFile> routing;  ///< with moe_routing_file
  std::unique_ptr<optim::Schedule> schedule;
  std::optional<checkpoint::Checkpoint> checkpoint;  ///< the run resumes from it
  std::unique_ptr<Engine> engine;
  std::unique_ptr<memory_tier::MemoryTier> memory;  ///< if checkpoints are kept in memory
  std::unique_ptr<report::Reporter> reporter;       ///< on the printing rank
};

/// Returns the next micro-batch, with the experts of its tokens if they are given (Feed::next).
inline runtime::HostBatch next_batch(RunParts& parts, bool first_of_step, double* waited) {
  runtime::HostBatch batch = parts.feed->next(first_of_step, waited);
  if (parts.routing) parts.routing->add_to(batch);
  return batch;
}

}  // namespace octet::train
