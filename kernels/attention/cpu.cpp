// Paged attention over mixed prefill and decode. Items are rows of one KV head: keys and values are read once for all of
// its query heads, and for as many queries as fit 32 rows.
#include "../cpu/engine.h"
#include "../prepare/cpu.h"
#include "split.h"

using namespace octavo;

namespace {

constexpr int64_t PER_THREAD = 4;  // items a thread should have at least, else single splits are dealt out

Step::Cut cut(const Step& step, int64_t kv_heads, int64_t group, int threads) {
  Step::Cut made;
  made.kv_heads = kv_heads;
  made.group = group;
  int64_t splits = 0;
  for (size_t c = 0; c < step.chunks.size(); c++) {
    const Chunk& chunk = step.chunks[c];
    const int64_t rows = chunk.length * group;
    for (int64_t head = 0; head < kv_heads; head++)
      for (int64_t row = 0; row < rows; row += ROWS) {
        const int64_t count = std::min<int64_t>(ROWS, rows - row);
        const int64_t end = chunk.start + (row + count - 1) / group + 1;
        Item tile{(int32_t)c, (int32_t)head, row, (int32_t)count, (int32_t)((end + SPLIT - 1) / SPLIT), 0, -1};
        splits += tile.splits;
        made.tiles.push_back(tile);
      }
  }
  made.split = threads > 1 && (int64_t)made.tiles.size() < PER_THREAD * threads && splits > (int64_t)made.tiles.size();
  if (made.split)
    for (Item& tile : made.tiles) {
      tile.part = made.parts;
      for (int64_t s = 0; s < tile.splits; s++) {
        Item item = tile;
        item.split = s;
        item.part = made.parts++;
        made.items.push_back(item);
      }
    }
  return made;
}

const Step::Cut& cut_of(Step& step, int64_t kv_heads, int64_t group, int threads) {
  for (const Step::Cut& made : step.cuts)
    if (made.kv_heads == kv_heads && made.group == group) return made;
  step.cuts.push_back(cut(step, kv_heads, group, threads));
  return step.cuts.back();
}

template <class T>
struct Attention {
  const float* q;  // [tokens, heads, head_dim]
  const Step& step;
  const OctavoPool& pool;
  int64_t layer;
  const OctavoAttention& spec;
  Act<T>* out;  // [tokens, stride]
  int64_t stride;
  int32_t group;  // query heads of a KV head

  int64_t dim() const { return padded(spec.head_dim); }
  int64_t room() const { return partial_size(ROWS, dim()); }

  // Calls visit(r, token, head) for the item's rows; `token` is of the step.
  template <class Visit>
  inline __attribute__((always_inline)) void each_row(const Item& item, const Visit& visit) const {
    const int32_t row = static_cast<int32_t>(item.row);
    int64_t token = step.chunks[item.chunk].first + row / group;
    for (int32_t r = 0, member = row % group; r < item.count; r++) {
      visit(r, token, (int64_t)item.head * group + member);
      if (++member == group) member = 0, token++;
    }
  }

  // The item's query rows, converted.
  void gather(const Item& item, Act<T>* to) const {
    configure<T>(item.count);
    each_row(item, [&](int r, int64_t token, int64_t head) {
      const float* from = q + (token * spec.heads + head) * spec.head_dim;
      for (int64_t i = 0; i < dim(); i += LANES) {
        const int count = static_cast<int>(std::max<int64_t>(0, std::min<int64_t>(LANES, spec.head_dim - i)));
        store(to + r * dim() + i, load_some(from + i, count));
      }
    });
  }

  int64_t position(const Item& item, int row) const {
    return step.chunks[item.chunk].start + ((int32_t)item.row + row) / group;
  }
  int64_t first_seen(int64_t position) const { return spec.window ? std::max<int64_t>(0, position + 1 - spec.window) : 0; }

