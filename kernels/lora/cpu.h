// Low-rank adapters of many rows in one product: rows are taken adapter by adapter, so that each adapter is read once.
//
// A module of rank r is stored with r padded to 8 (zeros). `a` [r, k] is cut into strips of 16 outputs, k padded to 32: in
// pairs [strip][k / 2][16][2], the last strip 8 wide where that is enough; otherwise [strip][k][16]. `b` [n, r] is cut into blocks of
// 32 outputs like a weight (linear/cpu.h), but with r inputs. A row's sums run over all of k, then over all of r, in an
// order that depends on the module alone: neither on the rows beside it nor on where the adapter lies.
#pragma once
#include <algorithm>
#include <vector>

#include "../linear/cpu.h"
#include "../prepare/cpu.h"
#include "products.h"

namespace octavo {

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
  std::vector<Target> targets;
  std::vector<int32_t> of;  // part of a group's target, group by group; -1: none
  int64_t stride = 0;  // from one row's shrunk values to the next
  bool complete = true;  // each target of each adapter is there
  bool aligned = true;  // each target begins at a block

  template <size_t N>
  Lora(const Adapted* adapted, int64_t layer, const Target (&wanted)[N]) : rows(adapted ? *adapted : nobody()) {
    if (!rows.any()) return;
    targets.assign(wanted, wanted + N);
    const int64_t width = padded(rows.rank);
    stride = row_stride<bf16>(width * N);
    for (const Target& target : targets) aligned &= target.column % WIDTH == 0;
    for (const Group& group : rows.groups)
      for (size_t i = 0; i < N; i++) {
        const OctavoAdapter& a = *group.adapter;
        const OctavoLora* pair = a.modules + (layer < 0 ? a.layers : layer) * OCTAVO_LORA_MODULES + targets[i].module;
        complete &= pair->rank > 0;
        of.push_back(pair->rank ? parts.size() : -1);
        if (pair->rank) parts.push_back(Part{pair, group.first, group.count, targets[i].column, targets[i].n, (int64_t)i * width});
      }
  }

  bool any() const { return !parts.empty(); }
  size_t room() const { return (rows.rows.size() + HEIGHT) * stride; }
};

// The rows of a part of `x`, one after another: where they lie, or a copy in the thread's own memory.
template <class A>
OCTAVO_INLINE const A* gathered(Scratch& memory, const A* x, int64_t stride, const int64_t* rows, int64_t count) {
  if (rows[count - 1] - rows[0] == count - 1) return x + rows[0] * stride;
  A* copy = memory.template get<A>((count + STRIP) * stride);
  for (int64_t i = 0; i < count; i++) memcpy(copy + i * stride, x + rows[i] * stride, stride * sizeof(A));
  return copy;
}

// A part's shrinking is cut into strips, and each of those into heights of 16 rows.
struct Cut {
  int64_t heights, pieces, cost;

  // The cost of a piece, in about the same unit for all: its share of reading the strip, and its rows' arithmetic.
  template <class W>
  static Cut of(const Part& part) {
    const int64_t heights = (part.count + STRIP - 1) / STRIP, rows = std::min<int64_t>(part.count, STRIP);
    return Cut{heights, heights * ((part.pair->rank + STRIP - 1) / STRIP), 256 / heights + (Form<W>::tiles ? 32 : (Form<W>::pairs ? 8 : 16) * rows)};
  }
};

// One strip of a part for 16 rows from `row` on: t [rows] = scale * sums, and after the last strip zeros up to a whole step of products.
// `x` begins with the part's first row.
template <class W>
OCTAVO_INLINE void shrink_piece(const Part& part, int64_t strip, int64_t row, const Act<W>* x, int64_t x_stride, int64_t k, Act<W>* t,
                                int64_t stride, Ahead& ahead) {
  alignas(64) float c[STRIP * STRIP];
  const int64_t depth = padded(k), count = std::min<int64_t>(STRIP, part.count - row);
  const W* a = static_cast<const W*>(part.pair->a) + strip * STRIP * depth;
  const bool narrow = Form<W>::pairs && padded_rank(part.pair->rank) - strip * STRIP == 8;
  const int width = narrow ? 8 : STRIP;
  const float scale = static_cast<float>(part.pair->scale);
  if constexpr (Form<W>::pairs) strip_product(x + row * x_stride, x_stride, count, a, depth, narrow, c, ahead);
  else strip_rows(x + row * x_stride, x_stride, count, a, depth, c);
  const int64_t rank = padded_rank(part.pair->rank);
  const bool ends = (strip + 1) * STRIP >= rank;
  for (int64_t r = 0; r < count; r++) {
    Act<W>* to = t + (part.first + row + r) * stride + part.at;
    store_some(to + strip * STRIP, load_some(c + r * STRIP, width) * scale, width);
    if (ends) std::fill(to + strip * STRIP + width, to + padded(rank), Act<W>{});
  }
}

