// Norm, gate and up projections, activation, down projection, norm of its result, residual.
#include "../linear/rows.h"
#include "../lora/added.h"

using namespace octavo;

namespace {

constexpr float SQRT_2_OVER_PI = 0.7978845608028654f;

OCTAVO_INLINE Floats activate(Floats x, int64_t kind) {
  if (kind == 0) return x * sigmoid(x);
  return 0.5f * x * (1.f + tanh(SQRT_2_OVER_PI * (x + 0.044715f * x * x * x)));
}

// Activation of gate c times up d, both [rows, 32], to columns of block `block`.
template <class A>
struct Gate {
  A* out;
  int64_t stride, kind;

  void one(int64_t row, int64_t block, const float* c, const float* d) const {
    for (int i = 0; i < WIDTH; i += LANES)
      store(out + row * stride + block * WIDTH + i, activate(load(c + i), kind) * load(d + i));
  }
  void operator()(int64_t row, int64_t rows, int64_t block, const float* c, const float* d) const {
    for (int64_t r = 0; r < rows; r++) one(row + r, block, c + r * WIDTH, d + r * WIDTH);
  }
};

// Where the halves do not begin at a block: all results first, then row by row.
template <class A>
void gate_rows(const Member& me, const float* results, int64_t wide, int64_t inner, int64_t rows, int64_t kind, A* out, int64_t stride) {
  int64_t first, last;
  me.share(rows, first, last);
  for (int64_t row = first; row < last; row++)
    for (int64_t i = 0; i < padded(inner); i += LANES) {
      const int count = static_cast<int>(std::max<int64_t>(0, std::min<int64_t>(LANES, inner - i)));
      const Floats gate = load_some(results + row * wide + i, count), up = load_some(results + row * wide + inner + i, count);
      store(out + row * stride + i, activate(gate, kind) * up);
    }
}

template <class W>
void run(Engine& engine, float* x, int64_t rows, const OctavoMlp& w, const Adapted* adapted, int64_t layer) {
  const int64_t inner = w.gate_up.n / 2, n = w.down.n, wide = padded(n), stride = row_stride<Act<W>>(inner);
  const bool aligned = inner % WIDTH == 0;
  engine.inputs.get<Act<W>>(row_room(rows) * row_stride<Act<W>>(w.gate_up.k));
  Act<W>* hidden = engine.hidden.get<Act<W>>(row_room(rows) * stride);
  const bool keeps = w.after.weight || !aligned;
  float* results = keeps ? engine.results.get<float>(rows * std::max(wide, padded(w.gate_up.n))) : nullptr;
  const Target before[] = {{OCTAVO_LORA_GATE, 0, inner}, {OCTAVO_LORA_UP, inner, inner}}, after[] = {{OCTAVO_LORA_DOWN, 0, n}};
  const Lora entry(adapted, layer, before), exit(adapted, layer, after);
  if (entry.any() || exit.any()) engine.shrunk.get<Act<W>>(std::max(entry.room(), exit.room()));
  engine.team.run([&](const Member& me) {
    const Rows<W> in = enter<W>(me, engine, x, rows, w.norm, w.gate_up.k);
    int64_t first, last;
    if (entry.any()) {
      shrink<W>(me, engine, entry, in.data, in.stride, w.gate_up.k);
      me.barrier();
    }
    if (aligned) {
      me.share(inner / WIDTH, first, last);
      const int64_t apart = inner / WIDTH;
      const Gate<Act<W>> gate{hidden, stride, w.activation};
      if (entry.any()) multiply_pairs_adapted<W>(me, engine, entry, in.data, in.stride, rows, w.gate_up, apart, first, last, gate);
      else multiply_pairs<W>(in.data, in.stride, rows, w.gate_up, apart, first, last, nullptr, gate);
    } else {
      me.share(blocks_of(w.gate_up), first, last);
      multiply<W>(in.data, in.stride, rows, w.gate_up, first, last, nullptr, Keep{results, padded(w.gate_up.n)});
      me.barrier();
      if (entry.any()) {
        add_adapters<W>(me, engine, entry, results, padded(w.gate_up.n));
        me.barrier();
      }
      gate_rows(me, results, padded(w.gate_up.n), inner, rows, w.activation, hidden, stride);
    }
    me.barrier();
    me.share(blocks_of(w.down), first, last);
    if (exit.any()) shrink<W>(me, engine, exit, hidden, stride, inner);
    if (exit.any()) me.barrier();
    multiply_out<W>(me, engine, exit, hidden, stride, rows, w.down, first, last, w.after.weight ? results : nullptr, x);
    if (w.after.weight) {
      me.barrier();
      add_normed(me, results, wide, w.after, rows, n, x);
    }
    release_tiles();
  });
}

}  // namespace

extern "C" {

// x float32 [rows, hidden], in place. `adapted` null: no adapters.
void octavo_mlp(Engine* engine, float* x, int64_t rows, const OctavoMlp* w, const Adapted* adapted, int64_t layer) {
  by_dtype(w->gate_up.dtype, [&](auto sample) { run<decltype(sample)>(*engine, x, rows, *w, adapted, layer); });
}
}
