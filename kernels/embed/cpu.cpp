// Embedding lookup.
#include "../lora/cpu.h"

using namespace octavo;

extern "C" {

// out [rows, hidden] += scale * what adapters add. `a` of this module is a table [vocabulary, padded rank], not packed.
void octavo_embed_adapted(Engine* engine, const int64_t* tokens, int64_t dtype, int64_t hidden, double scale, const Adapted* adapted, float* out) {
  by_dtype(dtype, [&](auto sample) {
    using T = decltype(sample);
    const Target targets[] = {{LORA_EMBED, 0, hidden}};
    const Lora lora(adapted, -1, targets);
    if (!lora.any()) return;
    Act<T>* t = engine->shrunk.get<Act<T>>(lora.room());
    for (const Part& part : lora.parts) {
      const int64_t rank = padded_rank(part.pair->rank);
      for (int64_t place = part.first; place < part.first + part.count; place++) {
        const T* from = static_cast<const T*>(part.pair->a) + tokens[lora.rows.rows[place]] * rank;
        for (int64_t i = 0; i < rank; i += 8) store_some(t + place * lora.stride + i, load_some(from + i, 8) * (float)(part.pair->scale * scale), 8);
      }
    }
    const auto all = [](const Part& part, int64_t& first, int64_t& last) { first = 0, last = padded(part.n) / WIDTH; };
    expand<T>(t, lora, all, AddTo{lora.rows, out, hidden});
    release_tiles();
  });
}

// tokens int64 [rows], table [vocabulary, hidden] of `dtype` -> out float32 [rows, hidden], times `scale`.
void octavo_embed(const int64_t* tokens, int64_t rows, const void* table, int64_t dtype, int64_t hidden, double scale, float* out) {
  by_dtype(dtype, [&](auto sample) {
    using T = decltype(sample);
    for (int64_t row = 0; row < rows; row++) {
      const T* from = static_cast<const T*>(table) + tokens[row] * hidden;
      for (int64_t i = 0; i < hidden; i += LANES) {
        const int count = static_cast<int>(std::min<int64_t>(LANES, hidden - i));
        store_some(out + row * hidden + i, load_some(from + i, count) * (float)scale, count);
      }
    }
  });
}
}
