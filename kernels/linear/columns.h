// The sums of some columns for all rows, by tiles, and without them by lanes: one order of sums for any number of rows.
#pragma once
#include "pairs.h"

namespace octavo {

// A block's weights of input `i` for 16 outputs, of which the first is at `w`.
template <class W>
OCTAVO_INLINE Floats weights_at(const W* w, int64_t i) {
  if constexpr (std::is_same_v<W, bf16>) {
    const Words pairs = get<Words>(w + i / 2 * 2 * WIDTH);
    return as_floats(i % 2 ? pairs & 0xffff0000u : pairs << 16);
  } else {
    return load(w + i * WIDTH);
  }
}

// From the first half of a block to the second.
template <class W>
constexpr int64_t HALF = std::is_same_v<W, bf16> ? 2 * LANES : LANES;

// The sums of N halves of a block, which begin at `w`, for some rows. `k` is a multiple of 8.
template <int ROWS, int N, class W>
static __attribute__((noinline)) void lanes(const float* a, int64_t stride, const W* w, int64_t k, float* c, Ahead& ahead) {
  Floats sums[ROWS][N] = {};
  Ahead own = ahead;
  for (int64_t i = 0; i < k; i += 8) {
    own.step();
#pragma GCC unroll 8
    for (int64_t j = 0; j < 8; j++) {
      Floats weights[N];
#pragma GCC unroll 2
      for (int half = 0; half < N; half++) weights[half] = weights_at(w + i * WIDTH + half * HALF<W>, j);
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; r++) {
        const Floats x = splat(a[r * stride + i + j]);
#pragma GCC unroll 2
        for (int half = 0; half < N; half++) sums[r][half] += x * weights[half];
      }
    }
  }
  ahead = own;
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
    for (int half = 0; half < N; half++) store(c + r * WIDTH + half * LANES, sums[r][half]);
}

// c [rows, 32] = rows times a block: both halves together where it is done in one part, else one after the other.
template <class W>
OCTAVO_INLINE void lane_product(const float* a, int64_t stride, int64_t rows, const W* w, int64_t k, float* c, Ahead& ahead) {
  if (rows <= BOTH || TALL_LANES == BOTH)
    return in_parts<BOTH>(rows, [&](int64_t row, int64_t height) {
      with_count<BOTH>(height, [&](auto count) { lanes<count, 2>(a + row * stride, stride, w, k, c + row * WIDTH, ahead); });
    });
  for (int half = 0; half < 2; half++)
    in_parts<TALL_LANES>(rows, [&](int64_t row, int64_t height) {
      with_count<TALL_LANES>(height, [&](auto count) {
        lanes<count, 1>(a + row * stride, stride, w + half * HALF<W>, k, c + row * WIDTH + half * LANES, ahead);
      });
    });
}

template <class W>
OCTAVO_INLINE void configure(int64_t rows) {
#if OCTAVO_TILES
  if (Form<W>::tiles) configure_tiles(static_cast<int>(std::min<int64_t>(rows, 16)));
#endif
}

template <class W>
OCTAVO_INLINE const W* block_at(const OctavoLinear& w, int64_t block) {
  return static_cast<const W*>(w.weight) + block * padded(w.k) * WIDTH;
}

// 16 of a block's biases, or null.
OCTAVO_INLINE const float* bias_at(const OctavoLinear& w, int64_t block, int half) {
  return w.bias ? w.bias + block * WIDTH + half * LANES : nullptr;
}

constexpr int64_t SUPER = 128;  // rows whose sums of one block wait for what comes to them later

// Where the sums of a block go for up to SUPER rows, float32 [SUPER, 32], of which the first is row `row` of all; what is added to
// their halves, or null; the block; and another block's sums of the same rows, which go with them, or null.
struct Sums {
  float* c;
  int64_t row;
  const float *left, *right;
  int64_t block;
  float* others = nullptr;
  bool held = false;  // nobody gets them: they are somebody's `others`

