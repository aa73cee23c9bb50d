/* Copies between staging memory and memory of GPUs. */
#ifndef KVRAIL_NIXL_COPIER_H
#define KVRAIL_NIXL_COPIER_H

#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "cuda.h"

struct Piece;

/* One copy. */
struct Copied {
    core::Direction direction;
    int gpu;
    Cuda::Address on_gpu;
    uint8_t *on_host;
    uint64_t bytes;
};

/* For one thread at a time. No call waits: flush marks begun copies, next returns ended ones. */
class Copier {
    /* Copies that end with one event. */
    struct Group {
        void *event;
        std::vector<Piece *> pieces;
    };
    /* A stream of a GPU in one direction. */
    struct Lane {
        void *stream = nullptr;
        std::vector<Piece *> begun;
        std::deque<Group> flying;
        std::vector<void *> events;
    };

    Cuda &driver_;
    int gpu_;
    void *base_;
    std::map<std::pair<int, core::Direction>, Lane> lanes_;
    std::deque<Piece *> ended_;
    std::string broken_;

    void record(int gpu, Lane &lane);
    void look(int gpu, Lane &lane);
    void give_up(const std::string &why);

  public:
    /* Pins staging memory for all GPUs, with the context of that one. */
    Copier(uint8_t *base, uint64_t bytes, int gpu);
    Copier(const Copier &) = delete;
    Copier &operator=(const Copier &) = delete;
    /* Nothing may be flying, unless it is broken. */
    ~Copier();
    /* Throws Failure: nothing was begun. */
    void begin(const Copied &copy, Piece *piece);
    void flush();
    /* A piece whose copy has ended. */
    std::optional<Piece *> next();
    /* Why copies fail from now on: a GPU failed, and may still touch its part of the memory. */
    const std::string &broken() const { return broken_; }
};

/* Bytes that were copied to and from GPUs, by all backends of this process. */
uint64_t gpu_copied_bytes();

#endif
