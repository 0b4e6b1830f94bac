// Low-rank adapters of many rows in one product: rows are taken adapter by adapter, so that each adapter is read once.
//
// A module of rank r is stored with r padded to 8 (zeros). `a` [r, k] is cut into strips of 16 outputs, k padded to 32: with
// tiles [strip][k / 2][16][2], the last strip 8 wide where that is enough; otherwise [strip][k][16]. `b` [n, r] is cut into blocks of
// 32 outputs like a weight (linear/cpu.h), but with r inputs. A row's sums run over all of k, then over all of r, in an
// order that depends on the module alone: neither on the rows beside it nor on where the adapter lies.
#pragma once
#include <algorithm>
#include <vector>

#include "../linear/cpu.h"
#include "../prepare/cpu.h"

namespace octavo {

constexpr int STRIP = 16;  // outputs of `a` that are summed together

OCTAVO_INLINE int64_t padded_rank(int64_t rank) { return (rank + 7) / 8 * 8; }
template <class W>
OCTAVO_INLINE int64_t stored_rank(int64_t rank) {
  return Form<W>::tiles ? padded_rank(rank) : (rank + STRIP - 1) / STRIP * STRIP;
}

// Which module adds to which columns of an op's result.
struct Target {
  int64_t module, column, n;
};

// One module of one adapter, and its rows.
struct Part {
  const OctavoLora* pair;
  int64_t first, count;  // places of its rows
  int64_t column, n;
  int64_t at;  // where a row's shrunk values begin
};

constexpr int64_t LORA_HEAD = 0, LORA_EMBED = 1;  // modules of "layer" -1

// The rows rows[0] .. rows[count - 1] of a step, numbered anew.
inline Adapted choose(const Adapted& step, const int64_t* rows, int64_t count) {
  Adapted chosen;
  chosen.rank = step.rank;
  for (const Group& group : step.groups) {
    const int64_t first = chosen.rows.size();
    for (int64_t i = 0; i < count; i++) {
      const int64_t place = step.place[rows[i]];
      if (place >= group.first && place < group.first + group.count) chosen.rows.push_back(i);
    }
    const int64_t found = chosen.rows.size() - first;
    if (found) chosen.groups.push_back(Group{group.adapter, first, found});
  }
  return chosen;
}

inline const Adapted& nobody() {
  static const Adapted none;
  return none;
}

// What one op does with the adapters of its rows.
struct Lora {
  const Adapted& rows;
  std::vector<Part> parts;
  int64_t stride = 0;  // from one row's shrunk values to the next

  template <size_t N>
  Lora(const Adapted* adapted, int64_t layer, const Target (&targets)[N]) : rows(adapted ? *adapted : nobody()) {
    const int64_t width = padded(rows.rank);
    stride = row_stride<bf16>(width * N);
    for (const Group& group : rows.groups)
      for (size_t i = 0; i < N; i++) {
        const OctavoAdapter& a = *group.adapter;
        const OctavoLora* pair = a.modules + (layer < 0 ? a.layers : layer) * OCTAVO_LORA_MODULES + targets[i].module;
        if (pair->rank) parts.push_back(Part{pair, group.first, group.count, targets[i].column, targets[i].n, (int64_t)i * width});
      }
  }