// x [rows, k] in the form that products take it -> shrunk values of all parts. The members share the pieces by their cost; nobody may
// use the values before all are through.
template <class W>
OCTAVO_INLINE void shrink(const Member& me, Engine& engine, const Lora& lora, const Act<W>* x, int64_t x_stride, int64_t k) {
  Act<W>* t = engine.shrunk.get<Act<W>>(lora.room());
  const int64_t depth = padded(k);
  int64_t total = 0;
  for (const Part& part : lora.parts) {
    const Cut cut = Cut::of<W>(part);
    total += cut.cost * cut.pieces;
  }
  int64_t from, to, at = 0;
  me.share(total, from, to);
  LoraTiles tiles;
  for (size_t i = 0; i < lora.parts.size() && at < to; i++) {
    const Part& part = lora.parts[i];
    const Cut cut = Cut::of<W>(part);
    // A piece is its whose share holds its beginning.
    const int64_t first = std::clamp<int64_t>((from - at + cut.cost - 1) / cut.cost, 0, cut.pieces);
    const int64_t last = std::clamp<int64_t>((to - at + cut.cost - 1) / cut.cost, 0, cut.pieces);
    at += cut.cost * cut.pieces;
    if (first >= last) continue;
    tiles.shrink(std::min<int64_t>(part.count, STRIP));
    const Act<W>* own = gathered(engine.gathers[me.index], x, x_stride, lora.rows.rows.data() + part.first, part.count);
    const Part* next = i + 1 < lora.parts.size() ? &lora.parts[i + 1] : nullptr;
    const int64_t bytes = next ? stored_rank<W>(next->pair->rank) * depth * sizeof(W) : 0;
    Ahead ahead = spread(next ? next->pair->a : nullptr, bytes, (last - first) * (depth / 32));
    for (int64_t piece = first; piece < last; piece++)
      shrink_piece<W>(part, piece / cut.heights, piece % cut.heights * STRIP, own, x_stride, k, t, lora.stride, ahead);
  }
}

// c [count, 32] of up to 16 rows of a part from place `place` on: what it adds to its outputs of block `block`.
template <class W>
OCTAVO_INLINE void expand_rows(const Act<W>* t, const Lora& lora, const Part& part, int64_t place, int64_t count, int64_t block, float* c) {
  const int64_t rank = padded_rank(part.pair->rank);
  const W* b = static_cast<const W*>(part.pair->b) + block * rank * WIDTH;
  block_product(t + place * lora.stride + part.at, lora.stride, count, b, rank, c);
}

// done(place, count, column, columns, c): what the adapters add to columns `column` .. of `count` rows from place `place` on,
// float32 [count, 32]. share(part, first, last): which blocks of a part's outputs are this thread's.
template <class W, class Share, class Done>
OCTAVO_INLINE void expand(const Act<W>* t, const Lora& lora, const Share& share, const Done& done) {
  alignas(64) float c[STRIP * WIDTH];
  LoraTiles tiles;
  for (const Part& part : lora.parts) {
    int64_t first, last;
    share(part, first, last);
    tiles.expand(std::min<int64_t>(part.count, STRIP), padded_rank(part.pair->rank) % 32);
    for (int64_t block = first; block < last; block++)
      for (int64_t row = 0; row < part.count; row += STRIP) {
        const int64_t count = std::min<int64_t>(STRIP, part.count - row);
        expand_rows<W>(t, lora, part, part.first + row, count, block, c);
        done(part.first + row, count, part.column + block * WIDTH, std::min<int64_t>(WIDTH, part.n - block * WIDTH), c);
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
