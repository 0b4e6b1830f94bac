// Scores and values by vectors of bfloat16 pairs, without tiles.
#pragma once
#include "../linear/pairs.h"
#include "desk.h"

namespace octavo {

#if OCTAVO_PAIRS && !OCTAVO_TILES

// COUNT rows against two blocks' keys, to columns 0 .. 31 at `out`.
template <int COUNT>
static __attribute__((noinline)) void pair_scores(const bf16* q, const bf16* left, const bf16* right, int64_t dim, float* out) {
  Floats sums[COUNT][2] = {};
  const bf16* const keys[] = {left, right};
  add_pairs(sums, q, dim, keys, 2 * PLACES, dim, [] {});
#pragma GCC unroll 16
  for (int r = 0; r < COUNT; r++) {
    store(out + r * PITCH, sums[r][0]);
    store(out + r * PITCH + PLACES, sums[r][1]);
  }
}

constexpr int LINES = 16;  // of 32 dimensions of a block's keys, or of its values: what is asked for while others are worked on

// Dimensions d .. d + 31 of COUNT rows' weights times the span's values.
template <int COUNT>
static __attribute__((noinline)) void pair_values(const bf16* weights, const Span<bf16>& span, Feed<bf16>& feed, int64_t d, int64_t dim, float* out) {
  Floats sums[COUNT][2] = {};
  for (int i = span.first; i < span.last; i++) {
    const bf16* const values = span.block(i).values + 2 * d;
    const bf16* const halves[] = {values, values + 2 * LANES};
    feed.lines(LINES);
    add_pairs(sums, weights + (i - span.first) * PLACES, Desk<bf16>::STRIDE, halves, 2 * dim, PLACES, [] {});
  }
#pragma GCC unroll 16
  for (int r = 0; r < COUNT; r++) {
    store(out + r * dim, sums[r][0]);
    store(out + r * dim + LANES, sums[r][1]);
  }
}

OCTAVO_INLINE void all_scores(const Desk<bf16>& desk, const Span<bf16>& span, Feed<bf16>& feed, int rows, int64_t dim) {
  for (int i = span.first; i < span.last; i += 2) {
    const bf16* left = span.block(i).keys;
    const bf16* right = i + 1 < span.last ? span.block(i + 1).keys : left;  // nobody looks at what comes of the latter
    float* out = desk.scores + (i - span.first) * PLACES;
    feed.lines((int)dim);
    in_parts<TALL_PAIRS>(rows, [&](int64_t row, int64_t height) {
      with_count<TALL_PAIRS>(height, [&](auto count) { pair_scores<count>(desk.q + row * dim, left, right, dim, out + row * PITCH); });
    });
  }
}

OCTAVO_INLINE void all_values(const Desk<bf16>& desk, const Span<bf16>& span, Feed<bf16>& feed, int rows, int64_t dim, float* out) {
  for (int64_t d = 0; d < dim; d += 2 * LANES)
    in_parts<TALL_PAIRS>(rows, [&](int64_t row, int64_t height) {
      with_count<TALL_PAIRS>(height, [&](auto count) { pair_values<count>(desk.weights((int)row), span, feed, d, dim, out + row * dim + d); });
    });
}

#endif

}  // namespace octavo