  bool any() const { return !parts.empty(); }
  // Whether each target of each adapter is there.
  bool complete(size_t targets) const { return parts.size() == targets * rows.groups.size(); }
  size_t room() const { return (rows.rows.size() + STRIP) * stride; }
};

#if OCTAVO_TILES
// Tile 0 gathers sums, 2 holds rows, 3 weights; 1 and 4 are half as wide, for strips of 8; 5 holds 32 shrunk values, 6 and 7
// those of the last `tail` and their weights. All for up to `rows` rows.
class LoraTiles {
 public:
  void set(int64_t rows, int64_t tail) {
    if (rows == rows_ && tail == tail_) return;
    rows_ = rows;
    tail_ = tail;
    struct alignas(64) {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    const int64_t last = tail ? tail : 8;
    const uint16_t bytes[8] = {64, 32, 64, 64, 32, 64, (uint16_t)(2 * last), 64};
    const int64_t heights[8] = {rows, rows, rows, 16, 16, rows, rows, last / 2};
    for (int i = 0; i < 8; i++) {
      config.bytes[i] = bytes[i];
      config.rows[i] = (uint8_t)heights[i];
    }
    asm volatile("ldtilecfg %0" : : "m"(config) : "memory");  // see cpu/amx.h
  }

 private:
  int64_t rows_ = 0, tail_ = -1;
};

// c [rows, 16] = x [rows, k] times a strip; `narrow`: the strip is 8 wide, and so is c.
OCTAVO_INLINE void strip_product(const bf16* x, int64_t stride, const bf16* a, int64_t k, bool narrow, float* c, Ahead& ahead) {
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
  for (int half = 0; half < 2; half++) {
    _tile_zero(0);
    for (int64_t i = 0; i < whole; i += 32) {
      _tile_loadd(5, t + i, bytes);
      _tile_loadd(3, b + i * WIDTH + half * 32, 128);
      _tile_dpbf16ps(0, 5, 3);
    }
    if (whole < rank) {
      _tile_loadd(6, t + whole, bytes);
      _tile_loadd(7, b + whole * WIDTH + half * 32, 128);
      _tile_dpbf16ps(0, 6, 7);
    }
    _tile_stored(0, c + half * 16, 4 * WIDTH);
  }
  stored();
}
#else
struct LoraTiles {
  void set(int64_t, int64_t) {}
};
#endif

template <int ROWS, class W>
static __attribute__((noinline)) void strip_lanes(const float* x, int64_t stride, const W* a, int64_t k, float* c) {
  Floats even[ROWS] = {}, odd[ROWS] = {};
  for (int64_t i = 0; i < k; i += 2) {
    const Floats u = load(a + i * STRIP), v = load(a + (i + 1) * STRIP);
    for (int r = 0; r < ROWS; r++) {
      even[r] += splat(x[r * stride + i]) * u;
      odd[r] += splat(x[r * stride + i + 1]) * v;
    }
  }
  for (int r = 0; r < ROWS; r++) store(c + r * STRIP, even[r] + odd[r]);
}

// Rows of a strip's sums, then of a block's, without tiles.
template <class W>
OCTAVO_INLINE void strip_rows(const float* x, int64_t stride, int64_t rows, const W* a, int64_t k, float* c) {
  int64_t r = 0;
  for (; r + TALL_LANES <= rows; r += TALL_LANES) strip_lanes<TALL_LANES>(x + r * stride, stride, a, k, c + r * STRIP);
  for (; r < rows; r++) strip_lanes<1>(x + r * stride, stride, a, k, c + r * STRIP);
}

template <class W>
OCTAVO_INLINE void block_product(const float* t, int64_t stride, int64_t rows, const W* b, int64_t rank, float* c) {
  int64_t r = 0;
  for (; r + TALL_LANES <= rows; r += TALL_LANES) lanes<TALL_LANES>(t + r * stride, stride, b, rank, c + r * WIDTH);
  for (; r < rows; r++) lanes<1>(t + r * stride, stride, b, rank, c + r * WIDTH);
}

// Memory to ask for while `steps` steps run.
OCTAVO_INLINE Ahead spread(const void* next, int64_t bytes, int64_t steps) {
  const char* at = static_cast<const char*>(next);
  return Ahead{at, at ? at + bytes : at, static_cast<int>((bytes / 64 + steps - 1) / std::max<int64_t>(1, steps))};
}

// The rows of a part of `x`, one after another: where they lie, or a copy in the thread's own memory.
template <class A>
OCTAVO_INLINE const A* gathered(Scratch& memory, const A* x, int64_t stride, const int64_t* rows, int64_t count) {
  if (rows[count - 1] - rows[0] == count - 1) return x + rows[0] * stride;
  A* copy = memory.template get<A>((count + STRIP) * stride);
  for (int64_t i = 0; i < count; i++) memcpy(copy + i * stride, x + rows[i] * stride, stride * sizeof(A));
  return copy;
}

// What a strip of a part costs, in about the same unit for all: reading it, and the rows' arithmetic.
template <class W>
OCTAVO_INLINE int64_t strip_cost(const Part& part) {
  return Form<W>::tiles ? 16 + 2 * ((part.count + 15) / 16) : 16 + part.count;
}

// One strip of one part for all its rows: t [rows] = scale * sums.
template <class W>
OCTAVO_INLINE void shrink_strip(const Part& part, int64_t strip, const Act<W>* x, int64_t x_stride, int64_t k, Act<W>* t, int64_t stride,
                                Ahead& ahead) {
  alignas(64) float c[STRIP * STRIP];
  const int64_t depth = padded(k);
  const W* a = static_cast<const W*>(part.pair->a) + strip * STRIP * depth;
  const bool narrow = Form<W>::tiles && padded_rank(part.pair->rank) - strip * STRIP == 8;
  const int width = narrow ? 8 : STRIP;
  const float scale = static_cast<float>(part.pair->scale);
  for (int64_t row = 0; row < part.count; row += STRIP) {
    const int64_t count = std::min<int64_t>(STRIP, part.count - row);
#if OCTAVO_TILES
    if constexpr (Form<W>::tiles) strip_product(x + row * x_stride, x_stride, a, depth, narrow, c, ahead);
    else strip_rows(x + row * x_stride, x_stride, count, a, depth, c);
#else
    strip_rows(x + row * x_stride, x_stride, count, a, depth, c);
#endif
    for (int64_t r = 0; r < count; r++)
      store_some(t + (part.first + row + r) * stride + part.at + strip * STRIP, load_some(c + r * STRIP, width) * scale, width);
  }
}

// x [rows, k] in the form that products take it -> shrunk values of all parts. The members share the strips by their cost;
// nobody may use the values before all are through.
template <class W>
OCTAVO_INLINE void shrink(const Member& me, Engine& engine, const Lora& lora, const Act<W>* x, int64_t x_stride, int64_t k) {
  Act<W>* t = engine.shrunk.get<Act<W>>(lora.room());
  const int64_t depth = padded(k);
  int64_t total = 0;
  for (const Part& part : lora.parts) total += strip_cost<W>(part) * ((part.pair->rank + STRIP - 1) / STRIP);
  int64_t from, to, at = 0;
  me.share(total, from, to);
  LoraTiles tiles;
  for (size_t i = 0; i < lora.parts.size() && at < to; i++) {
    const Part& part = lora.parts[i];
    const int64_t strips = (part.pair->rank + STRIP - 1) / STRIP, cost = strip_cost<W>(part);
    // A strip is its whose share holds its beginning.
    const int64_t first = std::clamp<int64_t>((from - at + cost - 1) / cost, 0, strips);
    const int64_t last = std::clamp<int64_t>((to - at + cost - 1) / cost, 0, strips);
    at += strips * cost;
    if (first >= last) continue;
    const int64_t rank = padded_rank(part.pair->rank);
    tiles.set(std::min<int64_t>(part.count, STRIP), rank % 32);
    const Act<W>* own = gathered(engine.gathers[me.index], x, x_stride, lora.rows.rows.data() + part.first, part.count);
    const Part* next = i + 1 < lora.parts.size() ? &lora.parts[i + 1] : nullptr;
    const int64_t bytes = next ? stored_rank<W>(next->pair->rank) * depth * sizeof(W) : 0;
    Ahead ahead = spread(next ? next->pair->a : nullptr, bytes, (last - first) * (depth / 32));
    for (int64_t strip = first; strip < last; strip++) shrink_strip<W>(part, strip, own, x_stride, k, t, lora.stride, ahead);
  }
}

// done(place, count, column, columns, c): what the adapters add to columns `column` .. of `count` rows from place `place` on,
// float32 [count, 32]. share(n, first, last): which blocks of a part's n outputs are this thread's.
template <class W, class Share, class Done>
OCTAVO_INLINE void expand(const Act<W>* t, const Lora& lora, const Share& share, const Done& done) {
  alignas(64) float c[STRIP * WIDTH];
  LoraTiles tiles;
  for (size_t i = 0; i < lora.parts.size(); i++) {
    const Part& part = lora.parts[i];
    const int64_t rank = padded_rank(part.pair->rank);
    int64_t first, last;
    share(part, first, last);
    if (first >= last) continue;
    tiles.set(std::min<int64_t>(part.count, STRIP), rank % 32);
    Ahead ahead{};
    if (i + 1 < lora.parts.size()) {
      const Part& next = lora.parts[i + 1];
      int64_t begin, end;
      share(next, begin, end);
      const int64_t size = padded_rank(next.pair->rank) * WIDTH;
      if (begin < end) ahead = spread(static_cast<const W*>(next.pair->b) + begin * size, (end - begin) * size * sizeof(W), last - first);
    }
    for (int64_t block = first; block < last; block++) {
      const W* b = static_cast<const W*>(part.pair->b) + block * rank * WIDTH;
      ahead.step();
      for (int64_t row = 0; row < part.count; row += STRIP) {
        const int64_t count = std::min<int64_t>(STRIP, part.count - row);
        block_product(t + (part.first + row) * lora.stride + part.at, lora.stride, count, b, rank, c);
        done(part.first + row, count, part.column + block * WIDTH, std::min<int64_t>(WIDTH, part.n - block * WIDTH), c);
      }
    }
  }
}

// An even share of each part's blocks.
struct Evenly {
  const Member& me;
  void operator()(const Part& part, int64_t& first, int64_t& last) const { me.share(padded(part.n) / WIDTH, first, last); }
};

// out [rows, stride] += what the adapters add.
struct AddTo {
  const Adapted& rows;
  float* out;
  int64_t stride;

  void operator()(int64_t place, int64_t count, int64_t column, int64_t columns, const float* c) const {
    for (int64_t r = 0; r < count; r++) {
      float* to = out + rows.rows[place + r] * stride + column;
      for (int64_t i = 0; i < columns; i += LANES) {
        const int some = static_cast<int>(std::min<int64_t>(LANES, columns - i));
        store_some(to + i, load_some(to + i, some) + load(c + r * WIDTH + i), some);
      }
    }
  }
};

// The rest of an op whose result is out [rows, stride]: call it when all members have shrunk and multiplied.
template <class W>
OCTAVO_INLINE void add_adapters(const Member& me, Engine& engine, const Lora& lora, float* out, int64_t stride) {
  expand<W>(engine.shrunk.get<Act<W>>(lora.room()), lora, Evenly{me}, AddTo{lora.rows, out, stride});
}

}  // namespace octavo
