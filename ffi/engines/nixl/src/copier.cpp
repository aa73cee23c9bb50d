#include "copier.h"

#include <atomic>

using core::Direction;

constexpr unsigned PORTABLE = 1, NON_BLOCKING = 1, NO_TIMING = 2;
constexpr int32_t NOT_READY = 600;

static std::atomic<uint64_t> copied{0};

uint64_t gpu_copied_bytes() { return copied; }

Copier::Copier(uint8_t *base, uint64_t bytes, int gpu)
    : driver_(Cuda::driver()), gpu_(gpu), base_(base) {
    Cuda::Within context(driver_, gpu);
    driver_.pin(base, bytes, PORTABLE);
}

Copier::~Copier() {
    /* What a GPU may still touch stays pinned until the process ends. */
    if (!broken_.empty()) return;
    try {
        for (auto &[place, lane] : lanes_) {
            Cuda::Within context(driver_, place.first);
            for (void *event : lane.events) driver_.event_destroy(event);
            driver_.stream_destroy(lane.stream);
        }
        Cuda::Within context(driver_, gpu_);
        driver_.unpin(base_);
    } catch (const Failure &) {
        /* A driver that is being unloaded has let go already. */
    }
}

void Copier::begin(const Copied &copy, Piece *piece) {
    if (!broken_.empty()) throw Failure(core::Status::failed, broken_);
    Cuda::Within context(driver_, copy.gpu);
    Lane &lane = lanes_[{copy.gpu, copy.direction}];
    if (lane.stream == nullptr) driver_.stream_create(&lane.stream, NON_BLOCKING);
    if (copy.direction == Direction::read)
        driver_.to_gpu(copy.on_gpu, copy.on_host, copy.bytes, lane.stream);
    else
        driver_.from_gpu(copy.on_host, copy.on_gpu, copy.bytes, lane.stream);
    copied += copy.bytes;
    lane.begun.push_back(piece);
}

void Copier::record(int gpu, Lane &lane) {
    if (lane.begun.empty()) return;
    Cuda::Within context(driver_, gpu);
    if (lane.events.empty()) {
        void *event = nullptr;
        driver_.event_create(&event, NO_TIMING);
        lane.events.push_back(event);
    }
    driver_.event_record(lane.events.back(), lane.stream);
    lane.flying.push_back({lane.events.back(), std::move(lane.begun)});
    lane.events.pop_back();
    lane.begun.clear();
}

void Copier::look(int gpu, Lane &lane) {
    if (lane.flying.empty()) return;
    Cuda::Within context(driver_, gpu);
    while (!lane.flying.empty()) {
        Group &group = lane.flying.front();
        int32_t code = driver_.event_query.code(group.event);
        if (code == NOT_READY) return;
        if (code != 0) throw Failure(core::Status::failed, Cuda::message("cuEventQuery", code));
        ended_.insert(ended_.end(), group.pieces.begin(), group.pieces.end());
        lane.events.push_back(group.event);
        lane.flying.pop_front();
    }
}

/* All that is open ends, as failed. */
void Copier::give_up(const std::string &why) {
    broken_ = "a copy from or to a GPU failed: " + why + "; restart the program";
    for (auto &[place, lane] : lanes_) {
        for (Group &group : lane.flying)
            ended_.insert(ended_.end(), group.pieces.begin(), group.pieces.end());
        ended_.insert(ended_.end(), lane.begun.begin(), lane.begun.end());
        lane.flying.clear();
        lane.begun.clear();
    }
}

void Copier::flush() {
    try {
        for (auto &[place, lane] : lanes_) record(place.first, lane);
    } catch (const Failure &failure) {
        give_up(failure.what());
    }
}

std::optional<Piece *> Copier::next() {
    try {
        if (ended_.empty() && broken_.empty())
            for (auto &[place, lane] : lanes_) look(place.first, lane);
    } catch (const Failure &failure) {
        give_up(failure.what());
    }
    if (ended_.empty()) return {};
    Piece *piece = ended_.front();
    ended_.pop_front();
    return piece;
}
