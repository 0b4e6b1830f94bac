// Drawing one token from one row of logits: temperature, top_k, top_p, min_p, then the inverse of the cumulative distribution.
// Only what may lie in the nucleus or among the k largest is sorted.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "../cpu/simd.h"

namespace octavo {

constexpr int64_t SUMMED = 1024;  // tokens: sums over the vocabulary are made of float32 sums of this many
constexpr int64_t GROUP = 64;     // tokens that share a noted maximum

struct Options {
  float temperature, top_p, min_p;
  int64_t top_k;
  double u;  // in [0, 1)
};

// Philox4x32-10 (Salmon et al., SC 2011), its first word times 2^-32.
inline double uniform(uint32_t seed_low, uint32_t seed_high, uint32_t position, uint32_t choice) {
  uint32_t x[4] = {position, choice, 0, 0}, k[2] = {seed_low, seed_high};
  for (int round = 0; round < 10; round++) {
    const uint64_t a = uint64_t(x[0]) * 0xD2511F53u, b = uint64_t(x[2]) * 0xCD9E8D57u;
    const uint32_t next[4] = {uint32_t(b >> 32) ^ x[1] ^ k[0], uint32_t(b), uint32_t(a >> 32) ^ x[3] ^ k[1], uint32_t(a)};
    std::copy(next, next + 4, x);
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return x[0] * 0x1p-32;
}

// One thread's memory for rows of `n` tokens.
class Row {
 public:
  void draw_from(int64_t n) {
    n_ = n;
    groups_ = (n + GROUP - 1) / GROUP;
    scaled_.resize(groups_ * GROUP);
    weights_.resize(groups_ * GROUP);
    tops_.resize(groups_);
  }

  int64_t draw(const float* logits, const Options& options) {
    const float top = scale(logits, options.temperature);
    weigh(top);
    float lowest = options.min_p > 0 ? top + std::log(options.min_p) : -INFINITY, kth = -INFINITY;
    if (options.top_k > 0 && options.top_k < n_) kth = largest_of(options.top_k);
    lowest = std::max(lowest, kth);
    if (options.top_p < 1) lowest = std::max(lowest, nucleus(kth, options.top_p));
    cut(std::min(lowest, top));
    return invert(options.u);
  }

 private:
  static constexpr int64_t FEW = 16, BINS = 4096;

  struct Ranked {
    float value;
    int32_t token;
    bool operator>(const Ranked& other) const { return value > other.value; }
  };

  // Logits over temperature, -inf to the end of the last group; the maximum of each group, and of all.
  float scale(const float* logits, float temperature) {
    float top = -INFINITY;
    for (int64_t g = 0; g < groups_; g++) {
      Floats most = splat(-INFINITY);
      for (int64_t i = g * GROUP; i < (g + 1) * GROUP; i += LANES) {
        const int count = static_cast<int>(std::clamp<int64_t>(n_ - i, 0, LANES));
        const Floats v = select(lane_numbers() < count, load_some(logits + i, count) / temperature, splat(-INFINITY));
        store(&scaled_[i], v);
        most = vmax(v, most);
      }
      tops_[g] = largest(most);
      top = std::max(top, tops_[g]);
    }
    return top;
  }

  void weigh(float top) {
    for (int64_t i = 0; i < groups_ * GROUP; i += LANES) store(&weights_[i], exp(load(&scaled_[i]) - top));
  }

  void cut(float lowest) {
    if (lowest == -INFINITY) return;
    for (int64_t i = 0; i < groups_ * GROUP; i += LANES)
      store(&weights_[i], select(load(&scaled_[i]) < lowest, Floats{}, load(&weights_[i])));
  }

  // All tokens that are at least as likely as the `count`-th of the groups' maxima: `count` tokens or more, unsorted.
  const std::vector<Ranked>& likely(int64_t count) {
    float bound = -INFINITY;
    if (count <= groups_) {
      order_ = tops_;
      std::nth_element(order_.begin(), order_.begin() + (count - 1), order_.end(), std::greater<float>());
      bound = order_[count - 1];
    }
    ranked_.clear();
    for (int64_t g = 0; g < groups_; g++)
      if (tops_[g] >= bound)
        for (int64_t i = g * GROUP; i < std::min(n_, (g + 1) * GROUP); i++)
          if (scaled_[i] >= bound) ranked_.push_back({scaled_[i], int32_t(i)});
    return ranked_;
  }

  float largest_of(int64_t k) {
    likely(k);
    std::nth_element(ranked_.begin(), ranked_.begin() + (k - 1), ranked_.end(), std::greater<Ranked>());
    return ranked_[k - 1].value;
  }

  // The least likely value that top_p's share of the mass needs, of the values from `kth` up.
  float nucleus(float kth, float top_p) {
    double mass = 0;
    for (int64_t first = 0; first < n_; first += SUMMED) mass += block_sum(first, kth);
    const double wanted = double(top_p) * mass;
    likely(FEW);
    const float found = within(wanted, kth, 0);
    return found > -INFINITY ? found : by_bins(wanted, kth);
  }

  // The value of `ranked_` with which the mass reaches `wanted`, from the most likely on; -inf where it does not.
  float within(double wanted, float kth, double reached) {
    std::sort(ranked_.begin(), ranked_.end(), std::greater<Ranked>());
    for (const Ranked& one : ranked_) {
      if (one.value < kth) break;
      reached += weights_[one.token];
      if (reached >= wanted) return one.value;
    }
    return -INFINITY;
  }

  // A wide nucleus: masses of values by their distance from the largest, then the order within one bin alone.
  float by_bins(double wanted, float kth) {
    const float top = *std::max_element(tops_.begin(), tops_.end());
    masses_.assign(BINS, 0);
    float least = top;
    for (int64_t i = 0; i < n_; i++) {
      if (scaled_[i] < kth || weights_[i] <= 0) continue;
      masses_[bin(top - scaled_[i])] += weights_[i];
      least = std::min(least, scaled_[i]);
    }
    double reached = 0;
    for (int64_t b = 0; b < BINS; reached += masses_[b++]) {
      if (reached + masses_[b] < wanted) continue;
      ranked_.clear();
      for (int64_t i = 0; i < n_; i++)
        if (weights_[i] > 0 && bin(top - scaled_[i]) == b) ranked_.push_back({scaled_[i], int32_t(i)});
      const float found = within(wanted, kth, reached);
      if (found > -INFINITY) return found;
    }
    return least;  // rounding left none: everything is needed
  }

  static int64_t bin(float distance) { return std::min<int64_t>(BINS - 1, int64_t(distance * 128.f)); }

  float block_sum(int64_t first, float lowest) const {
    Floats sums{};
    for (int64_t i = first; i < std::min(first + SUMMED, groups_ * GROUP); i += LANES)
      sums += select(load(&scaled_[i]) < lowest, Floats{}, load(&weights_[i]));
    return sum(sums);
  }

  // The first token at which the cumulative weight passes u times the total: its block by the blocks' sums, then token by
  // token. Where rounding leaves none, the last that weighs something.
  int64_t invert(double u) {
    edges_.clear();
    double total = 0;
    for (int64_t first = 0; first < n_; first += SUMMED) edges_.push_back(total += block_sum(first, -INFINITY));
    const double target = u * total;
    size_t block = 0;
    double before = 0;
    for (size_t b = 0; b < edges_.size(); b++) {
      const double start = b ? edges_[b - 1] : 0;
      if (edges_[b] <= start) continue;
      block = b;
      before = start;
      if (edges_[b] > target) break;
    }
    return inside(block * SUMMED, target - before);
  }

  int64_t inside(int64_t first, double rest) const {
    double reached = 0;
    int64_t last = first;
    for (int64_t i = first; i < std::min(n_, first + SUMMED); i++) {
      if (weights_[i] <= 0) continue;
      reached += weights_[i];
      last = i;
      if (reached > rest) break;
    }
    return last;
  }

  int64_t n_ = 0, groups_ = 0;
  std::vector<float> scaled_, weights_, tops_, order_;
  std::vector<Ranked> ranked_;
  std::vector<double> edges_, masses_;
};

}  // namespace octavo
