// One split of one item: scores, their softmax, and the weighted sum of values, for up to 32 rows.
#pragma once
#include "../cpu/amx.h"
#include "../kv/cpu.h"

namespace octavo {

constexpr int SPLIT = 512;  // positions that share one maximum; counted from position 0 on, whatever the item
constexpr int SPLIT_BLOCKS = SPLIT / PLACES;
constexpr int ROWS = 32;
constexpr float LOW = -1e30f;  // a maximum of nothing: finite, so that differences stay so

// What a thread needs for a split. `dim` is padded.
template <class T>
struct Desk {
  Act<T>* q;       // [ROWS, dim]
  float* scores;   // [ROWS, SPLIT]
  Act<T>* weights;  // [ROWS, SPLIT]

  static size_t bytes(int64_t dim) { return ROWS * (dim * sizeof(Act<T>) + SPLIT * (sizeof(float) + sizeof(Act<T>))) + 192; }

  static Desk at(char* memory, int64_t dim) {
    Act<T>* q = reinterpret_cast<Act<T>*>(memory);
    float* scores = reinterpret_cast<float*>(q + ROWS * dim);
    return Desk{q, scores, reinterpret_cast<Act<T>*>(scores + ROWS * SPLIT)};
  }
};

// A partial result: `rows` sums of `dim`, then for each row the maximum and the sum of weights.
OCTAVO_INLINE int64_t partial_size(int64_t rows, int64_t dim) { return rows * (dim + 2); }

// The blocks [first, last) of a split, from the sequence's table, for one KV head of one layer.
template <class T>
struct Span {
  const OctavoPool* pool;
  int64_t layer, head;
  const int64_t* table;
  int first, last;

  Block<T> block(int i) const { return Block<T>::at(*pool, layer, table[i], head); }
};

// Asks for blocks in the order in which they will be read: those of a run of splits, then those of what comes next.
template <class T>
class Feed {
 public:
  // Nothing of `now` past its first `asked` blocks has been asked for; no more than `most` of `next` will be.
  Feed(const Span<T>& now, const Span<T>& next, int asked, int most) : now_(now), next_(next), at_(now.first + asked), coming_(next.first) {
    end_ = std::min(next.last, next.first + most);
    for (; at_ < std::min(now_.last, now_.first + LEAD); at_++) ask(now_.block(at_));
  }

  void step() {
    if (at_ < now_.last) ask(now_.block(at_++));
    else if (coming_ < end_) ask(next_.block(coming_++));
  }

  int asked_of_next() const { return coming_ - next_.first; }

 private:
  static constexpr int LEAD = 8;  // blocks that have been asked for before the first is read

  static void ask(const Block<T>& block) {
    const char* at = reinterpret_cast<const char*>(block.keys);
    for (int64_t i = 0; i < 2 * block.dim * PLACES * (int64_t)sizeof(T); i += 64) prefetch_l2(at + i);
  }

