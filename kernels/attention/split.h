// One split of one item: scores, their softmax, and the weighted sum of values, for up to 32 rows.
#pragma once
#include "../cpu/amx.h"
#include "../kv/cpu.h"

namespace octavo {

constexpr int SPLIT = 512;  // positions that share one maximum; counted from position 0 on, whatever the item
constexpr int SPLIT_BLOCKS = SPLIT / PLACES;
constexpr int PITCH = SPLIT + 16;  // floats from one row's scores to the next: an odd number of cache lines
constexpr int ROWS = 32;
constexpr float LOW = -1e30f;  // a maximum of nothing: finite, so that differences stay so

// What a thread needs for a split. `dim` is padded.
template <class T>
struct Desk {
  Act<T>* q;      // [ROWS, dim]
  float* scores;  // [ROWS, PITCH]; a row's weights take their place
  Act<T>* values;  // two blocks' values, 32 dimensions wide

  static constexpr int STRIDE = PITCH * sizeof(float) / sizeof(Act<T>);  // from one row's weights to the next

  Act<T>* weights(int row) const { return reinterpret_cast<Act<T>*>(scores + row * PITCH); }

  static size_t bytes(int64_t dim) { return ROWS * (dim * sizeof(Act<T>) + PITCH * sizeof(float)) + ROOM * sizeof(Act<T>) + 192; }

  static Desk at(char* memory, int64_t dim) {
    Act<T>* q = reinterpret_cast<Act<T>*>(memory);
    float* scores = reinterpret_cast<float*>(q + ROWS * dim);
    return Desk{q, scores, reinterpret_cast<Act<T>*>(scores + ROWS * PITCH)};
  }

 private:
  static constexpr int64_t ROOM = 4 * 2 * PLACES * 32;
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
OCTAVO_INLINE void all_values(const Desk<bf16>& desk, const Span<bf16>& span, int rows, int64_t dim, float* out) {
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
  for (int r = 0; r < COUNT; r++) store(out + r * PITCH, sums[r]);
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
        sums[r][0] += column[r * PITCH + place] * left;
        sums[r][1] += column[r * PITCH + place] * right;
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
    for (; r + SHARED <= rows; r += SHARED) lane_scores<SHARED>(desk.q + r * dim, keys, dim, out + r * PITCH);
    for (; r < rows; r++) lane_scores<1>(desk.q + r * dim, keys, dim, out + r * PITCH);
  }
}

template <class T>
static __attribute__((noinline)) void all_values(const Desk<T>& desk, const Span<T>& span, int rows, int64_t dim, float* out) {
  for (int64_t d = 0; d < dim; d += 2 * LANES) {
    int r = 0;
    for (; r + SHARED <= rows; r += SHARED) lane_values<SHARED>(desk.scores + r * PITCH, span, d, dim, out + r * dim + d);
    for (; r < rows; r++) lane_values<1>(desk.scores + r * PITCH, span, d, dim, out + r * dim + d);
  }
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
#if OCTAVO_TILES
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