  void add_bias(int64_t from, int64_t rows) const {
    if (!left) return;
    const Floats first = load(left), second = load(right);
    for (float* to = c + from * WIDTH; to < c + (from + rows) * WIDTH; to += WIDTH) {
      store(to, load(to) + first);
      store(to + LANES, load(to + LANES) + second);
    }
  }
};

// One more step of 32 inputs for some rows: 32 values a row at `t`, times a block of pairs at `b`. Null: none.
struct Plus {
  const bf16* t = nullptr;
  int64_t stride = 0;
  const bf16* b = nullptr;
};

// Adds nothing to any sums (see multiply).
struct Nothing {
  static constexpr bool PLUS = false;
  bool fills() const { return false; }
  void fill(int64_t, bool) const {}
  Plus plus(int64_t, int64_t) const { return Plus{}; }
};

// Hands sums on. Where `done` takes single rows, it gets them while the next step's products run: the tiles' unit is busy for longer
// than it takes to feed it. What it has not got when those are through, finish() gives it.
template <class Done>
class Later {
 public:
  static constexpr bool PAIRS = requires(const Done& done, const float* c) { done.one(int64_t{}, int64_t{}, c, c); };
  static constexpr bool ROWS = PAIRS || requires(const Done& done, const float* c) { done.one(int64_t{}, int64_t{}, c); };

  explicit Later(const Done& done) : done_(done) {}

  void step() {
    if constexpr (ROWS)
      if (at_ < end_) one();
  }
  void finish() {
    if constexpr (ROWS)
      while (at_ < end_) one();
  }
  void take(const Sums& sums, int64_t from, int64_t rows) {
    float* c = sums.c + from * WIDTH;
    float* others = sums.others ? sums.others + from * WIDTH : nullptr;
    if constexpr (ROWS) {
      finish();
      row_ = sums.row + from, block_ = sums.block, at_ = c, end_ = c + rows * WIDTH, others_ = others;
    } else if constexpr (requires { done_(from, rows, from, others, c); }) {
      done_(sums.row + from, rows, sums.block, others, c);
    } else {
      done_(sums.row + from, rows, sums.block, c);
    }
  }

 private:
  void one() {
    if constexpr (PAIRS) done_.one(row_, block_, others_, at_);
    else done_.one(row_, block_, at_);
    row_++, at_ += WIDTH;
    if constexpr (PAIRS) others_ += WIDTH;
  }

  const Done& done_;
  const float *at_ = nullptr, *end_ = nullptr, *others_ = nullptr;
  int64_t row_ = 0, block_ = 0;
};

// Inputs of a block that are gone through for SUPER rows before the next: a longer block would leave the first cache between two steps.
OCTAVO_INLINE int64_t slice_of(int64_t k, int64_t rows) {
  constexpr int64_t NEAR = 640, SLICE = 384;
  return rows <= HEIGHT || k <= NEAR ? k : padded((k + (k + SLICE - 1) / SLICE - 1) / ((k + SLICE - 1) / SLICE));
}

