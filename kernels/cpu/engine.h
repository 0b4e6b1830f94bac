// The threads and the scratch memory that all ops of one backend share. Used by one caller at a time.
#pragma once
#include <cstddef>
#include <memory>

#include "threads.h"

namespace octavo {

// `bytes` zeroed bytes at a 2 MiB boundary, in huge pages where the system allows; never null.
void* allocate(size_t bytes);
void release(void* memory, size_t bytes);

// Memory that grows and keeps its pages. What it held is lost when it grows.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch() { release(data_, size_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  template <class T>
  T* get(size_t count) {
    return static_cast<T*>(reserve(count * sizeof(T)));
  }

 private:
  void* reserve(size_t bytes);

  void* data_ = nullptr;
  size_t size_ = 0;
};

struct Engine {
  explicit Engine(int threads) : team(threads), own(new Scratch[threads]), gathers(new Scratch[threads]) {}

  Team team;
  Scratch inputs;   // rows in the form that products take them
  Scratch results;  // rows of a product that the next phase reads
  Scratch hidden;   // activations between the two products of an MLP
  Scratch partials;  // attention's splits
  Scratch shrunk;    // adapters' rows between their two products
  std::unique_ptr<Scratch[]> own;  // one a thread
  std::unique_ptr<Scratch[]> gathers;  // one a thread: an adapter's rows, then what adapters add to a block
};

}  // namespace octavo
