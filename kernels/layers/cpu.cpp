// The whole stack of layers in one call: the interpreter's lock is let go once a step, not once an op.
#include "../prepare/cpu.h"
#include "../cpu/abi.h"
#include "../cpu/engine.h"

using namespace octavo;

extern "C" {

void octavo_attn_in(Engine*, const float*, const OctavoAttnIn*, const Step*, const OctavoPool*, const OctavoRotary*, int64_t, float*);
int64_t octavo_attention(Engine*, const float*, Step*, const OctavoPool*, int64_t, const OctavoAttention*, void*, int64_t);
void octavo_attn_out(Engine*, float*, const void*, int64_t, int64_t, const OctavoAttnOut*, const Adapted*, int64_t);
void octavo_mlp(Engine*, float*, int64_t, const OctavoMlp*, const Adapted*, int64_t);

// x float32 [tokens, hidden], in place. `q` and `attended` have room for any layer's queries and results; strides[l] is layer
// l's of `attended`. -1: a sequence is too long for attention.
int64_t octavo_layers(Engine* engine, float* x, const OctavoLayer* layers, int64_t count, Step* step, const OctavoPool* pool,
                      const OctavoRotary* rotaries, const int64_t* strides, float* q, void* attended) {
  const Settled settled(engine->team);
  const Adapted* adapted = step->adapted.any() ? &step->adapted : nullptr;
  for (int64_t number = 0; number < count; number++) {
    const OctavoLayer& layer = layers[number];
    octavo_attn_in(engine, x, &layer.attn_in, step, pool, rotaries + layer.attn_in.rotary, number, q);
    if (octavo_attention(engine, q, step, pool, number, &layer.attention, attended, strides[number])) return -1;
    octavo_attn_out(engine, x, attended, strides[number], step->tokens, &layer.attn_out, adapted, number);
    octavo_mlp(engine, x, step->tokens, &layer.mlp, adapted, number);
  }
  return 0;
}
}
