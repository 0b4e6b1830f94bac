// How weights and rows lie for products of rows with a packed weight.
//
// A weight [n, k] is cut into blocks of 32 outputs. bfloat16: [block][k / 2][32][2], pairs of inputs side by side, as
// matrix tiles take them; others: [block][k][32]. n and k are padded to 32 with zeros. An output's sum runs over k from 0
// on: by tiles, 32 inputs at a time (even and odd ones apart, then together); by vectors of pairs, one step a pair; otherwise one fused step an
// input.
#pragma once
#include <algorithm>

#include "../cpu/abi.h"
#include "../cpu/amx.h"
#include "../cpu/engine.h"
#include "../cpu/pairs.h"
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
  static constexpr bool pairs = false, tiles = false;
};
#if OCTAVO_PAIRS
template <>
struct Form<bf16> {
  using Act = bf16;
  static constexpr bool pairs = true, tiles = OCTAVO_TILES;
};
#endif
template <class W>
using Act = typename Form<W>::Act;
template <class W>
constexpr bool by_lanes_of_pairs = Form<W>::pairs && !Form<W>::tiles;

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

#if defined(__AVX512F__)
constexpr int HELD = 16;  // sums of sixteen outputs that stay in registers
#elif defined(__AVX2__) || defined(__aarch64__)
constexpr int HELD = 6;
#else
constexpr int HELD = 2;
#endif
constexpr int BOTH = HELD / 2;                            // rows whose sums of a block stay there
constexpr int TALL_LANES = HELD >= 16 ? BOTH : HELD;      // rows that share a load of weights: of a whole block, else of half of it

constexpr int TALL_PAIRS = 8;  // rows whose sums stay in registers by vectors of pairs, two vectors each: enough to hide an instruction's time
constexpr int SWIFT = 4;  // rows up to which such products read weights one after another faster than anybody could ask for them

// How much to ask for at a time so that `bytes` have come when `rows` rows of products with a weight stored as W are through.
template <class W>
OCTAVO_INLINE Ahead ahead_of(const void* next, int64_t bytes, int64_t rows, int64_t k) {
  const auto parts = [&](int64_t tall) { return (rows + tall - 1) / tall; };
  const int64_t by_tiles = parts(HEIGHT) * (padded(k) / 32) * (rows > 16 ? 4 : 2);
  const int64_t by_lanes = (rows <= BOTH || TALL_LANES == BOTH ? parts(BOTH) : 2 * parts(TALL_LANES)) * (padded(k) / 8);
  const int64_t slots = Form<W>::tiles ? by_tiles : Form<W>::pairs ? parts(TALL_PAIRS) * (padded(k) / 8) : by_lanes;
  const char* at = static_cast<const char*>(by_lanes_of_pairs<W> && rows <= SWIFT ? nullptr : next);
  return Ahead{at, at ? at + bytes : at, static_cast<int>((bytes / 64 + slots - 1) / slots)};
}

// Calls f(number) with a constant of the type std::integral_constant that equals `count`, from 1 to MOST.
template <int MOST, class F>
OCTAVO_INLINE void with_count(int64_t count, const F& f) {
  if constexpr (MOST > 1)
    if (count < MOST) return with_count<MOST - 1>(count, f);
  f(std::integral_constant<int, MOST>{});
}

// Calls f(row, count) for parts of `rows` rows, none of them higher than TALL, all about as high.
template <int TALL, class F>
OCTAVO_INLINE void in_parts(int64_t rows, const F& f) {
  const int64_t parts = (rows + TALL - 1) / TALL;
  for (int64_t part = 0, row = 0; part < parts; part++) {
    const int64_t end = rows * (part + 1) / parts;
    f(row, end - row);
    row = end;
  }
}

}  // namespace octavo
