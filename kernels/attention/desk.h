// What a thread works with during a split: rows, scores, and the blocks of keys and values.
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

  // The next `count` lines, so that memory has something to do all along.
  void lines(int count) {
    for (; count > 0; count--, line_ += 64) {
      if (line_ == stop_) {
        if (at_ < now_.last) open(now_.block(at_++));
        else if (coming_ < end_) open(next_.block(coming_++));
        else return;
      }
      prefetch_l2(line_);
    }
  }

  int asked_of_next() const { return coming_ - next_.first; }

 private:
  static constexpr int LEAD = 8;  // blocks that have been asked for before the first is read

  static void ask(const Block<T>& block) {
    const char* at = reinterpret_cast<const char*>(block.keys);
    for (int64_t i = 0; i < 2 * block.dim * PLACES * (int64_t)sizeof(T); i += 64) prefetch_l2(at + i);
  }

  void open(const Block<T>& block) {
    line_ = reinterpret_cast<const char*>(block.keys);
    stop_ = line_ + 2 * block.dim * PLACES * (int64_t)sizeof(T);
  }

  Span<T> now_, next_;
  int at_, coming_, end_;
  const char *line_ = nullptr, *stop_ = nullptr;
};

}  // namespace octavo
