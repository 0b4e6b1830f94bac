#include "engine.h"

#include <sys/mman.h>
#include <unistd.h>

#include <exception>
#include <new>

#include "pairs.h"

namespace octavo {
namespace {

constexpr size_t HUGE_PAGE = size_t(2) << 20;

size_t rounded(size_t bytes) { return (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE; }

}  // namespace

void* allocate(size_t bytes) {
  const size_t size = rounded(bytes) + HUGE_PAGE;
  char* raw = static_cast<char*>(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (raw == MAP_FAILED) throw std::bad_alloc();
  char* begin = reinterpret_cast<char*>(rounded(reinterpret_cast<size_t>(raw)));
  if (begin > raw) munmap(raw, begin - raw);
  char* end = begin + rounded(bytes);
  if (raw + size > end) munmap(end, raw + size - end);
#ifdef MADV_HUGEPAGE
  if (bytes >= HUGE_PAGE) madvise(begin, rounded(bytes), MADV_HUGEPAGE);
#endif
  return begin;
}

void release(void* memory, size_t bytes) {
  if (memory) munmap(memory, rounded(bytes));
}

void* Scratch::reserve(size_t bytes) {
  if (bytes > size_) {
    release(data_, size_);
    data_ = nullptr;
    size_ = 0;
    data_ = allocate(bytes);
    size_ = rounded(bytes);
  }
  return data_;
}

}  // namespace octavo

extern "C" {

// Whether the instructions that this library was built for can be used here; to be asked before anything else is.
int64_t octavo_permitted() { return octavo::tiles_permitted(); }

// A digest of what the processor decides about results, beside the instructions: equal libraries need not sum alike on two kinds of them.
int64_t octavo_rounding() { return static_cast<int64_t>(octavo::rounding()); }

// Null where the system has no such number of threads, or no memory for them.
octavo::Engine* octavo_engine_new(int64_t threads) {
  try {
    return new octavo::Engine(static_cast<int>(threads));
  } catch (const std::exception&) {
    return nullptr;
  }
}

void octavo_engine_free(octavo::Engine* engine) { delete engine; }

void* octavo_allocate(int64_t bytes) {
  try {
    return octavo::allocate(static_cast<size_t>(bytes));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void octavo_release(void* memory, int64_t bytes) { octavo::release(memory, static_cast<size_t>(bytes)); }

// Where the system cannot, whoever writes there first has it given.
void octavo_touch(void* memory, int64_t bytes) {
#if defined(__linux__)
  constexpr int POPULATE_WRITE = 23;  // Linux 5.14; older headers do not name it
  const size_t page = size_t(sysconf(_SC_PAGESIZE)), first = reinterpret_cast<size_t>(memory) / page * page;
  madvise(reinterpret_cast<void*>(first), reinterpret_cast<size_t>(memory) + size_t(bytes) - first, POPULATE_WRITE);
#else
  (void)memory, (void)bytes;
#endif
}
}
