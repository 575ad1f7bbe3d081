// Which vectors this processor has, for kernels that are compiled for several levels of x86-64.
#pragma once

namespace octet::ops::cpu {

#if defined(__x86_64__)
/// Whether the processor has what level 3, or 4, has and no processor has without the rest of that level.
bool has_v3();
bool has_v4();
#endif

}  // namespace octet::ops::cpu
