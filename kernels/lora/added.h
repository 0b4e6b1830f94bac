// What adapters add to a product's sums, before anybody gets these.
//
// Where all rows of a step of products are of one adapter, and its rank fits one step of tiles, it goes into the tiles that gather the sums:
// one step more. Other rows get theirs block by block: worked out in memory first, added when the sums are handed on. Both give the same
// bits: an instruction of tiles sums its 32 products apart, and adds them to what the tile holds.
#pragma once
#include "cpu.h"

namespace octavo {

static_assert(ALIKE == HEIGHT);

OCTAVO_INLINE void prefetch_all(const void* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) prefetch_l2(static_cast<const char*>(from) + i);
}

// Of one op whose every part begins at a block. All members have shrunk.
template <class W>
class Deltas {
 public:
  // With a bias, which comes between the sums and what adapters add, nothing goes into the tiles.
  Deltas(Engine& engine, const Lora& lora, bool biased)
      : lora_(lora), t_(engine.shrunk.get<Act<W>>(lora.room())), inside_(Form<W>::tiles && !biased) {}

  bool fills() const { return !inside_ || lora_.rows.loose_before.back(); }
  size_t room() const { return lora_.rows.rows.size() * WIDTH; }

  // Works out block `block` of the op's outputs in memory that the calling thread owns, float32 [places, 32]: what does not go into the
  // tiles. The thread does block + 1 next, if `more`.
  void fill(float* memory, int64_t block, bool begins, bool more) {
    data_ = memory;
    tiles_ = LoraTiles();  // others may have configured them
    const int64_t places = lora_.rows.rows.size();
    if (!lora_.complete) memset(memory, 0, places * WIDTH * sizeof(float));
    for (size_t i = 0; i < lora_.parts.size(); i++) {
      const Part& part = lora_.parts[i];
      const int64_t own = block - part.column / WIDTH;
      if (own < 0 || own * WIDTH >= part.n || !loose(part.first, part.count)) continue;
      const int64_t rank = padded_rank(part.pair->rank), bytes = rank * WIDTH * sizeof(W);
      const W* b = static_cast<const W*>(part.pair->b) + own * rank * WIDTH;
      if (begins && i + SOON < lora_.parts.size()) ask(lora_.parts[i + SOON], block);
      if (more) prefetch_all(b + rank * WIDTH, bytes);  // harmless beyond the part's last block
      tiles_.expand(std::min<int64_t>(part.count, STRIP), rank % 32);
      fill_part(memory, part, own);
    }
  }

  // What goes into the tiles for the step of rows that begins with `row`.
  Plus plus(int64_t row, int64_t block) const {
    if constexpr (Form<W>::tiles) {
      const int32_t group = inside_ ? lora_.rows.whole[row / ALIKE] : -1;
      if (group < 0) return Plus{};
      const int64_t count = lora_.targets.size();
      for (int64_t i = 0; i < count; i++) {
        const Target& target = lora_.targets[i];
        const int64_t own = block - target.column / WIDTH;
        if (own < 0 || own * WIDTH >= target.n) continue;
        const int32_t number = lora_.of[group * count + i];
        if (number < 0) break;
        const Part& part = lora_.parts[number];
        const W* b = static_cast<const W*>(part.pair->b) + own * padded_rank(part.pair->rank) * WIDTH;
        return Plus{t_ + lora_.rows.place[row] * lora_.stride + part.at, lora_.stride, b};
      }
    }
    return Plus{};
  }

  // What `fill` has for a row, or null.
  const float* of(int64_t row) const {
    const int64_t place = (inside_ ? lora_.rows.loose : lora_.rows.place)[row];
    return place < 0 ? nullptr : data_ + place * WIDTH;
  }

 private:
  static constexpr size_t SOON = 6;  // parts ahead

  bool loose(int64_t place, int64_t count) const {
    const std::vector<int32_t>& before = lora_.rows.loose_before;
    return !inside_ || before[place + count] > before[place];
  }

  void fill_part(float* memory, const Part& part, int64_t own) {
    for (int64_t row = 0; row < part.count; row += STRIP) {
      // The last tile is a whole one as well, some of its rows worked out again: it must not reach beyond the part's places.
      const int64_t from = part.count < STRIP ? 0 : std::min(row, part.count - STRIP), count = std::min<int64_t>(part.count, STRIP);
      const int64_t place = part.first + from;
      if (loose(place, count)) expand_rows<W>(t_, lora_, part, place, count, own, memory + place * WIDTH);
    }
  }

  static void ask(const Part& part, int64_t block) {
    const int64_t own = block - part.column / WIDTH, rank = padded_rank(part.pair->rank);
    if (own >= 0 && own * WIDTH < part.n) prefetch_all(static_cast<const W*>(part.pair->b) + own * rank * WIDTH, rank * WIDTH * sizeof(W));
  }

