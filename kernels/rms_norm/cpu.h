// RMSNorm of one row, float32; the result in the form that the next op takes.
#pragma once
#include <cmath>

#include "../cpu/abi.h"
#include "../cpu/simd.h"

namespace octavo {

// 1 / root mean square of `size` values.
static __attribute__((noinline)) float inverse_rms(const float* x, int64_t size, double eps) {
  Floats a{}, b{};
  int64_t i = 0;
  for (; i + 2 * LANES <= size; i += 2 * LANES) {
    const Floats u = load(x + i), v = load(x + i + LANES);
    a += u * u;
    b += v * v;
  }
  for (; i < size; i += LANES) {
    const Floats u = load_some(x + i, static_cast<int>(size - i));
    a += u * u;
  }
  return 1.f / std::sqrt(sum(a + b) / static_cast<float>(size) + static_cast<float>(eps));
}

// out[i] = x[i] * weight[i] / rms(x); as it is where there is no norm. Zeros up to `padded` (a multiple of 16).
template <class Out>
static __attribute__((noinline)) void norm_row(const float* x, const OctavoNorm& norm, int64_t size, Out* out, int64_t padded) {
  const float scale = norm.weight ? inverse_rms(x, size, norm.eps) : 1.f;
  int64_t i = 0;
  for (; i < size; i += LANES) {
    const int count = static_cast<int>(size - i < LANES ? size - i : LANES);
    Floats v = load_some(x + i, count);
    if (norm.weight) v = v * scale * load_some(norm.weight + i, count);
    store(out + i, v);
  }
  for (; i < padded; i += LANES) store(out + i, Floats{});
}

}  // namespace octavo
