// Where one token's key and value lie in a pool.
//
// A block holds, for each KV head, 16 keys and then 16 values of `dim` (head_dim padded to 32) numbers. In pairs (bfloat16):
// keys [dim / 2][16][2], values [8][dim][2]: the right factors of their products as tiles and vectors of pairs take them. Otherwise
// keys [dim][16], values [16][dim].
#pragma once
#include "../cpu/abi.h"
#include "../linear/cpu.h"

namespace octavo {

constexpr int PLACES = 16;  // positions of a block

template <class T>
struct Block {
  T* keys;
  T* values;
  int64_t dim;

  static Block at(const OctavoPool& pool, int64_t layer, int64_t block, int64_t head) {
    const int64_t dim = padded(pool.head_dim), half = dim * PLACES;
    T* keys = static_cast<T*>(pool.data) + ((layer * pool.blocks + block) * pool.kv_heads + head) * 2 * half;
    return Block{keys, keys + half, dim};
  }

  // What was in the block before must not reach a product, were it multiplied by zero: it may be NaN.
  void clear() const { memset(keys, 0, 2 * dim * PLACES * sizeof(T)); }

  // key and value: `dim` converted numbers.
  void write(int64_t place, const T* key, const T* value) const {
    if constexpr (Form<T>::pairs) {
      for (int64_t i = 0; i < dim / 2; i++) memcpy(keys + (i * PLACES + place) * 2, key + 2 * i, 2 * sizeof(T));
      for (int64_t i = 0; i < dim; i++) values[(place / 2 * dim + i) * 2 + place % 2] = value[i];
    } else {
      for (int64_t i = 0; i < dim; i++) keys[i * PLACES + place] = key[i];
      memcpy(values + place * dim, value, dim * sizeof(T));
    }
  }

  void read(int64_t place, T* key, T* value) const {
    for (int64_t i = 0; i < dim; i++) {
      key[i] = Form<T>::pairs ? keys[(i / 2 * PLACES + place) * 2 + i % 2] : keys[i * PLACES + place];
      value[i] = Form<T>::pairs ? values[(place / 2 * dim + i) * 2 + place % 2] : values[place * dim + i];
    }
  }
};

}  // namespace octavo
