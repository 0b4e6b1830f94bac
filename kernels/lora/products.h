// Rows times strips and blocks of an adapter, by tiles and without (how they are stored: cpu.h).
#pragma once
#include <array>

#include "../linear/cpu.h"

namespace octavo {

constexpr int STRIP = 16;  // outputs of `a` that are summed together

OCTAVO_INLINE int64_t padded_rank(int64_t rank) { return (rank + 7) / 8 * 8; }
template <class W>
OCTAVO_INLINE int64_t stored_rank(int64_t rank) {
  return Form<W>::pairs ? padded_rank(rank) : (rank + STRIP - 1) / STRIP * STRIP;
}

#if OCTAVO_TILES
// How tiles are configured, for up to `rows` rows. Shrinking: 0 gathers sums, 2 holds rows, 3 weights; 1 and 4 are half as wide, for
// strips of 8. Expanding: 0 and 1 gather the sums of a block's halves, 2 holds 32 shrunk values, 4 and 5 their weights; 3, 6 and 7 are
// for the last `tail` values.
class LoraTiles {
 public:
  void shrink(int64_t rows) {
    if (rows == rows_) return;
    rows_ = rows;
    set({64, 32, 64, 64, 32, 64, 64, 64}, {rows, rows, rows, 16, 16, 16, 16, 16});
  }

  void expand(int64_t rows, int64_t tail) {
    if (rows == rows_ && tail == tail_) return;
    rows_ = rows;
    tail_ = tail;
    const int64_t last = tail ? tail : 8;
    set({64, 64, 64, 2 * last, 64, 64, 64, 64}, {rows, rows, rows, rows, 16, 16, last / 2, last / 2});
  }

 private:
  static void set(const std::array<int64_t, 8>& bytes, const std::array<int64_t, 8>& heights) {
    struct alignas(64) {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    for (int i = 0; i < 8; i++) {
      config.bytes[i] = static_cast<uint16_t>(bytes[i]);
      config.rows[i] = static_cast<uint8_t>(heights[i]);
    }
    asm volatile("ldtilecfg %0" : : "m"(config) : "memory");  // see cpu/amx.h
  }

  int64_t rows_ = 0, tail_ = -1;
};

// c [rows, 16] = x [rows, k] times a strip; `narrow`: the strip is 8 wide, and so is c.
OCTAVO_INLINE void strip_product(const bf16* x, int64_t stride, int64_t, const bf16* a, int64_t k, bool narrow, float* c, Ahead& ahead) {
  stored();
  const int64_t bytes = stride * sizeof(bf16);
  if (narrow) {
    _tile_zero(1);
    for (int64_t i = 0; i < k; i += 32) {
      _tile_loadd(2, x + i, bytes);
      _tile_loadd(4, a + i * 8, 32);
      _tile_dpbf16ps(1, 2, 4);
      ahead.step();
    }
    _tile_stored(1, c, 4 * STRIP);
  } else {
    _tile_zero(0);
    for (int64_t i = 0; i < k; i += 32) {
      _tile_loadd(2, x + i, bytes);
      _tile_loadd(3, a + i * 16, 64);
      _tile_dpbf16ps(0, 2, 3);
      ahead.step();
    }
    _tile_stored(0, c, 4 * STRIP);
  }
  stored();
}

// c [rows, 32] = t [rows, rank] times a block of `b`.
OCTAVO_INLINE void block_product(const bf16* t, int64_t stride, int64_t, const bf16* b, int64_t rank, float* c) {
  const int64_t bytes = stride * sizeof(bf16), whole = rank / 32 * 32;
  stored();
  _tile_zero(0);
  _tile_zero(1);
  for (int64_t i = 0; i < whole; i += 32) {
    _tile_loadd(2, t + i, bytes);
    _tile_loadd(4, b + i * WIDTH, 128);
    _tile_dpbf16ps(0, 2, 4);
    _tile_loadd(5, b + i * WIDTH + 32, 128);
    _tile_dpbf16ps(1, 2, 5);
  }
  if (whole < rank) {
    _tile_loadd(3, t + whole, bytes);
    _tile_loadd(6, b + whole * WIDTH, 128);
    _tile_dpbf16ps(0, 3, 6);
    _tile_loadd(7, b + whole * WIDTH + 32, 128);
    _tile_dpbf16ps(1, 3, 7);
  }
  _tile_stored(0, c, 4 * WIDTH);
  _tile_stored(1, c + 16, 4 * WIDTH);
  stored();
}
#else
struct LoraTiles {
  void shrink(int64_t) {}
  void expand(int64_t, int64_t) {}
};

#if OCTAVO_PAIRS
constexpr int TALL_STRIP = 8;  // rows of a strip whose sums run side by side

template <int ROWS, bool NARROW>
static __attribute__((noinline)) void strip_pairs(const bf16* x, int64_t stride, const bf16* a, int64_t k, float* c, Ahead& ahead) {
  constexpr int64_t BESIDE = NARROW ? STRIP / 2 : STRIP;
  Floats sums[ROWS] = {};
  Ahead own = ahead;
  for (int64_t i = 0; i < k; i += 32) {
    own.step();
#pragma GCC unroll 4
    for (int64_t j = i; j < i + 32; j += 2) {
      const Words right = NARROW ? few_pairs_at(a + j * BESIDE) : pairs_at(a + j * BESIDE);
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++) sums[r] = add_products(sums[r], same_pair(x + r * stride + j), right);
    }
  }
  ahead = own;
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++) store(c + r * STRIP, sums[r]);
}

