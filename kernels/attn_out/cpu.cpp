// Output projection, norm of its result, residual.
#include "../linear/rows.h"
#include "../lora/added.h"

using namespace octavo;

extern "C" {

// x float32 [rows, n] += attended [rows, stride], as attention left it, times the projection. `adapted` null: no adapters.
void octavo_attn_out(Engine* engine, float* x, const void* attended, int64_t stride, int64_t rows, const OctavoAttnOut* w,
                     const Adapted* adapted, int64_t layer) {
  by_dtype(w->proj.dtype, [&](auto sample) {
    using W = decltype(sample);
    const int64_t n = w->proj.n, wide = padded(n);
    float* results = w->after.weight ? engine->results.get<float>(rows * wide) : nullptr;
    const Target targets[] = {{OCTAVO_LORA_O, 0, n}};
    const Lora lora(adapted, layer, targets);
    if (lora.any()) engine->shrunk.get<Act<W>>(lora.room());
    engine->team.run([&](const Member& me) {
      int64_t first, last;
      me.share(blocks_of(w->proj), first, last);
      const Act<W>* in = static_cast<const Act<W>*>(attended);
      if (lora.any()) shrink<W>(me, *engine, lora, in, stride, w->proj.k);
      if (lora.any()) me.barrier();
      multiply_out<W>(me, *engine, lora, in, stride, rows, w->proj, first, last, results, x);
      if (results) {
        me.barrier();
        add_normed(me, results, wide, w->after, rows, n, x);
      }
      release_tiles();
    });
  });
}
}
