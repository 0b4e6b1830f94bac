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

// adapters[c]: what chunk c runs with, or null; they must outlive the step.
void octavo_step_adapters(Step* step, const OctavoAdapter* const* adapters) {
  Adapted& adapted = step->adapted;
  std::vector<size_t> order;
  for (size_t c = 0; c < step->chunks.size(); c++)
    if (adapters[c]) order.push_back(c);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return adapters[a] < adapters[b]; });
  adapted.place.assign(step->tokens, -1);
  for (const size_t c : order) {
    const Chunk& chunk = step->chunks[c];
    if (adapted.groups.empty() || adapted.groups.back().adapter != adapters[c])
      adapted.groups.push_back(Group{adapters[c], (int64_t)adapted.rows.size(), 0});
    for (int64_t token = chunk.first; token < chunk.first + chunk.length; token++) {
      adapted.place[token] = adapted.rows.size();
      adapted.rows.push_back(token);
    }
    adapted.groups.back().count += chunk.length;
    adapted.rank = std::max(adapted.rank, adapters[c]->rank);
  }
  // Like shapes follow each other, so that tiles are seldom configured anew.
  const auto shape = [](const Group& g) { return std::make_pair(std::min<int64_t>(g.count, 16), g.adapter->rank); };
  std::stable_sort(adapted.groups.begin(), adapted.groups.end(), [&](const Group& a, const Group& b) { return shape(a) < shape(b); });
}

const Adapted* octavo_step_adapted(const Step* step) { return step->adapted.any() ? &step->adapted : nullptr; }

void octavo_step_free(Step* step) { delete step; }
}
