// Attributes for loops over elements: one compiles a function for several x86-64 levels, of which the best
// that the processor has is chosen when the program starts; the other makes a helper part of each.
#pragma once

// A product and a sum are never contracted, so the bits are the same at every level. Level 2 has no FMA and
// would only repeat the default. Sanitizers cannot run the resolvers.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(OCTET_SANITIZED) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define OCTET_SIMD __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define OCTET_SIMD
#endif
#define OCTET_INLINE inline __attribute__((always_inline))
