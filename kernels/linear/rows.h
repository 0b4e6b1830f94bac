// Rows of the residual stream, normed, in the form that products take them.
#pragma once
#include "../rms_norm/cpu.h"
#include "cpu.h"

namespace octavo {

template <class W>
struct Rows {
  const Act<W>* data;
  int64_t stride;
};

constexpr int64_t FEW = 4;  // rows that each thread norms for itself, which costs less than waiting for the others

// x float32 [rows, k]. The caller has made room in engine.inputs; all members call it.
template <class W>
OCTAVO_INLINE Rows<W> enter(const Member& me, Engine& engine, const float* x, int64_t rows, const OctavoNorm& norm, int64_t k) {
  const int64_t stride = row_stride<Act<W>>(k);
  const bool alone = rows <= FEW;
  Act<W>* data = (alone ? engine.own[me.index] : engine.inputs).template get<Act<W>>(row_room(rows) * stride);
  int64_t first = 0, last = rows;
  if (!alone) me.share(rows, first, last);
  for (int64_t row = first; row < last; row++) norm_row(x + row * k, norm, k, data + row * stride, padded(k));
  if (!alone) me.barrier();
  return Rows<W>{data, stride};
}

// x [rows, n] += norm(results [rows, stride]): the members share the rows; all results are there.
OCTAVO_INLINE void add_normed(const Member& me, const float* results, int64_t stride, const OctavoNorm& norm, int64_t rows, int64_t n,
                              float* x) {
  int64_t first, last;
  me.share(rows, first, last);
  for (int64_t row = first; row < last; row++) {
    const float* from = results + row * stride;
    const float scale = inverse_rms(from, n, norm.eps);
    for (int64_t i = 0; i < n; i += LANES) {
      const int count = static_cast<int>(std::min<int64_t>(LANES, n - i));
      float* to = x + row * n + i;
      store_some(to, load_some(to, count) + load_some(from + i, count) * scale * load_some(norm.weight + i, count), count);
    }
  }
}

}  // namespace octavo
