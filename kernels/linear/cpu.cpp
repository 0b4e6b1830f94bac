// Packing, and the product alone.
#include "cpu.h"

#include "../rms_norm/cpu.h"
#include "rows.h"

using namespace octavo;

namespace {

template <class W>
void pack_block(const W* weight, int64_t n, int64_t k, int64_t block, W* out) {
  const int64_t depth = padded(k);
  const int64_t group = sizeof(W) == 2 && std::is_same<W, bf16>::value ? 2 : 1;
  const int64_t columns = std::min<int64_t>(WIDTH, n - block * WIDTH);
  for (int64_t c = 0; c < columns; c++)
    for (int64_t i = 0; i < k; i++) out[(i / group * WIDTH + c) * group + i % group] = weight[(block * WIDTH + c) * k + i];
  (void)depth;
}

}  // namespace

extern "C" {

// Packs float32, bfloat16 or float16 [n, k] into `out`, zeroed, of padded(n) * padded(k) elements.
void octavo_pack(Engine* engine, const void* weight, int64_t n, int64_t k, int64_t dtype, void* out) {
  by_dtype(dtype, [&](auto sample) {
    using W = decltype(sample);
    engine->team.run([&](const Member& me) {
      int64_t first, last;
      me.share(padded(n) / WIDTH, first, last);
      for (int64_t block = first; block < last; block++)
        pack_block(static_cast<const W*>(weight), n, k, block, static_cast<W*>(out) + block * padded(k) * WIDTH);
    });
  });
}

// x float32 [rows, k] -> out float32 [rows, padded n].
void octavo_linear(Engine* engine, const float* x, int64_t rows, const OctavoLinear* w, float* out) {
  by_dtype(w->dtype, [&](auto sample) {
    using W = decltype(sample);
    engine->inputs.get<Act<W>>(row_room(rows) * row_stride<Act<W>>(w->k));
    engine->team.run([&](const Member& me) {
      const Rows<W> in = enter<W>(me, *engine, x, rows, OctavoNorm{}, w->k);
      int64_t first, last;
      me.share(blocks_of(*w), first, last);
      multiply<W>(in.data, in.stride, rows, *w, first, last, nullptr, Keep{out, padded(w->n)});
      release_tiles();
    });
  });
}
}
