#pragma once

/// KVTIER_CLONES before a function: the compiler makes a version for each instruction set and the
/// program picks one at its start. Sanitizers run before that choice can be made.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define KVTIER_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define KVTIER_CLONES
#endif
#define KVTIER_INLINE inline __attribute__((always_inline))
