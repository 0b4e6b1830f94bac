// Sixteen float32 lanes on any machine: what is done with them, by intrinsics only where the compiler's vectors have no word for it.
#pragma once
#include "lanes.h"

namespace octavo {

// Storage formats. Arithmetic is float32 throughout.
struct bf16 { uint16_t bits; };
struct fp16 { uint16_t bits; };

OCTAVO_INLINE Floats splat(float x) { return x - Floats{}; }
OCTAVO_INLINE Floats as_floats(Words w) { return (Floats)w; }
OCTAVO_INLINE Words as_words(Floats f) { return (Words)f; }
OCTAVO_INLINE Floats select(Ints mask, Floats yes, Floats no) {
#if defined(__AVX512F__)
  return (Floats)(((Ints)yes & mask) | ((Ints)no & ~mask));
#else
  return by_parts([](auto m, auto y, auto n) { return m ? y : n; }, mask, yes, no);
#endif
}
// b where a is NaN.
OCTAVO_INLINE Floats vmax(Floats a, Floats b) {
#if defined(__AVX512F__)
  return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return by_parts([](auto x, auto y) { return (decltype(x))_mm256_max_ps((__m256)x, (__m256)y); }, a, b);
#else
  return select(a > b, a, b);
#endif
}
OCTAVO_INLINE Floats vmin(Floats a, Floats b) { return select(a < b, a, b); }
OCTAVO_INLINE Ints lane_numbers() {
  static constexpr int32_t NUMBERS[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return get<Ints>(NUMBERS);
}

// Words from numbers of half their size, and their lower halves back.
template <class V>
OCTAVO_INLINE V from_halves(const void* p) {
  if constexpr (is_parts<V>) {
    using Part = decltype(V::low);
    return V{from_halves<Part>(p), from_halves<Part>((const char*)p + sizeof(Part) / 2)};
  } else {
    typedef uint16_t Halves __attribute__((vector_size(sizeof(V) / 2)));
    Halves h;
    memcpy(&h, p, sizeof h);
    return __builtin_convertvector(h, V);
  }
}
template <class V>
OCTAVO_INLINE void to_halves(void* p, V v) {
  if constexpr (is_parts<V>) {
    to_halves(p, v.low);
    to_halves((char*)p + sizeof(V) / 4, v.high);
  } else {
    typedef uint16_t Halves __attribute__((vector_size(sizeof(V) / 2)));
    const Halves h = __builtin_convertvector(v, Halves);
    memcpy(p, &h, sizeof h);
  }
}

OCTAVO_INLINE Floats load(const float* p) { return get<Floats>(p); }
OCTAVO_INLINE void store(float* p, Floats v) { put(p, v); }

OCTAVO_INLINE Floats load(const bf16* p) { return as_floats(from_halves<Words>(p) << 16); }

// Rounds to nearest, ties to even; a NaN stays one.
OCTAVO_INLINE void store(bf16* p, Floats v) {
#if defined(__AVX512BF16__)
  __m256bh h = _mm512_cvtneps_pbh((__m512)v);
  memcpy(p, &h, sizeof h);
#else
  const Words w = as_words(v);
  const Words rounded = (w + 0x7fffu + ((w >> 16) & 1u)) >> 16;
  const Words quiet = (w >> 16) | 0x40u;
  const Words nan = (Words)(v != v);
  to_halves(p, (rounded & ~nan) | (quiet & nan));
#endif
}

OCTAVO_INLINE Floats load(const fp16* p) {
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__F16C__)
  return Floats{_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
#else
  float v[LANES];
  for (int i = 0; i < LANES; i++) {
    _Float16 h;
    memcpy(&h, p + i, sizeof h);
    v[i] = (float)h;
  }
  return load(v);
#endif
}

OCTAVO_INLINE void store(fp16* p, Floats v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph((__m256)v.low, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph((__m256)v.high, _MM_FROUND_TO_NEAREST_INT));
#else
  float from[LANES];
  store(from, v);
  for (int i = 0; i < LANES; i++) {
    const _Float16 h = (_Float16)from[i];
    memcpy(p + i, &h, sizeof h);
  }
#endif
}

// The first `count` (1 to 16) values, zeros after them.
template <class T>
OCTAVO_INLINE Floats load_some(const T* p, int count) {
  if (count >= LANES) return load(p);
  alignas(64) T buffer[LANES] = {};
  memcpy(buffer, p, count * sizeof(T));
  return load(buffer);
}

template <class T>
OCTAVO_INLINE void store_some(T* p, Floats v, int count) {
  if (count >= LANES) return store(p, v);
  alignas(64) T buffer[LANES];
  store(buffer, v);
  memcpy(p, buffer, count * sizeof(T));
}

// Halves added until one is left: the same order however it is done.
OCTAVO_INLINE float sum(Floats v) {
#if defined(__AVX2__)
#if defined(__AVX512DQ__)
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1));
#else
  const __m256 eight = (__m256)(v.low + v.high);
#endif
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
  float a[LANES];
  store(a, v);
  for (int step = LANES / 2; step; step /= 2)
    for (int i = 0; i < step; i++) a[i] += a[i + step];
  return a[0];
#endif
}

