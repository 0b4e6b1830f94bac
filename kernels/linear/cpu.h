// Products of rows with a packed weight, one order of sums for any number of rows.
//
// A weight [n, k] is cut into blocks of 32 outputs. bfloat16: [block][k / 2][32][2], pairs of inputs side by side, as
// matrix tiles take them; others: [block][k][32]. n and k are padded to 32 with zeros. An output's sum runs over k from 0
// on: by tiles, 32 inputs at a time (even and odd ones apart, then together); without tiles, one fused step an input.
#pragma once
#include <algorithm>

#include "../cpu/abi.h"
#include "../cpu/amx.h"
#include "../cpu/engine.h"
#include "../cpu/simd.h"

namespace octavo {

constexpr int WIDTH = 32;   // outputs of a block
constexpr int HEIGHT = 32;  // rows of a step

OCTAVO_INLINE int64_t padded(int64_t count) { return (count + 31) / 32 * 32; }
OCTAVO_INLINE int64_t blocks_of(const OctavoLinear& w) { return padded(w.n) / WIDTH; }

// The form in which rows enter a product with a weight stored as W.
template <class W>
struct Form {
  using Act = float;
  static constexpr bool tiles = false;
};
#if OCTAVO_TILES
template <>
struct Form<bf16> {
  using Act = bf16;
  static constexpr bool tiles = true;
};
#endif
template <class W>
using Act = typename Form<W>::Act;

// Elements from one row to the next: an odd number of cache lines, so that the rows of a tile lie in different sets.
template <class A>
OCTAVO_INLINE int64_t row_stride(int64_t k) {
  constexpr int64_t LINE = 64 / sizeof(A);
  const int64_t lines = padded(k) / LINE;
  return (lines | 1) * LINE;
}

// Rows to allocate for `rows`: whole tiles read beyond the last.
OCTAVO_INLINE int64_t row_room(int64_t rows) { return rows + HEIGHT; }

// Memory to ask for while arithmetic runs, a few lines at a time.
struct Ahead {
  const char* at;
  const char* end;
  int lines;

