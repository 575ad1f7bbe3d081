// Calls the device side of an op. src/ops/<op>.cc declares
//   namespace cpu { void op(const OpArgs&); }              // runs immediately; arrays are allocated
//   namespace cuda { void op(Stream&, const OpArgs&); }    // enqueues
// checks the arguments and ends with OCTET_DISPATCH(stream, op, args). The dry device does nothing. `args` is
// copied, including pointers, because on the CPU the work may run later. In builds without CUDA, no_cuda.cc
// replaces the CUDA side.
#pragma once

#include "octet/base/error.h"
#include "octet/device/cpu.h"
#include "octet/device/device.h"
#include "octet/device/profile.h"

#define OCTET_DISPATCH(stream, op, args) OCTET_DISPATCH_AS(stream, op, args, #op)

// Like OCTET_DISPATCH, with a different name in profiles.
#define OCTET_DISPATCH_AS(stream, op, args, name)                                          \
  do {                                                                                     \
    const ::octet::ProfileSection profile_section((stream), (name));                       \
    switch ((stream).device().kind()) {                                                    \
      case ::octet::DeviceKind::cpu:                                                       \
        ::octet::cpu::enqueue((stream), [copied_args = (args)] { cpu::op(copied_args); }); \
        break;                                                                             \
      case ::octet::DeviceKind::cuda:                                                      \
        cuda::op((stream), (args));                                                        \
        break;                                                                             \
      case ::octet::DeviceKind::dry:                                                       \
        break;                                                                             \
    }                                                                                      \
  } while (false)
