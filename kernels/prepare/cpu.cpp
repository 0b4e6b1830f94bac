#include "cpu.h"

#include <algorithm>

#include "../kv/cpu.h"

using namespace octavo;

namespace {

// The group that rows [first, last) are all of, one after the other; -1: none, or one of a larger rank. A group's rows ascend.
int32_t group_of(const Adapted& adapted, int64_t first, int64_t last) {
  const int64_t place = adapted.place[first];
  if (place < 0 || adapted.place[last - 1] - place != last - 1 - first) return -1;
  for (size_t i = 0; i < adapted.groups.size(); i++) {
    const Group& group = adapted.groups[i];
    const bool holds = place >= group.first && place + last - first <= group.first + group.count;
    if (holds && group.adapter->rank <= ALIKE_RANK) return i;
  }
  return -1;
}

void find_alike(Adapted& adapted) {
  const int64_t tokens = adapted.place.size();
  adapted.loose = adapted.place;
  for (int64_t first = 0; first < tokens; first += ALIKE) {
    const int64_t last = std::min(first + ALIKE, tokens);
    adapted.whole.push_back(group_of(adapted, first, last));
    if (adapted.whole.back() >= 0) std::fill(adapted.loose.begin() + first, adapted.loose.begin() + last, -1);
  }
  adapted.loose_before.push_back(0);
  for (const int64_t row : adapted.rows) adapted.loose_before.push_back(adapted.loose_before.back() + (adapted.loose[row] >= 0));
}

}  // namespace

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
  find_alike(adapted);
}

const Adapted* octavo_step_adapted(const Step* step) { return step->adapted.any() ? &step->adapted : nullptr; }

void octavo_step_free(Step* step) { delete step; }
}
