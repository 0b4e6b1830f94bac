// A fixed team of threads, one a core, that runs one function at a time together with its caller.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace octavo {

class Team;

// What a thread of the team knows: its number, and how to wait for the others.
struct Member {
  Team& team;
  int index;
  int size;

  void barrier() const;
  // This thread's share of `count` items: [first, last), contiguous.
  void share(int64_t count, int64_t& first, int64_t& last) const {
    first = count * index / size;
    last = count * (index + 1) / size;
  }
};

// The caller of `run` is member 0. Waiting threads spin for a short while, because ops follow each other within
// microseconds, and then sleep, because other processes share the cores. A team as large as the number of cores that it
// may use keeps each member on one of them: the system would at times put two on one.
class Team {
 public:
  explicit Team(int size);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }
  void run(const std::function<void(const Member&)>& body);
  void barrier();
  // A counter that `run` sets to zero: members draw items from it, so that one that lost its core holds up nobody.
  int64_t draw(int64_t count) { return next_.fetch_add(count, std::memory_order_relaxed); }
  // For the calling thread, which is member 0: its core, and what it had before.
  void settle();
  void unsettle();
  void rewind() { next_.store(0, std::memory_order_relaxed); }

 private:
  void work(int index);
  void end();

  const int size_;
  const std::vector<int> cores_;  // one a member, or none
  std::vector<std::thread> threads_;
  const std::function<void(const Member&)>* body_ = nullptr;
  alignas(64) std::atomic<uint32_t> round_{0};
  alignas(64) std::atomic<uint32_t> busy_{0};
  alignas(64) std::atomic<uint32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  std::atomic<bool> closing_{false};
};

// Keeps the calling thread on its core for a scope with many runs.
class Settled {
 public:
  explicit Settled(Team& team) : team_(team) { team_.settle(); }
  ~Settled() { team_.unsettle(); }
  Settled(const Settled&) = delete;
  Settled& operator=(const Settled&) = delete;

 private:
  Team& team_;
};

inline void Member::barrier() const {
  if (size > 1) team.barrier();
}

}  // namespace octavo
