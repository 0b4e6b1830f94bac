#include "cpu.h"

#include <algorithm>

#include "../kv/cpu.h"

using namespace octavo;

extern "C" {

// Chunk c computes lengths[c] > 0 positions from starts[c] on; its blocks are tables[c * width ...], which must outlive the step.
Step* octavo_step_new(const int64_t* starts, const int64_t* lengths, const int64_t* tables, int64_t width, int64_t chunks) {
  Step* step = new Step;
  for (int64_t c = 0; c < chunks; c++) {
    step->chunks.push_back(Chunk{starts[c], lengths[c], step->tokens, tables + c * width});
    const int64_t end = starts[c] + lengths[c];
    for (int64_t at = starts[c]; at < end;) {
      const int64_t next = std::min(end, (at / PLACES + 1) * PLACES);
      step->runs.push_back(Run{c, step->tokens + at - starts[c], next - at});
      at = next;
    }
    step->tokens += lengths[c];
  }
  return step;
}

void octavo_step_free(Step* step) { delete step; }
}
