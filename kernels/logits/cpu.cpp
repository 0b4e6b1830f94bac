// Final norm and head, for some rows alone.
#include "../linear/rows.h"
#include "../lora/cpu.h"

using namespace octavo;

namespace {

// Logits to [rows, n]; the last block may be partly padding.
struct Logits {
  float* out;
  int64_t n;
  float softcap;

  void operator()(int64_t row, int64_t rows, int64_t block, const float* c) const {
    const int columns = static_cast<int>(std::min<int64_t>(WIDTH, n - block * WIDTH));
    for (int64_t r = 0; r < rows; r++)
      for (int i = 0; i < columns; i += LANES) {
        Floats v = load(c + r * WIDTH + i);
        if (softcap > 0) v = softcap * tanh(v / softcap);
        store_some(out + (row + r) * n + block * WIDTH + i, v, std::min(LANES, columns - i));
      }
  }
};

// A share of out [rows, n], capped.
void cap(const Member& me, float* out, int64_t rows, int64_t n, float softcap) {
  int64_t first, last;
  me.share(rows, first, last);
  for (int64_t i = first * n; i < last * n; i += LANES) {
    const int some = static_cast<int>(std::min<int64_t>(LANES, last * n - i));
    store_some(out + i, softcap * tanh(load_some(out + i, some) / softcap), some);
  }
}

}  // namespace

extern "C" {

// x float32 [tokens, hidden], rows int64 [count] -> out float32 [count, vocabulary]. `adapted`, of the tokens, null: no adapters.
void octavo_logits(Engine* engine, const float* x, const int64_t* rows, int64_t count, const OctavoHead* w, const Adapted* adapted,
                   float* out) {
  by_dtype(w->proj.dtype, [&](auto sample) {
    using W = decltype(sample);
    const int64_t k = w->proj.k, stride = row_stride<Act<W>>(k);
    Act<W>* in = engine->inputs.get<Act<W>>(row_room(count) * stride);
    const auto norm = [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; i++) norm_row(x + rows[i] * k, w->norm, k, in + i * stride, padded(k));
    };
    if (count <= FEW) norm(0, count);
    const Target targets[] = {{LORA_HEAD, 0, w->proj.n}};
    const Adapted chosen = adapted ? choose(*adapted, rows, count) : Adapted{};
    const Lora lora(&chosen, -1, targets);
    if (lora.any()) engine->shrunk.get<Act<W>>(lora.room());
    const float softcap = static_cast<float>(w->softcap);
    const Settled settled(engine->team);
    engine->team.run([&](const Member& me) {
      int64_t first, last;
      if (count > FEW) {
        me.share(count, first, last);
        norm(first, last);
        me.barrier();
      }
      me.share(blocks_of(w->proj), first, last);
      if (lora.any()) shrink<W>(me, *engine, lora, in, stride, k);
      multiply<W>(in, stride, count, w->proj, first, last, nullptr, Logits{out, w->proj.n, lora.any() ? 0.f : softcap});
      if (lora.any()) {
        me.barrier();
        add_adapters<W>(me, *engine, lora, out, w->proj.n);
        if (softcap > 0) {
          me.barrier();
          cap(me, out, count, w->proj.n, softcap);
        }
      }
      release_tiles();
    });
  });
}
}
