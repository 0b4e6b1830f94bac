// Scores and values by matrix tiles.
#pragma once
#include "desk.h"

namespace octavo {

#if OCTAVO_TILES

// Scores of 16 or 32 rows against the span's keys, two blocks at a time, to columns 0 .. of `scores`.
template <int TALL>
OCTAVO_INLINE void tile_scores(const Desk<bf16>& desk, const Span<bf16>& span, Feed<bf16>& feed, int64_t dim) {
  stored();
  for (int i = span.first; i < span.last; i += 2) {
    const bf16* left = span.block(i).keys;
    const bf16* right = i + 1 < span.last ? span.block(i + 1).keys : left;  // nobody looks at what comes of the latter
    feed.step();
    feed.step();
    _tile_zero(0);
    _tile_zero(1);
    if (TALL == 2) {
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int64_t d = 0; d < dim; d += 32) {
      _tile_loadd(6, left + d * PLACES, 64);
      _tile_loadd(4, desk.q + d, dim * sizeof(bf16));
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, right + d * PLACES, 64);
      _tile_dpbf16ps(1, 4, 7);
      if (TALL == 2) {
        _tile_loadd(5, desk.q + 16 * dim + d, dim * sizeof(bf16));
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    float* out = desk.scores + (i - span.first) * PLACES;
    _tile_stored(0, out, PITCH * sizeof(float));
    _tile_stored(1, out + PLACES, PITCH * sizeof(float));
    if (TALL == 2) {
      _tile_stored(2, out + 16 * PITCH, PITCH * sizeof(float));
      _tile_stored(3, out + 16 * PITCH + PLACES, PITCH * sizeof(float));
    }
  }
  stored();
}

// Values of dimensions d .. d + 31 of two blocks, side by side as one tile takes them: [16][32][2]. Where there is no second, zeros.
OCTAVO_INLINE void gather_values(const Span<bf16>& span, int i, int64_t dim, int64_t d, bf16* to) {
  for (int half = 0; half < 2; half++) {
    const bool is = i + half < span.last;
    const bf16* from = is ? span.block(i + half).values + 2 * d : nullptr;
    for (int pair = 0; pair < PLACES / 2; pair++, to += 64) {
      __m512i left = _mm512_setzero_si512(), right = left;
      if (is) {
        left = _mm512_loadu_si512(from + pair * dim * 2);
        right = _mm512_loadu_si512(from + pair * dim * 2 + 32);
      }
      _mm512_store_si512(to, left);
      _mm512_store_si512(to + 32, right);
    }
  }
}

// `out` = weights times values, 32 dimensions and two blocks at a time.
template <int TALL>
OCTAVO_INLINE void tile_values(const Desk<bf16>& desk, const Span<bf16>& span, int64_t dim, float* out) {
  constexpr int64_t STEP = 2 * PLACES * 32, BYTES = PITCH * sizeof(float);
  for (int64_t d = 0; d < dim; d += 32) {
    gather_values(span, span.first, dim, d, desk.values);
    stored();
    _tile_zero(0);
    _tile_zero(1);
    if (TALL == 2) {
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int i = span.first, turn = 0; i < span.last; i += 2, turn++) {
      const bf16 *values = desk.values + turn % 4 * STEP, *weights = desk.weights(0) + (i - span.first) * PLACES;
      if (i + 2 < span.last) gather_values(span, i + 2, dim, d, desk.values + (turn + 1) % 4 * STEP);
      stored();
      _tile_loadd(4, weights, BYTES);
      _tile_loadd(6, values, 128);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, values + 32, 128);
      _tile_dpbf16ps(1, 4, 7);
      if (TALL == 2) {
        _tile_loadd(5, weights + 16 * Desk<bf16>::STRIDE, BYTES);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, out + d, dim * sizeof(float));
    _tile_stored(1, out + d + 16, dim * sizeof(float));
    if (TALL == 2) {
      _tile_stored(2, out + 16 * dim + d, dim * sizeof(float));
      _tile_stored(3, out + 16 * dim + d + 16, dim * sizeof(float));
    }
  }
  stored();
}

OCTAVO_INLINE void all_scores(const Desk<bf16>& desk, const Span<bf16>& span, Feed<bf16>& feed, int rows, int64_t dim) {
  if (rows > 16) tile_scores<2>(desk, span, feed, dim);
  else tile_scores<1>(desk, span, feed, dim);
}

// `out` has room for 16 or 32 rows.
OCTAVO_INLINE void all_values(const Desk<bf16>& desk, const Span<bf16>& span, Feed<bf16>&, int rows, int64_t dim, float* out) {
  if (rows > 16) tile_values<2>(desk, span, dim, out);
  else tile_values<1>(desk, span, dim, out);
}

#endif

}  // namespace octavo