#if OCTAVO_TILES
// c [16 * TALL, 32] = (`more`: c +) a [16 * TALL rows] times 16 columns at `left` and 16 at `right`, and `plus`. The caller has configured
// tiles.
template <int TALL, bool PLUS, class Done>
OCTAVO_INLINE void product(const bf16* a, int64_t stride, const bf16* left, const bf16* right, int64_t k, float* c, bool more, Plus plus,
                           Ahead& ahead, Later<Done>& later) {
  const bf16* below = a + 16 * stride;
  const int64_t bytes = stride * sizeof(bf16);
  stored();
  if (more) {
    _tile_loadd(0, c, 4 * WIDTH);
    _tile_loadd(1, c + 16, 4 * WIDTH);
    if (TALL == 2) {
      _tile_loadd(2, c + 16 * WIDTH, 4 * WIDTH);
      _tile_loadd(3, c + 16 * WIDTH + 16, 4 * WIDTH);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if (TALL == 2) {
      _tile_zero(2);
      _tile_zero(3);
    }
  }
  for (int64_t i = 0; i < k; i += 32) {
    _tile_loadd(6, left + i * WIDTH, 128);
    _tile_stream_loadd(4, a + i, bytes);
    _tile_dpbf16ps(0, 4, 6);
    ahead.step();
    _tile_loadd(7, right + i * WIDTH, 128);
    _tile_dpbf16ps(1, 4, 7);
    ahead.step();
    later.step();
    if (TALL == 2) {
      _tile_stream_loadd(5, below + i, bytes);
      _tile_dpbf16ps(2, 5, 6);
      ahead.step();
      _tile_dpbf16ps(3, 5, 7);
      ahead.step();
      later.step();
    }
  }
  if (PLUS && plus.t) {
    _tile_loadd(6, plus.b, 128);
    _tile_loadd(4, plus.t, plus.stride * sizeof(bf16));
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, plus.b + 32, 128);
    _tile_dpbf16ps(1, 4, 7);
    if (TALL == 2) {
      _tile_loadd(5, plus.t + 16 * plus.stride, plus.stride * sizeof(bf16));
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  later.finish();
  _tile_stored(0, c, 4 * WIDTH);
  _tile_stored(1, c + 16, 4 * WIDTH);
  if (TALL == 2) {
    _tile_stored(2, c + 16 * WIDTH, 4 * WIDTH);
    _tile_stored(3, c + 16 * WIDTH + 16, 4 * WIDTH);
  }
  stored();
}

// Sums of up to SUPER rows at `a`, by the 16 columns at `left` and the 16 at `right`; `extra` adds to those of weight block `block`.
template <class Done, class Extra>
OCTAVO_INLINE void columns(const bf16* a, int64_t stride, int64_t rows, const bf16* left, const bf16* right, int64_t k, const Sums& sums,
                           Ahead& ahead, Later<Done>& later, const Extra& extra, int64_t block) {
  const int64_t slice = slice_of(k, rows);
  for (int64_t from = 0; from < k; from += slice)
    for (int64_t row = 0; row < rows; row += HEIGHT) {
      const int64_t count = std::min<int64_t>(HEIGHT, rows - row), depth = std::min(slice, k - from);
      const bf16 *x = a + row * stride + from, *l = left + from * WIDTH, *r = right + from * WIDTH;
      float* c = sums.c + row * WIDTH;
      const Plus plus = Extra::PLUS && from + slice >= k ? extra.plus(sums.row + row, block) : Plus{};
      if (count > 16) product<2, Extra::PLUS>(x, stride, l, r, depth, c, from > 0, plus, ahead, later);
      else product<1, Extra::PLUS>(x, stride, l, r, depth, c, from > 0, plus, ahead, later);
      if (from + slice < k) continue;
      sums.add_bias(row, count);
      if (!sums.held) later.take(sums, row, count);
    }
}
#elif OCTAVO_PAIRS
template <class Done, class Extra>
OCTAVO_INLINE void columns(const bf16* a, int64_t stride, int64_t rows, const bf16* left, const bf16*, int64_t k, const Sums& sums,
                           Ahead& ahead, Later<Done>& later, const Extra&, int64_t) {
  in_parts<TALL_PAIRS>(rows, [&](int64_t row, int64_t count) {
    later.finish();
    lane_product(a + row * stride, stride, count, left, k, sums.c + row * WIDTH, ahead);
    sums.add_bias(row, count);
    if (!sums.held) later.take(sums, row, count);
  });
}
#endif

template <class W, class Done, class Extra>
OCTAVO_INLINE void columns(const float* a, int64_t stride, int64_t rows, const W* left, const W*, int64_t k, const Sums& sums, Ahead& ahead,
                           Later<Done>& later, const Extra&, int64_t) {
  for (int64_t row = 0; row < rows; row += HEIGHT) {
    const int64_t count = std::min<int64_t>(HEIGHT, rows - row);
    later.finish();
    lane_product(a + row * stride, stride, count, left, k, sums.c + row * WIDTH, ahead);
    sums.add_bias(row, count);
    if (!sums.held) later.take(sums, row, count);
  }
}

}  // namespace octavo