  // The blocks that the item's rows see from `low` on, up to `high`.
  Span<T> span(const Item& item, int64_t low, int64_t high) const {
    const int64_t first = std::max(low, first_seen(position(item, 0)) / PLACES);
    const int64_t last = std::min(high, position(item, item.count - 1) / PLACES + 1);
    return Span<T>{&pool, layer, item.head, step.chunks[item.chunk].table, (int)first, (int)std::max(first, last)};
  }
  Span<T> of_split(const Item& item, int64_t split) const { return span(item, split * SPLIT_BLOCKS, (split + 1) * SPLIT_BLOCKS); }
  Span<T> of_item(const Item& item) const { return item.part < 0 ? span(item, 0, INT32_MAX) : of_split(item, item.split); }

  // One split's partial: sums, then maxima, then totals.
  void partial(const Item& item, int64_t split, const Desk<T>& desk, Feed<T>& feed, float* to) const {
    Span<T> blocks = of_split(item, split);
    float *top = to + ROWS * dim(), *total = top + ROWS;
    if (blocks.first >= blocks.last) return nothing(item, to, top, total);
    blocks.first = blocks.first / 2 * 2;  // two at a time, always the same two
    all_scores(desk, blocks, feed, item.count, dim());
    const int64_t begin = (int64_t)blocks.first * PLACES, shift = step.chunks[item.chunk].start - step.chunks[item.chunk].first;
    const int width = (blocks.last - blocks.first + 1) / 2 * PAIR;
    const bool capped = spec.softcap > 0;
    const float scale = capped ? 1.f : (float)spec.scale;
    const auto seen = [&](int64_t at) { return Seen(first_seen(at) - begin, at + 1 - begin, width); };
    each_row(item, [&](int r, int64_t token, int64_t) {
      if (capped) cap(desk.scores + r * PITCH, width, (float)spec.scale, (float)spec.softcap);
      top[r] = highest(desk.scores + r * PITCH, seen(token + shift));
    });
    each_row(item, [&](int r, int64_t token, int64_t) {
      total[r] = soften(desk.scores + r * PITCH, desk.weights(r), seen(token + shift), scale * LOG2_E, top[r]);
      top[r] *= scale;
    });
    all_values(desk, blocks, feed, item.count, dim(), to);
  }

  void nothing(const Item& item, float* to, float* top, float* total) const {
    memset(to, 0, item.count * dim() * sizeof(float));
    for (int r = 0; r < item.count; r++) top[r] = LOW, total[r] = 0;
  }

  // Partials of a tile, left to right, to the rows of `out`.
  void join(const Item& tile, const float* parts) const {
    each_row(tile, [&](int r, int64_t token, int64_t head) {
      join_row(parts, r, tile.splits, out + token * stride + head * spec.head_dim);
      if (head == spec.heads - 1)
        for (int64_t i = spec.heads * spec.head_dim; i < padded(spec.heads * spec.head_dim); i++) out[token * stride + i] = Act<T>{};
    });
  }

  void join_row(const float* parts, int r, int64_t splits, Act<T>* to) const {
    float top = LOW, share[MOST_SPLITS], total = 0;
    for (int64_t s = 0; s < splits; s++) top = std::max(top, parts[s * room() + ROWS * dim() + r]);
    for (int64_t s = 0; s < splits; s++) {
      const float* part = parts + s * room() + ROWS * dim();
      share[s] = part[r] == top ? 1.f : exp(splat(part[r] - top))[0];
      total += share[s] * part[ROWS + r];
    }
    const float unit = 1.f / total;
    for (int64_t i = 0; i < spec.head_dim; i += LANES) {
      Floats sums{};
      for (int64_t s = 0; s < splits; s++) sums += share[s] * load(parts + s * room() + r * dim() + i);
      store_some(to + i, sums * unit, static_cast<int>(std::min<int64_t>(LANES, spec.head_dim - i)));
    }
  }

