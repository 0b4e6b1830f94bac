// Packing one module of an adapter.
#include "cpu.h"

using namespace octavo;

namespace {

template <class W>
void pack_a(const W* a, int64_t rank, int64_t k, W* out) {
  const int64_t depth = padded(k), group = Form<W>::pairs ? 2 : 1, whole = stored_rank<W>(rank);
  for (int64_t strip = 0; strip * STRIP < rank; strip++) {
    const int64_t width = std::min<int64_t>(STRIP, whole - strip * STRIP);
    W* to = out + strip * STRIP * depth;
    for (int64_t j = 0; j < std::min<int64_t>(width, rank - strip * STRIP); j++)
      for (int64_t i = 0; i < k; i++) to[(i / group * width + j) * group + i % group] = a[(strip * STRIP + j) * k + i];
  }
}

template <class W>
void pack_b(const W* b, int64_t n, int64_t rank, W* out) {
  const int64_t whole = padded_rank(rank), group = std::is_same<W, bf16>::value ? 2 : 1;
  for (int64_t row = 0; row < n; row++) {
    W* to = out + row / WIDTH * WIDTH * whole;
    for (int64_t i = 0; i < rank; i++) to[(i / group * WIDTH + row % WIDTH) * group + i % group] = b[row * rank + i];
  }
}

}  // namespace

extern "C" {

// Elements of packed a [rank, k] and b [n, rank].
void octavo_lora_sizes(int64_t rank, int64_t k, int64_t n, int64_t dtype, int64_t* a, int64_t* b) {
  by_dtype(dtype, [&](auto sample) {
    *a = stored_rank<decltype(sample)>(rank) * padded(k);
    *b = padded(n) * padded_rank(rank);
  });
}

// Packs into zeroed memory. Any thread may call it.
void octavo_lora_pack(const void* a, const void* b, int64_t rank, int64_t k, int64_t n, int64_t dtype, void* packed_a, void* packed_b) {
  by_dtype(dtype, [&](auto sample) {
    using W = decltype(sample);
    if (a) pack_a(static_cast<const W*>(a), rank, k, static_cast<W*>(packed_a));
    pack_b(static_cast<const W*>(b), n, rank, static_cast<W*>(packed_b));
  });
}
}
