// Calls the device side of an op. src/ops/<op>.cc declares
//   namespace cpu { void op(const OpArgs&); }              // runs immediately; arrays are allocated
//   namespace cuda { void op(Stream&, const OpArgs&); }    // enqueues
// checks the arguments and ends with OCTET_DISPATCH(stream, op, args). The dry device does nothing. `args` is
// copied, including pointers, because on the CPU the work may run later.
#pragma once

#include <string>

#include "octet/base/error.h"
#include "octet/device/cpu.h"
#include "octet/device/device.h"
#include "octet/device/profile.h"

namespace octet::ops {

[[noreturn]] inline void throw_no_cuda(const char* op) {
  throw Error(Problem{.what = std::string("this build has no CUDA code for ") + op,
                      .expected = "a build with OCTET_CUDA=ON and a CUDA toolkit",
                      .found = "a build for the CPU",
                      .fix = "rebuild with CUDA, or set device: cpu"});
}

}  // namespace octet::ops

#ifdef OCTET_HAVE_CUDA
#define OCTET_CUDA_SIDE(stream, op, args) cuda::op(stream, args)
#else
#define OCTET_CUDA_SIDE(stream, op, args) ::octet::ops::throw_no_cuda(#op)
#endif

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
        OCTET_CUDA_SIDE((stream), op, (args));                                             \
        break;                                                                             \
      case ::octet::DeviceKind::dry:                                                       \
        break;                                                                             \
    }                                                                                      \
  } while (false)
