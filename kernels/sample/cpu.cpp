// The most likely token of each row, a drawn one, and whether a row can be sampled at all.
#include "../cpu/abi.h"
#include "../cpu/engine.h"
#include "row.h"

using namespace octavo;

namespace {

// The first of the largest values of one row; the first NaN, where there is one.
int64_t first_largest(const float* x, int64_t n) {
  Floats best = splat(-__builtin_inff());
  Ints at = Ints{};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    const Floats v = load(x + i);
    const Ints better = (v > best) | ((v != v) & (best == best));
    best = select(better, v, best);
    at = ((lane_numbers() + static_cast<int32_t>(i)) & better) | (at & ~better);
  }
  int64_t found = 0;
  float most = -__builtin_inff();
  const auto offer = [&](float value, int64_t index) {
    const bool nan = value != value, held = most != most;
    if (nan ? (!held || index < found) : !held && (value > most || (value == most && index < found))) most = value, found = index;
  };
  for (int lane = 0; lane < LANES && i; lane++) offer(best[lane], at[lane]);
  for (; i < n; i++) offer(x[i], i);
  return found;
}

bool all_finite(const float* x, int64_t n) {
  constexpr uint32_t EXPONENT = 0x7f800000u;
  Ints bad{};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) bad |= (as_words(load(x + i)) & EXPONENT) == EXPONENT;
  for (int lane = 0; lane < LANES; lane++)
    if (bad[lane]) return false;
  for (; i < n; i++) {
    uint32_t word;
    memcpy(&word, x + i, sizeof word);
    if ((word & EXPONENT) == EXPONENT) return false;
  }
  return true;
}

template <class Work>
void each_row(Engine* engine, int64_t rows, const Work& work) {
  engine->team.run([&](const Member& me) {
    for (int64_t row; (row = me.team.draw(1)) < rows;) work(row);
  });
}

}  // namespace

extern "C" {

// logits float32 [rows, n] -> out int64 [rows].
void octavo_greedy(Engine* engine, const float* logits, int64_t rows, int64_t n, int64_t* out) {
  each_row(engine, rows, [&](int64_t row) { out[row] = first_largest(logits + row * n, n); });
}

// out uint8 [rows]: 1 where no value of the row is NaN or infinite.
void octavo_finite(Engine* engine, const float* logits, int64_t rows, int64_t n, uint8_t* out) {
  each_row(engine, rows, [&](int64_t row) { out[row] = all_finite(logits + row * n, n); });
}

// All arrays have an entry a row; see kernels.sample.reference.Draw.
struct OctavoDraw {
  const float *temperature, *top_p, *min_p;
  const int64_t *top_k, *seed_low, *seed_high, *position, *choice;
};

// logits float32 [rows, n] (finite, or -inf for what is forbidden) -> out int64 [rows].
void octavo_sample(Engine* engine, const float* logits, int64_t rows, int64_t n, const OctavoDraw* draw, int64_t* out) {
  engine->team.run([&](const Member& me) {
    static thread_local Row row;
    row.draw_from(n);
    for (int64_t i; (i = me.team.draw(1)) < rows;) {
      const double u = uniform((uint32_t)draw->seed_low[i], (uint32_t)draw->seed_high[i], (uint32_t)draw->position[i], (uint32_t)draw->choice[i]);
      out[i] = row.draw(logits + i * n, Options{draw->temperature[i], draw->top_p[i], draw->min_p[i], draw->top_k[i], u});
    }
  });
}
}
