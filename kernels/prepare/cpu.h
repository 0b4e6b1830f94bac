// A step's tokens as the ops need them.
#pragma once
#include <cstdint>
#include <vector>

#include "../cpu/abi.h"

namespace octavo {

// Tokens `first` .. `first + length - 1` are positions `start` .. of a sequence whose blocks are `table`.
struct Chunk {
  int64_t start, length, first;
  const int64_t* table;
};

// Tokens of one chunk whose keys and values lie in one block: one thread writes them.
struct Run {
  int64_t chunk, token, count;
};

// Rows `row` .. `row + count - 1` of chunk `chunk` for KV head `head`: queries, and for each the query heads of the group.
struct Item {
  int32_t chunk, head;
  int64_t row;
  int32_t count, splits;
  int64_t split, part;  // of a split item: which split, and where its partial lies; -1: an item of all its splits
};

// Rows that run with one adapter: places first .. first + count - 1 of Adapted::rows.
struct Group {
  const OctavoAdapter* adapter;
  int64_t first, count;
};

constexpr int64_t ALIKE = 32, ALIKE_RANK = 32;  // rows of a product's step, and the rank that one step of tiles takes

// The rows of a step that run with adapters, adapter by adapter. `place` tells where a row stands among them; -1: nowhere.
struct Adapted {
  std::vector<Group> groups;
  std::vector<int64_t> rows;
  std::vector<int32_t> place;
  int64_t rank = 0;  // the largest
  // Of each ALIKE rows: the group that all of them are of, one after the other, where its ranks are at most ALIKE_RANK; else -1. `loose`
  // is `place` of the other rows, and -1 of these; `loose_before` counts the loose among the places before each, and in the end among all.
  std::vector<int32_t> whole, loose, loose_before;

  bool any() const { return !groups.empty(); }
};

struct Step {
  int64_t tokens = 0;
  std::vector<Chunk> chunks;
  std::vector<Run> runs;
  Adapted adapted;

  // Attention's items for a number of KV heads and query heads a KV head, made when first asked for.
  struct Cut {
    int64_t kv_heads = 0, group = 0;
    std::vector<Item> tiles, items;
    bool split = false;  // items are single splits, joined tile by tile afterwards
    int64_t parts = 0;
  };
  std::vector<Cut> cuts;
};

}  // namespace octavo
