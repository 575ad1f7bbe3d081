// Kernels that may give other bits in every run, and those that do not. Which of them run is said by the
// stream on which they are enqueued (Stream::reproducible), so that two of one process may differ.
//
// Attention's backward pass on a GPU adds the gradients of queries in the order in which blocks finish. On a
// reproducible stream cuDNN sums them in a fixed order, in portions of a micro-batch, and much slower kernels
// of our own serve those with a document too long for the workspace.
//
// Products on a GPU choose among the library's algorithms by timing them, once per shape, when enqueued
// outside a graph's capture. Choices are kept for later runs in the user's cache; numbers of tokens up to the
// same power of two share one, until a number has come very often in a row. On a reproducible stream it is
// the library's first choice for the exact shape.
//
// The CPU's kernels give the same bits in every run on any stream.
#pragma once

#include "octet/device/device.h"

namespace octet::ops {

/// Whether kernels on this device give the same bits in every run without being told to: the CPU's do, a
/// GPU's fastest do not.
bool reproducible_by_default(const Device& device);

}  // namespace octet::ops
