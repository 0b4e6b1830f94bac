// One split of one item: scores, their softmax, and the weighted sum of values, for up to 32 rows.
#pragma once
#include "pairs.h"
#include "tiles.h"

namespace octavo {

// Without pairs: positions side by side for scores, dimensions for values; COUNT rows share each load.
template <int COUNT, class T>
OCTAVO_INLINE void lane_scores(const float* q, const T* keys, int64_t dim, float* out) {
  Floats sums[COUNT] = {};
  for (int64_t d = 0; d < dim; d++) {
    const Floats key = load(keys + d * PLACES);
#pragma GCC unroll 16
    for (int r = 0; r < COUNT; r++) sums[r] += q[r * dim + d] * key;
  }
#pragma GCC unroll 16
  for (int r = 0; r < COUNT; r++) store(out + r * PITCH, sums[r]);
}

// Dimensions d .. d + 16 N - 1.
template <int COUNT, int N, class T>
OCTAVO_INLINE void lane_values(const float* weights, const Span<T>& span, int64_t d, int64_t dim, float* out) {
  Floats sums[COUNT][N] = {};
  for (int i = span.first; i < span.last; i++) {
    const T* values = span.block(i).values + d;
    const float* column = weights + (i - span.first) * PLACES;
    for (int place = 0; place < PLACES; place++) {
      Floats value[N];
#pragma GCC unroll 2
      for (int half = 0; half < N; half++) value[half] = load(values + place * dim + half * LANES);
#pragma GCC unroll 16
      for (int r = 0; r < COUNT; r++)
#pragma GCC unroll 2
        for (int half = 0; half < N; half++) sums[r][half] += column[r * PITCH + place] * value[half];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < COUNT; r++)
#pragma GCC unroll 2
    for (int half = 0; half < N; half++) store(out + r * dim + half * LANES, sums[r][half]);
}

constexpr int SHARED = TALL_LANES > 4 ? 4 : TALL_LANES;  // rows that share a load
constexpr int BESIDE = 2 * SHARED <= HELD ? 2 : 1;  // vectors of values that are gone through together

template <class T>
static __attribute__((noinline)) void all_scores(const Desk<T>& desk, const Span<T>& span, Feed<T>& feed, int rows, int64_t dim) {
  for (int i = span.first; i < span.last; i++) {
    const T* keys = span.block(i).keys;
    float* out = desk.scores + (i - span.first) * PLACES;
    feed.step();
    in_parts<SHARED>(rows, [&](int64_t row, int64_t height) {
      with_count<SHARED>(height, [&](auto count) { lane_scores<count>(desk.q + row * dim, keys, dim, out + row * PITCH); });
    });
  }
}

template <class T>
static __attribute__((noinline)) void all_values(const Desk<T>& desk, const Span<T>& span, Feed<T>&, int rows, int64_t dim, float* out) {
  for (int64_t d = 0; d < dim; d += BESIDE * LANES)
    in_parts<SHARED>(rows, [&](int64_t row, int64_t height) {
      with_count<SHARED>(height, [&](auto count) {
        lane_values<count, BESIDE>(desk.scores + row * PITCH, span, d, dim, out + row * dim + d);
      });
    });
}

constexpr int PAIR = 2 * LANES;

// The columns [low, high) that a row sees, of `width`, which is a multiple of 32.
struct Seen {
  int low, high, width;

  Seen(int64_t from, int64_t to, int columns)
      : low((int)std::clamp<int64_t>(from, 0, columns)), high((int)std::clamp<int64_t>(to, low, columns)), width(columns) {}

  // Calls all(first, last), some(i) or none(i) for runs of 32 columns or for 32 of them, as the row sees all of them, some or none.
  template <class All, class Some, class None>
  inline __attribute__((always_inline)) void each(const All& all, const Some& some, const None& none) const {
    int i = 0;
    for (; i + PAIR <= low || (i < width && low == high); i += PAIR) none(i);
    if (i < low) some(i), i += PAIR;
    if (const int last = high / PAIR * PAIR; i < last) all(i, last), i = last;
    if (i < high) some(i), i += PAIR;
    for (; i < width; i += PAIR) none(i);
  }

  Ints mask(int i) const {
    const Ints at = lane_numbers() + i;
    return (at >= Ints{} + low) & (at < Ints{} + high);
  }
};

// 32 weights and how they enter the row's sum: as rounded, since that is what the values are multiplied by.
OCTAVO_INLINE Floats power(Floats t, const float*) { return exp2(t); }
OCTAVO_INLINE void weigh(float* to, Floats left, Floats right, Floats& sums) {
  store(to, left);
  store(to + LANES, right);
  sums += left;
  sums += right;
}
#if OCTAVO_PAIRS
OCTAVO_INLINE Floats power(Floats t, const bf16*) { return exp2_short(t); }
OCTAVO_INLINE void weigh(bf16* to, Floats left, Floats right, Floats& sums) {
  const __m512bh rounded = _mm512_cvtne2ps_pbh((__m512)right, (__m512)left), ones = (__m512bh)_mm512_set1_epi16(0x3f80);
  memcpy(to, &rounded, sizeof rounded);
  sums = (Floats)_mm512_dpbf16_ps((__m512)sums, rounded, ones);
}
#endif

// Caps the scores of one row in place.
static __attribute__((noinline)) void cap(float* scores, int width, float scale, float softcap) {
  for (int i = 0; i < width; i += LANES) store(scores + i, softcap * tanh(load(scores + i) * scale / softcap));
}

constexpr float LOG2_E = 1.44269504088896341f;

// The largest of what the row sees, or LOW.
OCTAVO_INLINE float highest(const float* scores, const Seen& seen) {
  Floats a = splat(LOW), b = a, c = a, d = a;
  const auto masked = [&](int i) { return select(seen.mask(i), load(scores + i), splat(LOW)); };
  seen.each([&](int i, int last) {
              for (; i + 2 * PAIR <= last; i += 2 * PAIR) {
                a = vmax(load(scores + i), a);
                b = vmax(load(scores + i + LANES), b);
                c = vmax(load(scores + i + 2 * LANES), c);
                d = vmax(load(scores + i + 3 * LANES), d);
              }
              for (; i < last; i += LANES) a = vmax(load(scores + i), a);
            },
            [&](int i) {
              a = vmax(masked(i), a);
              b = vmax(masked(i + LANES), b);
            },
            [](int) {});
  return largest(vmax(vmax(a, b), vmax(c, d)));
}

// Scores of one row, by `unit` (> 0) powers of two and less their maximum `most` -> weights (zero where it does not see), in place.
// Returns their sum.
template <class A>
static __attribute__((noinline)) float soften(float* scores, A* weights, const Seen& seen, float unit, float most) {
  const Floats units = splat(unit), shift = splat(most * unit);
  Floats sums{};
  const auto weight = [&](int i) { return power(load(scores + i) * units - shift, weights); };
  const auto masked = [&](int i) { return select(seen.mask(i), weight(i), Floats{}); };
  seen.each([&](int i, int last) {
              for (; i < last; i += PAIR) weigh(weights + i, weight(i), weight(i + LANES), sums);
            },
            [&](int i) { weigh(weights + i, masked(i), masked(i + LANES), sums); },
            [&](int i) {
              store(weights + i, Floats{});
              store(weights + i + LANES, Floats{});
            });
  return sum(sums);
}

}  // namespace octavo
