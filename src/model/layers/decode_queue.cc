#include "layers/decode_queue.h"

namespace octet::model {

void DecodeQueue::add(Stream& stream, const ops::DecodeGemmArgs& args) {
  gemms_.push_back(args);
  if (gemms_.size() == ops::kDecodeChain || stream.profile() != nullptr) settle(stream);
}

void DecodeQueue::settle(Stream& stream) {
  if (ops::has_decode_chain(stream.device(), gemms_)) {
    ops::decode_chain(stream, gemms_);
  } else {
    for (const ops::DecodeGemmArgs& args : gemms_) ops::decode_gemm(stream, args);
  }
  gemms_.clear();
}

}  // namespace octet::model
