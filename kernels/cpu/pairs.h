// Products of pairs of bfloat16 values, two a lane, where the machine has an instruction for them (VDPBF16PS, or matrix tiles).
#pragma once
#include "amx.h"

#if OCTAVO_TILES || defined(__AVX512BF16__)
#define OCTAVO_PAIRS 1
#else
#define OCTAVO_PAIRS 0
#endif

namespace octavo {

#if OCTAVO_PAIRS

OCTAVO_INLINE Words pairs_at(const bf16* p) { Words w; memcpy(&w, p, sizeof w); return w; }
// The eight pairs at p, zeros after them.
OCTAVO_INLINE Words few_pairs_at(const bf16* p) { return (Words)_mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i*)p)); }
// The pair at p in all lanes.
OCTAVO_INLINE Words same_pair(const bf16* p) {
  int32_t pair;
  memcpy(&pair, p, sizeof pair);
  return (Words)_mm512_set1_epi32(pair);
}

// Each lane of `sums` and its two products, one added after the other, each time rounded to nearest; denormals count as zero.
OCTAVO_INLINE Floats add_products(Floats sums, Words a, Words b) {
  return (Floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)a, (__m512bh)b);
}

#endif

}  // namespace octavo