  const Lora& lora_;
  const Act<W>* t_;
  const bool inside_;
  float* data_ = nullptr;
  LoraTiles tiles_;
};

// sum [32] = c + `more`, or c itself where there is none.
OCTAVO_INLINE const float* with(const float* c, const float* more, float* sum) {
  if (!more) return c;
  store(sum, load(c) + load(more));
  store(sum + LANES, load(c + LANES) + load(more + LANES));
  return sum;
}

// What `multiply` takes for one product, and for the two of multiply_pairs.
template <class W>
struct Extra {
  static constexpr bool PLUS = Form<W>::tiles;
  Deltas<W>& deltas;
  float* memory;
  bool begins = true;

  bool fills() const { return deltas.fills(); }
  void fill(int64_t block, bool more) {
    deltas.fill(memory, block, begins, more);
    begins = false;
  }
  Plus plus(int64_t row, int64_t block) const { return deltas.plus(row, block); }
};

template <class W>
struct ExtraPairs {
  static constexpr bool PLUS = Form<W>::tiles;
  Deltas<W>&here, &there;
  float* memory;
  int64_t apart;
  bool begins = true;

  bool fills() const { return here.fills(); }
  void fill(int64_t block, bool more) {
    here.fill(memory, block, begins, more);
    there.fill(memory + here.room(), block + apart, begins, more);
    begins = false;
  }
  Plus plus(int64_t row, int64_t block) const { return here.plus(row, block); }
};

// `done` with what adapters add.
template <class W, class Done>
struct Adding {
  const Deltas<W>& deltas;
  const Done& done;

  void one(int64_t row, int64_t block, const float* c) const {
    alignas(64) float sum[WIDTH];
    done.one(row, block, with(c, deltas.of(row), sum));
  }
};

template <class W, class Done>
struct AddingPairs {
  const Deltas<W>&here, &there;
  const Done& done;

  void one(int64_t row, int64_t block, const float* c, const float* d) const {
    alignas(64) float sum[WIDTH], other[WIDTH];
    done.one(row, block, with(c, here.of(row), sum), with(d, there.of(row), other));
  }
};

// `multiply` with what adapters add.
template <class W, class Done>
OCTAVO_INLINE void multiply_adapted(const Member& me, Engine& engine, const Lora& lora, const Act<W>* a, int64_t stride, int64_t rows,
                                    const OctavoLinear& w, int64_t first, int64_t last, const Done& done) {
  Deltas<W> deltas(engine, lora, w.bias);
  Extra<W> extra{deltas, engine.gathers[me.index].template get<float>(deltas.room())};
  multiply<W>(a, stride, rows, w, first, last, nullptr, Adding<W, Done>{deltas, done}, extra);
}

// `multiply_pairs` with what adapters add to both.
template <class W, class Done>
OCTAVO_INLINE void multiply_pairs_adapted(const Member& me, Engine& engine, const Lora& lora, const Act<W>* a, int64_t stride, int64_t rows,
                                          const OctavoLinear& w, int64_t apart, int64_t first, int64_t last, const Done& done) {
  Deltas<W> here(engine, lora, w.bias), there(engine, lora, w.bias);
  ExtraPairs<W> extra{here, there, engine.gathers[me.index].template get<float>(2 * here.room()), apart};
  multiply_pairs<W>(a, stride, rows, w, apart, first, last, nullptr, AddingPairs<W, Done>{here, there, done}, extra);
}

// Where a projection back to the residual stream goes: x [rows, n] += it, or results [rows, padded n] where there are any.
struct Out {
  float *results, *x;
  int64_t n;

  void one(int64_t row, int64_t block, const float* c) const {
    if (results) Keep{results, padded(n)}.one(row, block, c);
    else Add{x, n}.one(row, block, c);
  }
  void operator()(int64_t row, int64_t rows, int64_t block, const float* c) const {
    for (int64_t r = 0; r < rows; r++) one(row + r, block, c + r * WIDTH);
  }
};

template <class W>
OCTAVO_INLINE void multiply_out(const Member& me, Engine& engine, const Lora& lora, const Act<W>* a, int64_t stride, int64_t rows,
                                const OctavoLinear& w, int64_t first, int64_t last, float* results, float* x) {
  const Out out{results, x, w.n};
  if (lora.any()) multiply_adapted<W>(me, engine, lora, a, stride, rows, w, first, last, out);
  else if (results) multiply<W>(a, stride, rows, w, first, last, nullptr, Keep{results, padded(w.n)});
  else multiply<W>(a, stride, rows, w, first, last, nullptr, Add{x, w.n});
}

}  // namespace octavo
