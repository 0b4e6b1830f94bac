// Output projection, norm of its result, residual.
#include "../linear/rows.h"

using namespace octavo;

extern "C" {

// x float32 [rows, n] += attended [rows, stride], as attention left it, times the projection.
void octavo_attn_out(Engine* engine, float* x, const void* attended, int64_t stride, int64_t rows, const OctavoAttnOut* w) {
  by_dtype(w->proj.dtype, [&](auto sample) {
    using W = decltype(sample);
    const int64_t n = w->proj.n, wide = padded(n);
    float* results = w->after.weight ? engine->results.get<float>(rows * wide) : nullptr;
    engine->team.run([&](const Member& me) {
      int64_t first, last;
      me.share(blocks_of(w->proj), first, last);
      const Act<W>* in = static_cast<const Act<W>*>(attended);
      if (results) {
        multiply<W>(in, stride, rows, w->proj, first, last, nullptr, Keep{results, wide});
        me.barrier();
        add_normed(me, results, wide, w->after, rows, n, x);
      } else {
        multiply<W>(in, stride, rows, w->proj, first, last, nullptr, Add{x, n});
      }
      release_tiles();
    });
  });
}
}
