#include "activation_amaxes.h"

#include "octet/base/error.h"

namespace octet::store {
namespace {

constexpr int kForward = 0, kGradients = 1;

}  // namespace

ActivationAmaxes::ActivationAmaxes(comm::Collectives& collectives, Device& device, const Options& options)
    : collectives_(collectives),
      delayed_(options.recipe.kind == precision::RecipeKind::delayed),
      overlap_(options.overlap),
      raised_(device.make_event()),
      forward_reduced_(device.make_event()),
      gradients_updated_(device.make_event()) {}

void ActivationAmaxes::begin(precision::ScaleSet* scales) {
  scales_ = delayed_ && scales != nullptr && scales->count() > 0 ? scales : nullptr;
  left_ = false;
}

void ActivationAmaxes::reduce(int part, const char* name, Stream& compute) {
  float* const amaxes = scales_->set_aside(compute, part);
  compute.record(*raised_);
  Stream& stream = collectives_.gather_stream();
  stream.wait(*raised_);
  collectives_.all_reduce_max(stream, name, amaxes, scales_->count());
}

void ActivationAmaxes::blocks_done(Stream& compute) {
  check(!left_, "the blocks of a micro-batch are done once");
  left_ = true;
  if (scales_ == nullptr || collectives_.size() == 1) return;
  reduce(kForward, "amaxes of inputs", compute);
  collectives_.gather_stream().record(*forward_reduced_);
  if (!overlap_) compute.wait(*forward_reduced_);
  compute.wait(*gradients_updated_);  // of the previous micro-batch
}

void ActivationAmaxes::end(Stream& compute) {
  if (scales_ == nullptr) return;
  check(left_, "a micro-batch says that its blocks are done");
  if (collectives_.size() == 1) return scales_->update(compute);
  compute.wait(*forward_reduced_);
  scales_->update_from(compute, kForward);
  reduce(kGradients, "amaxes of gradients", compute);
  Stream& stream = collectives_.gather_stream();
  scales_->update_from(stream, kGradients);
  stream.record(*gradients_updated_);
  if (!overlap_) compute.wait(*gradients_updated_);
}

}  // namespace octet::store
