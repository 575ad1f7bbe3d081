// Facts that ranks exchange about their hosts before they choose devices (octet/comm/serialize.h).
#pragma once

#include <boost/serialization/string.hpp>
#include <boost/serialization/vector.hpp>

#include "octet/device/gpu_choice.h"

namespace octet::runtime {

struct RankFacts {
  bool refuses = false;  ///< the rank cannot continue in any case
  RankGpus gpus;         ///< except the node number, which every rank knows already
  template <typename Archive>
  void serialize(Archive& archive, unsigned) {
    archive& refuses& gpus;
  }
};

}  // namespace octet::runtime

namespace boost::serialization {

template <typename Archive>
void serialize(Archive& archive, octet::GpuInfo& gpu, unsigned) {
  archive& gpu.ordinal& gpu.name& gpu.uuid& gpu.bus& gpu.numa_node& gpu.capability& gpu.memory& gpu.why_not;
}

template <typename Archive>
void serialize(Archive& archive, octet::RankGpus& rank, unsigned) {
  archive& rank.host& rank.device& rank.shares& rank.driver& rank.gpus& rank.why_not;
}

}  // namespace boost::serialization
