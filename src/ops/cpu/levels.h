// The vector level of this processor, for kernels that are compiled for several levels of x86-64.
#pragma once

namespace octet::ops::cpu {

#if defined(__x86_64__)
/// Returns whether the processor has level 3, or 4. Tests only extensions that no processor has without the
/// rest of that level.
bool has_v3();
bool has_v4();
#endif

}  // namespace octet::ops::cpu
