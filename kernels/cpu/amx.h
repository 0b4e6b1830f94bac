// Matrix tiles: permission, configuration, and the two hazards of the compiler's intrinsics.
#pragma once
#include <cstdint>

#include "simd.h"

#if defined(__AMX_BF16__)
#define OCTAVO_TILES 1
#include <sys/syscall.h>
#include <unistd.h>
#else
#define OCTAVO_TILES 0
#endif

namespace octavo {

#if OCTAVO_TILES

// Linux hands tile registers to a process that asks for them.
inline bool tiles_permitted() {
  constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

// Tiles 0-3 gather sums of `rows` rows, 4 and 5 hold `rows` rows of the left factor (`depth` bytes), 6 and 7 hold
// depth / 4 rows of pairs of the right one.
OCTAVO_INLINE void configure_tiles(int rows, int depth = 64) {
  struct alignas(64) {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int i = 0; i < 8; i++) {
    config.bytes[i] = i == 4 || i == 5 ? depth : 64;
    config.rows[i] = i >= 6 ? depth / 4 : rows;
  }
  // The intrinsic of GCC 12 declares too small an input, and its stores would be optimised away.
  asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
}

OCTAVO_INLINE void release_tiles() { _tile_release(); }

// Tile loads do not tell the compiler that they read memory: call this after ordinary stores that they depend on.
OCTAVO_INLINE void stored() { asm volatile("" : : : "memory"); }

#else

inline bool tiles_permitted() { return true; }
OCTAVO_INLINE void release_tiles() {}

#endif

}  // namespace octavo
