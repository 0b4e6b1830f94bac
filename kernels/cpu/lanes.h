// Sixteen lanes of 32 bits, as registers of the machine hold them.
//
// A vector of the compiler's that is wider than a register lies in memory, element by element. So where registers are narrower than 64
// bytes, lanes are parts of a register's size, and every operation is done part by part; the words are those of the compiler's vectors.
#pragma once
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define OCTAVO_INLINE static inline __attribute__((always_inline))

namespace octavo {

constexpr int LANES = 16;

template <class T>
constexpr bool is_parts = false;

#if defined(__AVX512F__)

typedef float Floats __attribute__((vector_size(64), may_alias));
typedef int32_t Ints __attribute__((vector_size(64), may_alias));
typedef uint32_t Words __attribute__((vector_size(64), may_alias));

#else

template <class P>
struct Parts {
  P low, high;

  // The same bits in parts of another type.
  template <class Q>
  explicit inline __attribute__((always_inline)) operator Parts<Q>() const {
    return {(Q)low, (Q)high};
  }

  inline __attribute__((always_inline)) auto operator[](int lane) const {
    decltype(low[0] + low[0]) lanes[sizeof(Parts) / 4];
    memcpy(lanes, this, sizeof lanes);
    return lanes[lane];
  }
};

template <class P>
constexpr bool is_parts<Parts<P>> = true;

template <class V>
OCTAVO_INLINE auto low_of(const V& v) {
  if constexpr (is_parts<V>) return v.low;
  else return v;
}
template <class V>
OCTAVO_INLINE auto high_of(const V& v) {
  if constexpr (is_parts<V>) return v.high;
  else return v;
}

// What `of` makes of each part of the operands, or of each operand that has none.
template <class F, class... V>
OCTAVO_INLINE auto by_parts(const F& of, const V&... v) {
  if constexpr ((is_parts<V> || ...)) {
    const auto low = by_parts(of, low_of(v)...);
    return Parts<std::remove_const_t<decltype(low)>>{low, by_parts(of, high_of(v)...)};
  } else {
    return of(v...);
  }
}

// Two operands, of which one may be a number for all lanes.
#define OCTAVO_BINARY(op)                                              \
  template <class A, class B>                                          \
    requires(is_parts<A> || is_parts<B>)                               \
  OCTAVO_INLINE auto operator op(const A& a, const B& b) {             \
    return by_parts([](auto x, auto y) { return x op y; }, a, b);      \
  }
OCTAVO_BINARY(+) OCTAVO_BINARY(-) OCTAVO_BINARY(*) OCTAVO_BINARY(/)
OCTAVO_BINARY(&) OCTAVO_BINARY(|) OCTAVO_BINARY(<<) OCTAVO_BINARY(>>)
OCTAVO_BINARY(<) OCTAVO_BINARY(>) OCTAVO_BINARY(>=) OCTAVO_BINARY(==) OCTAVO_BINARY(!=)
#undef OCTAVO_BINARY

template <class P>
OCTAVO_INLINE Parts<P> operator-(const Parts<P>& v) {
  return by_parts([](auto x) { return -x; }, v);
}
template <class P>
OCTAVO_INLINE Parts<P> operator~(const Parts<P>& v) {
  return by_parts([](auto x) { return ~x; }, v);
}
template <class P, class B>
OCTAVO_INLINE Parts<P>& operator+=(Parts<P>& a, const B& b) {
  return a = a + b;
}
template <class P>
OCTAVO_INLINE Parts<P>& operator|=(Parts<P>& a, const Parts<P>& b) {
  return a = a | b;
}

#if defined(__AVX2__)
constexpr int REGISTER = 32;
template <class V>
using Whole = Parts<V>;
#else
constexpr int REGISTER = 16;
template <class V>
using Whole = Parts<Parts<V>>;
#endif
typedef float FloatPart __attribute__((vector_size(REGISTER)));
typedef int32_t IntPart __attribute__((vector_size(REGISTER)));
typedef uint32_t WordPart __attribute__((vector_size(REGISTER)));
using Floats = Whole<FloatPart>;
using Ints = Whole<IntPart>;
using Words = Whole<WordPart>;

#endif

// What lies at p, and back, a register at a time.
template <class V>
OCTAVO_INLINE V get(const void* p) {
  if constexpr (is_parts<V>) {
    using Part = decltype(V::low);
    return V{get<Part>(p), get<Part>((const char*)p + sizeof(Part))};
  } else {
    V v;
    memcpy(&v, p, sizeof v);
    return v;
  }
}
template <class V>
OCTAVO_INLINE void put(void* p, const V& v) {
  if constexpr (is_parts<V>) {
    put(p, v.low);
    put((char*)p + sizeof v.low, v.high);
  } else {
    memcpy(p, &v, sizeof v);
  }
}

static_assert(sizeof(Floats) == 64 && sizeof(Ints) == 64 && sizeof(Words) == 64);

}  // namespace octavo
