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

// Each lane of `sums` and its two products, rounded to nearest; denormals count as zero. Whether it is rounded between the two is the
// processor's own affair (see rounding).
OCTAVO_INLINE Floats add_products(Floats sums, Words a, Words b) {
  return (Floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)a, (__m512bh)b);
}

// Sums of numbers of all sizes, as this processor rounds them: their bits, folded together.
inline uint64_t rounding() {
  uint64_t state = 1, folded = 0;
  Floats sums{};
  for (int step = 0; step < 256; step++) {
    alignas(64) bf16 a[2 * LANES], b[2 * LANES];
    for (int i = 0; i < 2 * LANES; i++) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      // Any sign and mantissa; exponents 120 to 135, and now and then that of denormals.
      const auto number = [](uint32_t bits) { return uint16_t((bits & 0x807f) | (bits & 0xf00000 ? (120 + (bits >> 8 & 15)) << 7 : 0)); };
      a[i].bits = number(uint32_t(state >> 40));
      b[i].bits = number(uint32_t(state >> 16));
    }
    sums = add_products(sums, pairs_at(a), pairs_at(b));
    const Words bits = as_words(sums);
    for (int i = 0; i < LANES; i++) folded = (folded ^ bits[i]) * 1099511628211u;
  }
  return folded;
}

#else

inline uint64_t rounding() { return 0; }

#endif

}  // namespace octavo