  void whole(const Item& tile, const Desk<T>& desk, Feed<T>& feed, float* parts) const {
    gather(tile, desk.q);
    const int64_t first = first_seen(position(tile, 0)) / SPLIT;
    for (int64_t s = 0; s < tile.splits; s++)
      if (s >= first) partial(tile, s, desk, feed, parts + s * room());
      else nothing(tile, parts + s * room(), parts + s * room() + ROWS * dim(), parts + s * room() + ROWS * dim() + ROWS);
    join(tile, parts);
  }

  static constexpr int64_t MOST_SPLITS = 4096;  // 2 million positions
};

constexpr int64_t READ_BEFORE = 4 * ROWS;  // a tile from this row on reads what earlier ones have just read
constexpr int MOST_AHEAD = 64;  // blocks of the next item that may be asked for: they must stay in the cache

// Each member draws items, one ahead of the one it works on: work(item, feed).
template <class T, class Work>
void deal(const Member& me, const Attention<T>& attention, const std::vector<Item>& items, const Work& work) {
  const int64_t count = items.size();
  int asked = 0;
  for (int64_t now = me.team.draw(1), next; now < count; now = next) {
    next = me.team.draw(1);
    const Span<T> blocks = attention.of_item(items[now]);
    Span<T> coming = next < count ? attention.of_item(items[next]) : blocks;
    if (next >= count) coming.last = coming.first;
    if (next < count && items[next].row >= READ_BEFORE) coming.last = coming.first;
    if (items[now].row >= READ_BEFORE) asked = blocks.last - blocks.first;
    Feed<T> feed(blocks, coming, asked, MOST_AHEAD);
    work(items[now], feed);
    asked = feed.asked_of_next();
  }
}

template <class T>
void run(Engine& engine, const Attention<T>& attention, const Step::Cut& cut) {
  const int64_t dim = attention.dim(), room = attention.room();
  int64_t most = 1;
  for (const Item& tile : cut.tiles) most = std::max<int64_t>(most, tile.splits);
  float* shared = cut.split ? engine.partials.get<float>(cut.parts * room) : nullptr;
  engine.team.run([&](const Member& me) {
    char* memory = engine.own[me.index].template get<char>(Desk<T>::bytes(dim) + (most * room + 16) * sizeof(float));
    const Desk<T> desk = Desk<T>::at(memory, dim);
    float* parts = reinterpret_cast<float*>(memory + (Desk<T>::bytes(dim) + 63) / 64 * 64);
    if (!cut.split) {
      deal(me, attention, cut.tiles, [&](const Item& tile, Feed<T>& feed) { attention.whole(tile, desk, feed, parts); });
    } else {
      deal(me, attention, cut.items, [&](const Item& item, Feed<T>& feed) {
        attention.gather(item, desk.q);
        attention.partial(item, item.split, desk, feed, shared + item.part * room);
      });
      me.barrier();
      int64_t first, last;
      me.share(cut.tiles.size(), first, last);
      for (int64_t i = first; i < last; i++) attention.join(cut.tiles[i], shared + cut.tiles[i].part * room);
    }
    release_tiles();
  });
}

}  // namespace

extern "C" {

// q float32 [tokens, heads, head_dim] -> out [tokens, stride] in the form that the output projection takes. -1: too long.
int64_t octavo_attention(Engine* engine, const float* q, Step* step, const OctavoPool* pool, int64_t layer, const OctavoAttention* spec,
                         void* out, int64_t stride) {
  int64_t code = 0;
  by_dtype(pool->dtype, [&](auto sample) {
    using T = decltype(sample);
    const Step::Cut& made = cut_of(*step, spec->kv_heads, spec->heads / spec->kv_heads, engine->team.size());
    for (const Item& tile : made.tiles)
      if (tile.splits > Attention<T>::MOST_SPLITS) code = -1;
    if (code) return;
    run(*engine, Attention<T>{q, *step, *pool, layer, *spec, static_cast<Act<T>*>(out), stride, (int32_t)(spec->heads / spec->kv_heads)}, made);
  });
  return code;
}
}