  void step() {
    for (int i = 0; i < lines && at < end; i++, at += 64) prefetch_l2(at);
  }
};

#if OCTAVO_TILES
// c [16 * TALL, 32] = a [16 * TALL rows] * one block. The caller has configured tiles.
template <int TALL>
OCTAVO_INLINE void product(const bf16* a, int64_t stride, const bf16* w, int64_t k, float* c, Ahead& ahead) {
  const bf16* below = a + 16 * stride;
  const int64_t bytes = stride * sizeof(bf16);
  stored();
  _tile_zero(0);
  _tile_zero(1);
  if (TALL == 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t i = 0; i < k; i += 32) {
    const bf16* pair = w + i * WIDTH;
    _tile_loadd(6, pair, 128);
    _tile_stream_loadd(4, a + i, bytes);
    _tile_dpbf16ps(0, 4, 6);
    ahead.step();
    _tile_loadd(7, pair + 32, 128);
    _tile_dpbf16ps(1, 4, 7);
    ahead.step();
    if (TALL == 2) {
      _tile_stream_loadd(5, below + i, bytes);
      _tile_dpbf16ps(2, 5, 6);
      ahead.step();
      _tile_dpbf16ps(3, 5, 7);
      ahead.step();
    }
  }
  _tile_stored(0, c, 4 * WIDTH);
  _tile_stored(1, c + 16, 4 * WIDTH);
  if (TALL == 2) {
    _tile_stored(2, c + 16 * WIDTH, 4 * WIDTH);
    _tile_stored(3, c + 16 * WIDTH + 16, 4 * WIDTH);
  }
  stored();
}

OCTAVO_INLINE void step_product(const bf16* a, int64_t stride, int64_t rows, const bf16* w, int64_t k, float* c, Ahead& ahead) {
  if (rows > 16) product<2>(a, stride, w, k, c, ahead);
  else product<1>(a, stride, w, k, c, ahead);
}
#endif

// Two inputs' 32 outputs of a block, from its row `i` (a pair for bfloat16, else two rows).
OCTAVO_INLINE void weights_at(const bf16* w, int64_t i, Floats (&even)[2], Floats (&odd)[2]) {
  for (int half = 0; half < 2; half++) {
    Words pair;
    memcpy(&pair, w + i * WIDTH + half * 32, sizeof pair);
    even[half] = as_floats(pair << 16);
    odd[half] = as_floats(pair & 0xffff0000u);
  }
}
template <class W>
OCTAVO_INLINE void weights_at(const W* w, int64_t i, Floats (&even)[2], Floats (&odd)[2]) {
  for (int half = 0; half < 2; half++) {
    even[half] = load(w + i * WIDTH + half * 16);
    odd[half] = load(w + (i + 1) * WIDTH + half * 16);
  }
}

template <int ROWS, class W>
static __attribute__((noinline)) void lanes(const float* a, int64_t stride, const W* w, int64_t k, float* c) {
  Floats sums[ROWS][2] = {};
  for (int64_t i = 0; i < k; i += 2) {
    Floats even[2], odd[2];
    weights_at(w, i, even, odd);
    for (int r = 0; r < ROWS; r++) {
      const Floats x = splat(a[r * stride + i]), y = splat(a[r * stride + i + 1]);
      for (int half = 0; half < 2; half++) {
        sums[r][half] += x * even[half];
        sums[r][half] += y * odd[half];
      }
    }
  }
  for (int r = 0; r < ROWS; r++)
    for (int half = 0; half < 2; half++) store(c + r * WIDTH + half * 16, sums[r][half]);
}

#if defined(__AVX512F__)
constexpr int TALL_LANES = 8;  // rows whose sums stay in registers
#elif defined(__AVX2__)
constexpr int TALL_LANES = 2;
#else
constexpr int TALL_LANES = 1;
#endif

template <class W>
OCTAVO_INLINE void step_product(const float* a, int64_t stride, int64_t rows, const W* w, int64_t k, float* c, Ahead&) {
  int64_t r = 0;
  for (; r + TALL_LANES <= rows; r += TALL_LANES) lanes<TALL_LANES>(a + r * stride, stride, w, k, c + r * WIDTH);
  for (; r < rows; r++) lanes<1>(a + r * stride, stride, w, k, c + r * WIDTH);
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

// How much to ask for at a time so that `bytes` have come when `rows` rows are through.
OCTAVO_INLINE Ahead ahead_of(const void* next, int64_t bytes, int64_t rows, int64_t k) {
  const int64_t slots = (rows + HEIGHT - 1) / HEIGHT * (padded(k) / 32) * (rows > 16 ? 4 : 2);
  const char* at = static_cast<const char*>(next);
  return Ahead{at, at ? at + bytes : at, static_cast<int>((bytes / 64 + slots - 1) / slots)};
}

// The sums of a step's rows, float32 [rows, 32], with the bias.
OCTAVO_INLINE void add_bias(const OctavoLinear& w, int64_t block, int64_t rows, float* c) {
  if (!w.bias) return;
  const Floats left = load(w.bias + block * WIDTH), right = load(w.bias + block * WIDTH + 16);
  for (int64_t r = 0; r < rows; r++) {
    store(c + r * WIDTH, load(c + r * WIDTH) + left);
    store(c + r * WIDTH + 16, load(c + r * WIDTH + 16) + right);
  }
}

// Multiplies `rows` rows of `a` with blocks [first, last); done(row, rows, block, c) gets each step's sums. `next`: what
// this thread reads after its last block.
template <class W, class Done>
OCTAVO_INLINE void multiply(const Act<W>* a, int64_t stride, int64_t rows, const OctavoLinear& w, int64_t first, int64_t last,
                            const void* next, const Done& done) {
  alignas(64) float c[HEIGHT * WIDTH];
  const int64_t k = padded(w.k), bytes = k * WIDTH * sizeof(W);
  configure<W>(rows);
  for (int64_t block = first; block < last; block++) {
    const W* at = block_at<W>(w, block);
    Ahead ahead = ahead_of(block + 1 < last ? at + k * WIDTH : next, bytes, rows, k);
    for (int64_t row = 0; row < rows; row += HEIGHT) {
      const int64_t count = std::min<int64_t>(HEIGHT, rows - row);
      step_product(a + row * stride, stride, count, at, k, c, ahead);
      add_bias(w, block, count, c);
      done(row, count, block, c);
    }
  }
}

// done(row, rows, block, c, d): c of block `block`, d of block `block + apart`, for the same rows. `next`: null, or the block after the
// last, which this thread reads after it, as the one `apart`.
template <class W, class Done>
OCTAVO_INLINE void multiply_pairs(const Act<W>* a, int64_t stride, int64_t rows, const OctavoLinear& w, int64_t apart, int64_t first,
                                  int64_t last, const void* next, const Done& done) {
  alignas(64) float c[HEIGHT * WIDTH], d[HEIGHT * WIDTH];
  const int64_t k = padded(w.k), bytes = k * WIDTH * sizeof(W);
  configure<W>(rows);
  for (int64_t block = first; block < last; block++) {
    const W *at = block_at<W>(w, block), *other = block_at<W>(w, block + apart);
    Ahead ahead = ahead_of(block + 1 < last ? at + k * WIDTH : next, bytes, rows, k);
    Ahead beside = ahead_of(block + 1 < last || next ? other + k * WIDTH : nullptr, bytes, rows, k);
    for (int64_t row = 0; row < rows; row += HEIGHT) {
      const int64_t count = std::min<int64_t>(HEIGHT, rows - row);
      step_product(a + row * stride, stride, count, at, k, c, ahead);
      step_product(a + row * stride, stride, count, other, k, d, beside);
      add_bias(w, block, count, c);
      add_bias(w, block + apart, count, d);
      done(row, count, block, c, d);
    }
  }
}

// Where results [rows, n] go as they are. `stride` in floats, and room for whole blocks in each row.
struct Keep {
  float* out;
  int64_t stride;

  void operator()(int64_t row, int64_t rows, int64_t block, const float* c) const {
    for (int64_t r = 0; r < rows; r++) {
      float* to = out + (row + r) * stride + block * WIDTH;
      store(to, load(c + r * WIDTH));
      store(to + 16, load(c + r * WIDTH + 16));
    }
  }
};

// x [rows, n] += results.
struct Add {
  float* x;
  int64_t n;

  void operator()(int64_t row, int64_t rows, int64_t block, const float* c) const {
    const int columns = static_cast<int>(std::min<int64_t>(WIDTH, n - block * WIDTH));
    for (int64_t r = 0; r < rows; r++) {
      float* to = x + (row + r) * n + block * WIDTH;
      for (int i = 0; i < columns; i += LANES) {
        const int count = std::min(LANES, columns - i);
        store_some(to + i, load_some(to + i, count) + load(c + r * WIDTH + i), count);
      }
    }
  }
};

// Calls f with a value of the type that `dtype` names.
template <class F>
OCTAVO_INLINE void by_dtype(int64_t dtype, const F& f) {
  switch (dtype) {
    case OCTAVO_BFLOAT16: return f(bf16{});
    case OCTAVO_FLOAT16: return f(fp16{});
    default: return f(float{});
  }
}

}  // namespace octavo
