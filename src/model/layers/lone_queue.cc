#include "layers/lone_queue.h"

namespace octet::model {

void LoneQueue::add(Stream& stream, const ops::LoneGemmArgs& args) {
  gemms_.push_back(args);
  if (gemms_.size() == ops::kLoneChain || stream.profile() != nullptr) settle(stream);
}

void LoneQueue::settle(Stream& stream) {
  if (ops::has_lone_chain(stream.device(), gemms_)) {
    ops::lone_chain(stream, gemms_);
  } else {
    for (const ops::LoneGemmArgs& args : gemms_) ops::lone_gemm(stream, args);
  }
  gemms_.clear();
}

}  // namespace octet::model
