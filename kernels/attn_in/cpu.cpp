// Norm, QKV projection, norm of heads, rotary embedding, KV write.
#include "../kv/cpu.h"
#include "../linear/rows.h"
#include "../lora/added.h"
#include "../prepare/cpu.h"

using namespace octavo;

namespace {

// x[i], x[i + half] for i < half are turned by the angles of one position.
void rotate(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; i += LANES) {
    const int count = static_cast<int>(std::min<int64_t>(LANES, half - i));
    const Floats c = load_some(cos + i, count), s = load_some(sin + i, count);
    const Floats a = load_some(x + i, count), b = load_some(x + half + i, count);
    store_some(x + i, a * c - b * s, count);
    store_some(x + half + i, b * c + a * s, count);
  }
}

void scale_by(float* x, int64_t size, float scale, const float* weight) {
  for (int64_t i = 0; i < size; i += LANES) {
    const int count = static_cast<int>(std::min<int64_t>(LANES, size - i));
    store_some(x + i, load_some(x + i, count) * scale * load_some(weight + i, count), count);
  }
}

// All heads together, or each by itself, as the size of the norm's weight tells.
void norm_heads(float* x, int64_t heads, int64_t dim, const OctavoNorm& norm) {
  if (!norm.weight) return;
  for (int64_t at = 0; at < heads * dim; at += norm.size) scale_by(x + at, norm.size, inverse_rms(x + at, norm.size, norm.eps), norm.weight);
}

struct Places {
  const OctavoAttnIn& w;
  const OctavoPool& pool;
  const OctavoRotary& rotary;
  int64_t layer;

  // One token's stacked row: queries to `q`, key and value to the pool.
  template <class T>
  void finish(float* row, int64_t position, int64_t block, float* q) const {
    const int64_t dim = w.head_dim;
    norm_heads(row, w.heads, dim, w.q_norm);
    norm_heads(row + w.heads * dim, w.kv_heads, dim, w.k_norm);
    const float *cos = rotary.cos + position * rotary.half, *sin = rotary.sin + position * rotary.half;
    for (int64_t head = 0; head < w.heads + w.kv_heads; head++) rotate(row + head * dim, cos, sin, rotary.half);
    memcpy(q, row, w.heads * dim * sizeof(float));
    for (int64_t head = 0; head < w.kv_heads; head++) {
      const float* key = row + (w.heads + head) * dim;
      put<T>(Block<T>::at(pool, layer, block, head), position % PLACES, key, key + w.kv_heads * dim);
    }
  }

  template <class T>
  void put(const Block<T>& block, int64_t place, const float* key, const float* value) const {
    alignas(64) T converted[2][1024];
    for (int64_t i = 0; i < block.dim; i += LANES) {
      const int count = static_cast<int>(std::max<int64_t>(0, std::min<int64_t>(LANES, w.head_dim - i)));
      store(converted[0] + i, load_some(key + i, count));
      store(converted[1] + i, load_some(value + i, count));
    }
    block.write(place, converted[0], converted[1]);
  }
};

// Runs [first, last).
template <class W>
void finish_runs(int64_t first, int64_t last, const Step& step, const Places& places, float* results, int64_t stride, float* q) {
  for (int64_t i = first; i < last; i++) {
    const Run& run = step.runs[i];
    const Chunk& chunk = step.chunks[run.chunk];
    for (int64_t token = run.token; token < run.token + run.count; token++) {
      const int64_t position = chunk.start + token - chunk.first, block = chunk.table[position / PLACES];
      if (position % PLACES == 0)
        for (int64_t head = 0; head < places.w.kv_heads; head++) Block<W>::at(places.pool, places.layer, block, head).clear();
      places.finish<W>(results + token * stride, position, block, q + token * places.w.heads * places.w.head_dim);
    }
  }
}

// The first run from `token` on.
int64_t run_from(const Step& step, int64_t token) {
  const auto before = [](const Run& run, int64_t at) { return run.token < at; };
  return std::lower_bound(step.runs.begin(), step.runs.end(), token, before) - step.runs.begin();
}

}  // namespace

extern "C" {

// x float32 [tokens, hidden] -> q float32 [tokens, heads, head_dim]; keys and values to `layer` of the pool.
void octavo_attn_in(Engine* engine, const float* x, const OctavoAttnIn* w, const Step* step, const OctavoPool* pool,
                    const OctavoRotary* rotary, int64_t layer, float* q) {
  by_dtype(w->qkv.dtype, [&](auto sample) {
    using W = decltype(sample);
    const int64_t rows = step->tokens, stride = padded(w->qkv.n);
    engine->inputs.get<Act<W>>(row_room(rows) * row_stride<Act<W>>(w->qkv.k));
    float* results = engine->results.get<float>(rows * stride);
    const Places places{*w, *pool, *rotary, layer};
    const int64_t queries = w->heads * w->head_dim, keys = w->kv_heads * w->head_dim;
    const Target targets[] = {{OCTAVO_LORA_Q, 0, queries}, {OCTAVO_LORA_K, queries, keys}, {OCTAVO_LORA_V, queries + keys, keys}};
    const Lora lora(&step->adapted, layer, targets);
    if (lora.any()) engine->shrunk.get<Act<W>>(lora.room());
    engine->team.run([&](const Member& me) {
      const Rows<W> in = enter<W>(me, *engine, x, rows, w->norm, w->qkv.k);
      int64_t first, last;
      me.share(blocks_of(w->qkv), first, last);
      if (lora.any()) shrink<W>(me, *engine, lora, in.data, in.stride, w->qkv.k);
      const Keep keep{results, stride};
      if (lora.any() && lora.aligned) {
        me.barrier();
        multiply_adapted<W>(me, *engine, lora, in.data, in.stride, rows, w->qkv, first, last, keep);
      } else {
        multiply<W>(in.data, in.stride, rows, w->qkv, first, last, nullptr, keep);
      }
      if (lora.any() && !lora.aligned) {
        me.barrier();
        add_adapters<W>(me, *engine, lora, results, stride);
      }
      release_tiles();
      me.barrier();
      me.share(rows, first, last);  // whole runs, of about as many rows
      finish_runs<W>(run_from(*step, first), run_from(*step, last), *step, places, results, stride, q);
    });
  });
}

// k and v float32 [tokens, kv_heads, head_dim] -> the places of the step's tokens (for tests, and for caches that come from elsewhere).
void octavo_kv_write(const float* k, const float* v, const Step* step, const OctavoPool* pool, int64_t layer) {
  by_dtype(pool->dtype, [&](auto sample) {
    using T = decltype(sample);
    OctavoAttnIn shape{};
    shape.head_dim = pool->head_dim;
    const OctavoRotary none{};
    const Places places{shape, *pool, none, layer};
    for (const Run& run : step->runs) {
      const Chunk& chunk = step->chunks[run.chunk];
      for (int64_t token = run.token; token < run.token + run.count; token++) {
        const int64_t position = chunk.start + token - chunk.first;
        for (int64_t head = 0; head < pool->kv_heads; head++) {
          const Block<T> block = Block<T>::at(*pool, layer, chunk.table[position / PLACES], head);
          if (position % PLACES == 0) block.clear();
          const int64_t from = (token * pool->kv_heads + head) * pool->head_dim;
          places.put<T>(block, position % PLACES, k + from, v + from);
        }
      }
    }
  });
}
}
