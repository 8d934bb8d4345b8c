/* Compiled twice, for processors with and without 256-bit vectors; the loader picks. */
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define VECTOR __attribute__((target_clones("avx2", "default")))
#else
#define VECTOR
#endif
