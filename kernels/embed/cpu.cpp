// Embedding lookup.
#include "../linear/cpu.h"

using namespace octavo;

extern "C" {

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
