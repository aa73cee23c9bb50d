// One attachment to a sidecar: its store, and staging memory that objects pass through.
#pragma once

#include <kvrail.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvrail {

// The end of a call, with a message for people.
struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Settings {
    std::string socket, store, space, identity;
    uint64_t timeout_ms, staging_bytes;

    // From MOONCAKE_OFFLOAD_KVRAIL_SOCKET and so on. Throws Failure.
    static Settings of_environment();
};

// One object, and its result.
struct Item {
    std::string key;
    kvrail_key id{};
    // The program's memory, one piece behind the other.
    std::vector<std::pair<char *, size_t>> memory{};
    uint64_t bytes = 0;
    int32_t status = KVRAIL_E_TIMEOUT;
    uint32_t note = KVRAIL_NOTE_NONE;

    explicit Item(const std::string &name);
    void add(void *at, size_t size);
    // Whether the call did what it was for, and all of it.
    bool done() const { return status == KVRAIL_OK && note == KVRAIL_NOTE_NONE; }
    std::string why() const;
};

template <class T> class Handle {
    T *it_ = nullptr;
    int32_t (*close_)(T **);

  public:
    explicit Handle(int32_t (*close)(T **)) : close_(close) {}
    Handle(const Handle &) = delete;
    ~Handle() {
        if (it_ != nullptr) close_(&it_);
    }
    T **out() { return &it_; }
    operator T *() const { return it_; }
};

// A queue with staging memory. What a call left behind in flight keeps its part of the memory until
// it ends, and touches nothing else.
class Lane {
    struct Flight {
        uint64_t position, room, call;
        size_t item;
    };

    kvrail_arena_info arena_{};
    std::map<uint64_t, uint64_t> free_;
    std::unordered_map<uint64_t, Flight> flights_;
    uint64_t tags_ = 0, calls_ = 0;

    char *at(uint64_t position) const { return static_cast<char *>(arena_.base) + position; }
    std::optional<uint64_t> take(uint64_t room);
    void give(uint64_t position, uint64_t room);

  public:
    std::timed_mutex mutex;
    Handle<kvrail_queue> queue;

    Lane(const kvrail_client *client, uint64_t bytes);
    // Begins a call; what is in flight belongs to those before.
    void begin() { ++calls_; }
    // KVRAIL_E_FULL: not now.
    int32_t submit(const kvrail_namespace *space, uint8_t opcode, std::vector<Item> &items,
                   size_t number);
    // Whether it was one of this call.
    bool end(const kvrail_completion &end, uint8_t opcode, std::vector<Item> &items);
};

class Session {
    Handle<kvrail_client> client_{kvrail_close};
    Handle<kvrail_store> store_{kvrail_store_close};
    Handle<kvrail_namespace> space_{kvrail_namespace_close};
    Handle<kvrail_events> events_{kvrail_events_close};
    std::optional<Lane> puts_, gets_;
    std::chrono::milliseconds timeout_;
    uint64_t block_bytes_max_ = 0;
    std::atomic<bool> over_ = false;

  public:
    explicit Session(const Settings &settings);

    // Whether the sidecar went away.
    bool over();
    uint64_t block_bytes_max() const { return block_bytes_max_; }
    const kvrail_namespace *space() const { return space_; }

    // KVRAIL_PUT, KVRAIL_GET or KVRAIL_DROP for all items. Returns when all have ended, or nothing
    // came for the time limit.
    void run(uint8_t opcode, std::vector<Item> &items);
    // Which of the keys are there now, without asking the sidecar: KVRAIL_PRESENT and so on.
    std::vector<uint8_t> probe(const std::vector<kvrail_key> &keys);
    // Keys of objects of this namespace that the store evicted since the last call.
    std::vector<std::string> evicted();
};

// Throws the text of kvrail_last_error, unless the code is KVRAIL_OK.
void require(int32_t code, const std::string &what);

}  // namespace kvrail
