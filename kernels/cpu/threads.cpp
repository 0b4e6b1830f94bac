#include "threads.h"

#include <sched.h>

#include "simd.h"

namespace octavo {
namespace {

constexpr int SPINS = 4000;         // about 100 us before a thread that has nothing to do sleeps
constexpr int BARRIER_SPINS = 2000;  // before it offers its core to whoever else is runnable

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// Denormals read and written as zero: matrix tiles do so in any case.
uint32_t flush_denormals() {
#if defined(__x86_64__)
  const uint32_t before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);
  return before;
#else
  return 0;
#endif
}

void restore(uint32_t control) {
#if defined(__x86_64__)
  _mm_setcsr(control);
#else
  (void)control;
#endif
}

#if defined(__linux__)
// The allowed cores, where there are as many as members.
std::vector<int> one_each(int members) {
  std::vector<int> cores;
  cpu_set_t set;
  if (members > 1 && sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) == members)
    for (int i = 0; i < CPU_SETSIZE; i++)
      if (CPU_ISSET(i, &set)) cores.push_back(i);
  return cores;
}

void allow(const int* cores, size_t count) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (size_t i = 0; i < count; i++) CPU_SET(cores[i], &set);
  sched_setaffinity(0, sizeof set, &set);
}
#else
std::vector<int> one_each(int) { return {}; }
void allow(const int*, size_t) {}
#endif

}  // namespace

Team::Team(int size) : size_(size), cores_(one_each(size)) {
  try {
    for (int i = 1; i < size_; i++) threads_.emplace_back([this, i] { work(i); });
  } catch (...) {
    end();  // threads that nobody waits for would end the process
    throw;
  }
}

Team::~Team() { end(); }

void Team::end() {
  closing_ = true;
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void Team::settle() {
  if (!cores_.empty()) allow(cores_.data(), 1);
}

void Team::unsettle() {
  if (!cores_.empty()) allow(cores_.data(), cores_.size());
}

void Team::work(int index) {
  if (!cores_.empty()) allow(&cores_[index], 1);
  flush_denormals();
  uint32_t seen = 0;
  for (;;) {
    int spins = 0;
    while (round_.load(std::memory_order_acquire) == seen)
      if (++spins < SPINS) relax();
      else round_.wait(seen, std::memory_order_acquire);
    seen = round_.load(std::memory_order_acquire);
    if (closing_) return;
    (*body_)(Member{*this, index, size_});
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

void Team::run(const std::function<void(const Member&)>& body) {
  const uint32_t control = flush_denormals();
  rewind();
  if (size_ > 1) {
    body_ = &body;
    busy_.store(size_ - 1, std::memory_order_relaxed);
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
  }
  body(Member{*this, 0, size_});
  for (int spins = 0; busy_.load(std::memory_order_acquire);)
    if (++spins < BARRIER_SPINS) relax();
    else sched_yield();
  restore(control);
}

void Team::barrier() {
  const uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == (uint32_t)size_) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; phase_.load(std::memory_order_acquire) == phase;)
    if (++spins < BARRIER_SPINS) relax();
    else sched_yield();
}

}  // namespace octavo