OCTAVO_INLINE float largest(Floats v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float a[LANES];
  store(a, v);
  float top = a[0];
  for (int i = 1; i < LANES; i++) top = a[i] > top ? a[i] : top;
  return top;
#endif
}

// 2^f on [-1/2, 1/2] by a polynomial of degree 6 (relative error about 1e-7).
OCTAVO_INLINE Floats exp2_fraction(Floats f) {
  Floats p = splat(1.5403530393381608e-4f);
  p = p * f + 1.3333558146428443e-3f;
  p = p * f + 9.6181291076284772e-3f;
  p = p * f + 5.5504108664821580e-2f;
  p = p * f + 2.4022650695910072e-1f;
  p = p * f + 6.9314718055994531e-1f;
  return p * f + 1.f;
}

// 2^t: zero below -126 (or a denormal), infinite from 128 on; NaN stays NaN.
OCTAVO_INLINE Floats exp2(Floats t) {
#if defined(__AVX512F__)
  const Floats n = (Floats)_mm512_roundscale_ps((__m512)t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const Floats f = select(t > -200.f, t - n, Floats{});  // -inf - -inf is no number
  return (Floats)_mm512_scalef_ps((__m512)exp2_fraction(select(t != t, t, f)), (__m512)n);
#else
  const Floats bounded = vmax(vmin(t, splat(128.f)), splat(-126.f));
  const Floats n = (bounded + 12582912.f) - 12582912.f;  // 1.5 * 2^23: rounds to an integer
  const Ints whole = by_parts([](auto x) { return __builtin_convertvector(x, decltype(x > x)); }, n);
  const Ints half = whole >> 1;  // in two steps, so that n = 128 does not overflow early
  const Floats power = exp2_fraction(bounded - n) * (Floats)((half + 127) << 23) * (Floats)((whole - half + 127) << 23);
  return select(t != t, t, select(t < -126.f, Floats{}, power));
#endif
}

OCTAVO_INLINE Floats exp(Floats x) { return exp2(x * 1.44269504088896341f); }

// 2^t for t <= 0, to be rounded to eight bits: relative error below 4e-6. NaN stays NaN; far below, zero.
OCTAVO_INLINE Floats exp2_short(Floats t) {
#if defined(__AVX512DQ__)
  const Floats f = (Floats)_mm512_reduce_ps((__m512)t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // t - floor(t)
  Floats p = splat(1.3534168e-2f);
  p = p * f + 5.2011460e-2f;
  p = p * f + 2.4144275e-1f;
  p = p * f + 6.9300383e-1f;
  return (Floats)_mm512_scalef_ps((__m512)(p * f + 1.0000026f), (__m512)t);
#else
  return exp2(t);
#endif
}

OCTAVO_INLINE Floats sigmoid(Floats x) { return 1.f / (1.f + exp(-x)); }
OCTAVO_INLINE Floats tanh(Floats x) { return 1.f - 2.f / (1.f + exp(2.f * x)); }

OCTAVO_INLINE void prefetch_l2(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace octavo