  Span<T> now_, next_;
  int at_, coming_, end_;
};

#if OCTAVO_TILES
// Scores of 16 or 32 rows against the span's keys, to columns 0 .. of `scores`.
template <int TALL>
OCTAVO_INLINE void tile_scores(const Desk<bf16>& desk, const Span<bf16>& span, Feed<bf16>& feed, int64_t dim) {
  stored();
  for (int i = span.first; i < span.last; i++) {
    const Block<bf16> block = span.block(i);
    feed.step();
    _tile_zero(0);
    if (TALL == 2) _tile_zero(1);
    for (int64_t d = 0; d < dim; d += 32) {
      _tile_loadd(6, block.keys + d * PLACES, 64);
      _tile_loadd(4, desk.q + d, dim * sizeof(bf16));
      _tile_dpbf16ps(0, 4, 6);
      if (TALL == 2) {
        _tile_loadd(5, desk.q + 16 * dim + d, dim * sizeof(bf16));
        _tile_dpbf16ps(1, 5, 6);
      }
    }
    float* out = desk.scores + (i - span.first) * PLACES;
    _tile_stored(0, out, SPLIT * sizeof(float));
    if (TALL == 2) _tile_stored(1, out + 16 * SPLIT, SPLIT * sizeof(float));
  }
  stored();
}

// 32 values at a time; a tile of weights covers one block.
template <int TALL>
OCTAVO_INLINE void tile_values(const Desk<bf16>& desk, const Span<bf16>& span, int64_t dim, float* out) {
  stored();
  for (int64_t d = 0; d < dim; d += 32) {
    _tile_zero(0);
    _tile_zero(1);
    if (TALL == 2) {
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int i = span.first; i < span.last; i++) {
      const Block<bf16> block = span.block(i);
      const bf16* weights = desk.weights + (i - span.first) * PLACES;
      _tile_loadd(4, weights, SPLIT * sizeof(bf16));
      _tile_loadd(6, block.values + 2 * d, dim * 2 * sizeof(bf16));
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, block.values + 2 * d + 32, dim * 2 * sizeof(bf16));
      _tile_dpbf16ps(1, 4, 7);
      if (TALL == 2) {
        _tile_loadd(5, weights + 16 * SPLIT, SPLIT * sizeof(bf16));
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
  configure_tiles(std::min(rows, 16));
  if (rows > 16) tile_scores<2>(desk, span, feed, dim);
  else tile_scores<1>(desk, span, feed, dim);
}

// `out` has room for 16 or 32 rows.
OCTAVO_INLINE void all_values(const Desk<bf16>& desk, const Span<bf16>& span, int rows, int64_t dim, float* out) {
  configure_tiles(std::min(rows, 16), 32);
  if (rows > 16) tile_values<2>(desk, span, dim, out);
  else tile_values<1>(desk, span, dim, out);
}
#endif

// Without tiles: positions side by side for scores, dimensions for values; COUNT rows share each load.
template <int COUNT, class T>
OCTAVO_INLINE void lane_scores(const float* q, const T* keys, int64_t dim, float* out) {
  Floats sums[COUNT] = {};
  for (int64_t d = 0; d < dim; d++) {
    const Floats key = load(keys + d * PLACES);
    for (int r = 0; r < COUNT; r++) sums[r] += q[r * dim + d] * key;
  }
  for (int r = 0; r < COUNT; r++) store(out + r * SPLIT, sums[r]);
}

template <int COUNT, class T>
OCTAVO_INLINE void lane_values(const float* weights, const Span<T>& span, int64_t d, int64_t dim, float* out) {
  Floats sums[COUNT][2] = {};
  for (int i = span.first; i < span.last; i++) {
    const T* values = span.block(i).values + d;
    const float* column = weights + (i - span.first) * PLACES;
    for (int place = 0; place < PLACES; place++) {
      const Floats left = load(values + place * dim), right = load(values + place * dim + LANES);
      for (int r = 0; r < COUNT; r++) {
        sums[r][0] += column[r * SPLIT + place] * left;
        sums[r][1] += column[r * SPLIT + place] * right;
      }
    }
  }
  for (int r = 0; r < COUNT; r++) {
    store(out + r * dim, sums[r][0]);
    store(out + r * dim + LANES, sums[r][1]);
  }
}

constexpr int SHARED = TALL_LANES > 4 ? 4 : TALL_LANES;

template <class T>
static __attribute__((noinline)) void all_scores(const Desk<T>& desk, const Span<T>& span, Feed<T>& feed, int rows, int64_t dim) {
  for (int i = span.first; i < span.last; i++) {
    const T* keys = span.block(i).keys;
    float* out = desk.scores + (i - span.first) * PLACES;
    feed.step();
    int r = 0;
    for (; r + SHARED <= rows; r += SHARED) lane_scores<SHARED>(desk.q + r * dim, keys, dim, out + r * SPLIT);
    for (; r < rows; r++) lane_scores<1>(desk.q + r * dim, keys, dim, out + r * SPLIT);
  }
}

template <class T>
static __attribute__((noinline)) void all_values(const Desk<T>& desk, const Span<T>& span, int rows, int64_t dim, float* out) {
  for (int64_t d = 0; d < dim; d += 2 * LANES) {
    int r = 0;
    for (; r + SHARED <= rows; r += SHARED) lane_values<SHARED>(desk.weights + r * SPLIT, span, d, dim, out + r * dim + d);
    for (; r < rows; r++) lane_values<1>(desk.weights + r * SPLIT, span, d, dim, out + r * dim + d);
  }
}

// The columns [low, high) that a row sees, of `width`.
struct Seen {
  int low, high, width;

  // Calls all(i) or some(i, mask) for each 16 columns, as the row sees all of them or not.
  template <class All, class Some>
  inline __attribute__((always_inline)) void each(const All& all, const Some& some) const {
    for (int i = 0; i < width; i += LANES) {
      if (i >= low && i + LANES <= high) {
        all(i);
      } else {
        const Ints at = lane_numbers() + i;
        some(i, (at >= Ints{} + low) & (at < Ints{} + high));
      }
    }
  }
};

// A weight and how it enters the row's sum: as rounded, since that is what the values are multiplied by.
OCTAVO_INLINE Floats power(Floats t, const float*) { return exp2(t); }
OCTAVO_INLINE void weigh(float* to, Floats p, Floats& sums) {
  store(to, p);
  sums += p;
}
#if OCTAVO_TILES
OCTAVO_INLINE Floats power(Floats t, const bf16*) { return exp2_short(t); }
OCTAVO_INLINE void weigh(bf16* to, Floats p, Floats& sums) {
  const __m256bh rounded = _mm512_cvtneps_pbh((__m512)p), ones = (__m256bh)_mm256_set1_epi16(0x3f80);
  memcpy(to, &rounded, sizeof rounded);
  __m256 pairs = _mm512_castps512_ps256((__m512)sums);  // sums of neighbours, in the lower eight lanes
  sums = (Floats)_mm512_zextps256_ps512(_mm256_dpbf16_ps(pairs, rounded, ones));
}
#endif

// Caps the scores of one row in place.
static __attribute__((noinline)) void cap(float* scores, int width, float scale, float softcap) {
  for (int i = 0; i < width; i += LANES) store(scores + i, softcap * tanh(load(scores + i) * scale / softcap));
}

constexpr float LOG2_E = 1.44269504088896341f;

// Scores of one row -> weights (zero where it does not see), their sum, and the maximum of the scores times `scale` (> 0).
template <class A>
static __attribute__((noinline)) void soften(float* scores, A* weights, const Seen& seen, float scale, float softcap, float* top, float* total) {
  if (softcap > 0) {
    cap(scores, seen.width, scale, softcap);
    scale = 1;
  }
  Floats highest = splat(LOW);
  seen.each([&](int i) { highest = vmax(load(scores + i), highest); },
            [&](int i, Ints mask) { highest = vmax(select(mask, load(scores + i), splat(LOW)), highest); });
  const float most = largest(highest), unit = scale * LOG2_E, shift = most * unit;
  Floats sums{};
  seen.each([&](int i) { weigh(weights + i, power(load(scores + i) * unit - shift, weights), sums); },
            [&](int i, Ints mask) { weigh(weights + i, select(mask, power(load(scores + i) * unit - shift, weights), Floats{}), sums); });
  *top = most * scale;
  *total = sum(sums);
}

}  // namespace octavo
