// What Python hands over: plain structures of pointers and sizes. kernels/cpu/abi.py mirrors them field by field.
#pragma once
#include <cstdint>

extern "C" {

enum OctavoDtype : int64_t { OCTAVO_FLOAT32 = 0, OCTAVO_BFLOAT16 = 1, OCTAVO_FLOAT16 = 2 };

// A packed weight [n, k]; see kernels/linear/cpu.h. `bias` float32 [padded n] or null.
struct OctavoLinear {
  const void* weight;
  const float* bias;
  int64_t n, k, dtype;
};

// `weight` float32 [size]; null: no norm here.
struct OctavoNorm {
  const float* weight;
  int64_t size;
  double eps;
};

struct OctavoAttnIn {
  OctavoNorm norm;
  OctavoLinear qkv;
  int64_t heads, kv_heads, head_dim;
  OctavoNorm q_norm, k_norm;
  int64_t rotary;
};

// `window` 0 and `softcap` 0: none.
struct OctavoAttention {
  int64_t heads, kv_heads, head_dim, window;
  double scale, softcap;
};

struct OctavoAttnOut {
  OctavoLinear proj;
  OctavoNorm after;
};

// `activation`: 0 silu, 1 gelu_tanh.
struct OctavoMlp {
  OctavoNorm norm;
  OctavoLinear gate_up, down;
  OctavoNorm after;
  int64_t activation;
};

struct OctavoHead {
  OctavoNorm norm;
  OctavoLinear proj;
  double softcap;
};

// One module of an adapter: result += b (scale * a x). Packed as lora/cpu.h says; rank 0: the adapter leaves it alone.
struct OctavoLora {
  const void *a, *b;
  int64_t rank;
  double scale;
};

// `modules`: OCTAVO_LORA_MODULES a layer, in this order, then the head's and the embedding's. `rank`: the largest.
enum OctavoLoraModule : int64_t { OCTAVO_LORA_Q, OCTAVO_LORA_K, OCTAVO_LORA_V, OCTAVO_LORA_O, OCTAVO_LORA_GATE, OCTAVO_LORA_UP, OCTAVO_LORA_DOWN, OCTAVO_LORA_MODULES };
struct OctavoAdapter {
  const OctavoLora* modules;
  int64_t layers, rank;
};

struct OctavoLayer {
  OctavoAttnIn attn_in;
  OctavoAttention attention;
  OctavoAttnOut attn_out;
  OctavoMlp mlp;
};

// KV of all layers: block b of layer l begins at data + (l * blocks + b) * block_bytes; see kernels/kv/cpu.h.
struct OctavoPool {
  void* data;
  int64_t layers, kv_heads, head_dim, blocks, dtype;
};

// Cosines and sines float32 [positions, half].
struct OctavoRotary {
  const float *cos, *sin;
  int64_t half;
};
}