// c [rows, 16] = x [rows, k] times a strip; `narrow`: the strip is 8 wide, and the rest of c zero.
OCTAVO_INLINE void strip_product(const bf16* x, int64_t stride, int64_t rows, const bf16* a, int64_t k, bool narrow, float* c, Ahead& ahead) {
  in_parts<TALL_STRIP>(rows, [&](int64_t row, int64_t height) {
    with_count<TALL_STRIP>(height, [&](auto count) {
      if (narrow) strip_pairs<count, true>(x + row * stride, stride, a, k, c + row * STRIP, ahead);
      else strip_pairs<count, false>(x + row * stride, stride, a, k, c + row * STRIP, ahead);
    });
  });
}

// c [rows, 32] = t [rows, rank] times a block of `b`.
OCTAVO_INLINE void block_product(const bf16* t, int64_t stride, int64_t rows, const bf16* b, int64_t rank, float* c) {
  Ahead nothing{};
  in_parts<TALL_PAIRS>(rows, [&](int64_t row, int64_t count) {
    lane_product(t + row * stride, stride, count, b, rank, c + row * WIDTH, nothing);
  });
}
#endif
#endif

template <int ROWS, class W>
static __attribute__((noinline)) void strip_lanes(const float* x, int64_t stride, const W* a, int64_t k, float* c) {
  Floats even[ROWS] = {}, odd[ROWS] = {};
  for (int64_t i = 0; i < k; i += 2) {
    const Floats u = load(a + i * STRIP), v = load(a + (i + 1) * STRIP);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) {
      even[r] += splat(x[r * stride + i]) * u;
      odd[r] += splat(x[r * stride + i + 1]) * v;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; r++) store(c + r * STRIP, even[r] + odd[r]);
}

// Rows of a strip's sums, then of a block's, without pairs.
template <class W>
OCTAVO_INLINE void strip_rows(const float* x, int64_t stride, int64_t rows, const W* a, int64_t k, float* c) {
  constexpr int TALL = HELD / 2;
  in_parts<TALL>(rows, [&](int64_t row, int64_t height) {
    with_count<TALL>(height, [&](auto count) { strip_lanes<count>(x + row * stride, stride, a, k, c + row * STRIP); });
  });
}

template <class W>
OCTAVO_INLINE void block_product(const float* t, int64_t stride, int64_t rows, const W* b, int64_t rank, float* c) {
  Ahead nothing{};
  lane_product(t, stride, rows, b, rank, c, nothing);
}

// Memory to ask for while `steps` steps run.
OCTAVO_INLINE Ahead spread(const void* next, int64_t bytes, int64_t steps) {
  const char* at = static_cast<const char*>(next);
  return Ahead{at, at ? at + bytes : at, static_cast<int>((bytes / 64 + steps - 1) / std::max<int64_t>(1, steps))};
}

}  // namespace octavo
