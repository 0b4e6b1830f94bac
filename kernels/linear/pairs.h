// Sums of products of bfloat16 pairs without tiles: a row's pair at a time, times vectors of pairs that some rows share.
#pragma once
#include "form.h"

namespace octavo {

#if OCTAVO_PAIRS

// sums += `k` (a multiple of 8) inputs of ROWS rows at `a`, times the vectors at w[0] .. w[N - 1]; the next pair's vectors lie `step` further.
// One sum an output, one step a pair: the order of sums is that of the inputs, for any number of rows. `each` is called every 8 inputs.
template <int ROWS, int N, class Each>
OCTAVO_INLINE void add_pairs(Floats (&sums)[ROWS][N], const bf16* a, int64_t stride, const bf16* const (&w)[N], int64_t step, int64_t k,
                             const Each& each) {
  const bf16* at[N];
  for (int n = 0; n < N; n++) at[n] = w[n];
  for (int64_t i = 0; i < k; i += 8) {
    each();
#pragma GCC unroll 4
    for (int64_t j = i; j < i + 8; j += 2) {
      Words right[N];
#pragma GCC unroll 4
      for (int n = 0; n < N; n++) right[n] = pairs_at(at[n]), at[n] += step;
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; r++) {
        const Words left = same_pair(a + r * stride + j);
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) sums[r][n] = add_products(sums[r][n], left, right[n]);
      }
    }
  }
}

template <int ROWS>
static __attribute__((noinline)) void pair_lanes(const bf16* a, int64_t stride, const bf16* w, int64_t k, float* c, Ahead& ahead) {
  Floats sums[ROWS][2] = {};
  Ahead own = ahead;
  const bf16* const halves[] = {w, w + WIDTH};
  add_pairs(sums, a, stride, halves, 2 * WIDTH, k, [&] { own.step(); });
  ahead = own;
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; r++) {
    store(c + r * WIDTH, sums[r][0]);
    store(c + r * WIDTH + LANES, sums[r][1]);
  }
}

// c [rows, 32] = up to TALL_PAIRS rows times a block.
OCTAVO_INLINE void lane_product(const bf16* a, int64_t stride, int64_t rows, const bf16* w, int64_t k, float* c, Ahead& ahead) {
  with_count<TALL_PAIRS>(rows, [&](auto count) { pair_lanes<count>(a, stride, w, k, c, ahead); });
}

#endif

}  // namespace octavo
