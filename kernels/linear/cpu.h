// Products of rows with a packed weight.
#pragma once
#include "columns.h"

namespace octavo {

OCTAVO_INLINE Sums sums_of(float* c, int64_t row, const OctavoLinear& w, int64_t block) {
  return Sums{c, row, bias_at(w, block, 0), bias_at(w, block, 1), block};
}

// Multiplies `rows` rows of `a` with blocks [first, last); done(row, rows, block, c) gets each step's sums or, where it can take
// them so, done.one(row, block, c) each row's. `next`: what this thread reads after its last block. `extra`: extra.plus(row, block) goes
// into the sums of a step from `row` on; where extra.fills(), extra.fill(block, whether another follows) is called before a block's
// products, with none of the block's before it left to `done`, and may configure tiles.
template <class W, class Done, class Extra = Nothing>
OCTAVO_INLINE void multiply(const Act<W>* a, int64_t stride, int64_t rows, const OctavoLinear& w, int64_t first, int64_t last,
                            const void* next, const Done& done, Extra&& extra = Extra{}) {
  alignas(64) float c[SUPER * WIDTH];
  const int64_t k = padded(w.k), bytes = k * WIDTH * sizeof(W);
  const int64_t together = by_lanes_of_pairs<W> || slice_of(k, rows) < k ? SUPER : HEIGHT;
  configure<W>(rows);
  Later<Done> later(done);
  for (int64_t block = first; block < last; block++) {
    if (extra.fills()) {
      later.finish();
      extra.fill(block, block + 1 < last);
      configure<W>(rows);
    }
    const W* at = block_at<W>(w, block);
    Ahead ahead = ahead_of<W>(block + 1 < last ? at + k * WIDTH : next, bytes, rows, k);
    for (int64_t row = 0; row < rows; row += together)
      columns(a + row * stride, stride, std::min(together, rows - row), at, at + 32, k, sums_of(c, row, w, block), ahead, later, extra, block);
  }
  later.finish();
}

// done(row, rows, block, c, d): c of block `block`, d of block `block + apart`, for the same rows; or done.one(row, block, c, d).
// `next`: null, or the block after the last, which this thread reads after it, as the one `apart`. `extra`: see above.
template <class W, class Done, class Extra = Nothing>
OCTAVO_INLINE void multiply_pairs(const Act<W>* a, int64_t stride, int64_t rows, const OctavoLinear& w, int64_t apart, int64_t first,
                                  int64_t last, const void* next, const Done& done, Extra&& extra = Extra{}) {
  alignas(64) float c[SUPER * WIDTH], d[SUPER * WIDTH];
  const int64_t k = padded(w.k), bytes = k * WIDTH * sizeof(W);
  configure<W>(rows);
  Later<Done> later(done);
  for (int64_t block = first; block < last; block++) {
    if (extra.fills()) {
      later.finish();
      extra.fill(block, block + 1 < last);
      configure<W>(rows);
    }
    const W *at = block_at<W>(w, block), *other = block_at<W>(w, block + apart);
    Ahead ahead = ahead_of<W>(block + 1 < last ? at + k * WIDTH : next, bytes, rows, k);
    Ahead beside = ahead_of<W>(block + 1 < last || next ? other + k * WIDTH : nullptr, bytes, rows, k);
    for (int64_t row = 0; row < rows; row += SUPER) {
      const int64_t count = std::min(SUPER, rows - row);
      Sums held = sums_of(c, row, w, block), sums = sums_of(d, row, w, block + apart);
      held.held = true;
      sums.block = block;
      sums.others = c;
      columns(a + row * stride, stride, count, at, at + 32, k, held, ahead, later, extra, block);
      columns(a + row * stride, stride, count, other, other + 32, k, sums, beside, later, extra, block + apart);
    }
  }
  later.finish();
}

// Where results [rows, n] go as they are. `stride` in floats, and room for whole blocks in each row.
struct Keep {
  float* out;
  int64_t stride;

  void one(int64_t row, int64_t block, const float* c) const {
    float* to = out + row * stride + block * WIDTH;
    store(to, load(c));
    store(to + LANES, load(c + LANES));
  }
  void operator()(int64_t row, int64_t rows, int64_t block, const float* c) const {
    for (int64_t r = 0; r < rows; r++) one(row + r, block, c + r * WIDTH);
  }
};

// x [rows, n] += results.
struct Add {
  float* x;
  int64_t n;

  void one(int64_t row, int64_t block, const float* c) const {
    const int columns = static_cast<int>(std::min<int64_t>(WIDTH, n - block * WIDTH));
    float* to = x + row * n + block * WIDTH;
    for (int i = 0; i < columns; i += LANES) {
      const int count = std::min(LANES, columns - i);
      store_some(to + i, load_some(to + i, count) + load(c + i), count);
    }
  }
  void operator()(int64_t row, int64_t rows, int64_t block, const float* c) const {
    for (int64_t r = 0; r < rows; r++) one(row + r, block, c + r * WIDTH);
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
