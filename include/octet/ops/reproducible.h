// Some kernels give different bits in every run. The stream decides whether such kernels run on it
// (Stream::reproducible), so two streams of a process may differ.
//
// Attention backward on a GPU adds the gradients of queries in the order in which blocks finish. On a
// reproducible stream, cuDNN sums them in a fixed order, in portions of a micro-batch. If a document is too
// long for the workspace, much slower kernels of this project run instead.
//
// GEMMs on a GPU choose among the algorithms of the library by timing. Each shape is timed once, when a GEMM
// is enqueued outside of graph capture. Choices are stored in the user's cache for later runs. Numbers of
// tokens up to the same power of two share a choice, until a number has occurred very often in a row. A
// reproducible stream uses the first choice of the library for the exact shape.
//
// The CPU's kernels give the same bits in every run on any stream.
#pragma once

#include "octet/device/device.h"

namespace octet::ops {

/// True if kernels on this device give the same bits in every run by default. This holds for the CPU, but not
/// for the fastest kernels of a GPU.
bool reproducible_by_default(const Device& device);

}  // namespace octet::ops
