/* One attachment to a sidecar: its queue, its store or volume, and staging memory. */
#ifndef KVRAIL_NIXL_SESSION_H
#define KVRAIL_NIXL_SESSION_H

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <kvrail.h>

#include "copier.h"
#include "failure.h"

/* NIXL's status for a code of libkvrail. */
core::Status status_of(int32_t code);
/* Throws the text of kvrail_last_error, unless the code is KVRAIL_OK. */
void require(int32_t code, const std::string &what);

/* The backend's parameters. */
struct Settings {
    std::string socket = "/run/kvrail/kvrail.sock";
    std::string store;
    std::string space = "nixl";
    std::string identity = R"({"written_by": "nixl"})";
    std::string volume;
    uint64_t depth = 256;
    uint64_t staging_bytes = 64 << 20;

    /* Of backend KVRAIL, or of OBJ, which has the names of an object store. */
    static Settings of(const std::string &backend, const core::Parameters &given);
    static core::Parameters defaults();
};

template <class T> class Handle {
    using Close = int32_t (*)(T **);
    T *it_ = nullptr;
    Close close_;

  public:
    explicit Handle(Close close) : close_(close) {}
    Handle(const Handle &) = delete;
    Handle &operator=(const Handle &) = delete;
    ~Handle() {
        if (it_ != nullptr) close_(&it_);
    }
    T **out() { return &it_; }
    operator T *() const { return it_; }
};

/* Where memory is for the sidecar. */
struct Place {
    uint32_t region;
    uint64_t position;
};

/* A piece of staging memory. */
struct Stage {
    uint64_t position;
    uint64_t bytes;
};

/* Memory of the sidecar that bytes pass through, of fixed size: a caller that finds none waits. */
class Staging {
    kvrail_arena_info arena_{};
    std::map<uint64_t, uint64_t> free_;

  public:
    Staging(const kvrail_client *client, uint64_t bytes);
    /* Memory of this size; nothing while others have it. */
    std::optional<Stage> take(uint64_t bytes);
    void give(Stage stage);
    uint32_t region() const { return arena_.region; }
    uint64_t bytes() const { return arena_.bytes; }
    uint8_t *base() const { return static_cast<uint8_t *>(arena_.base); }
    uint8_t *at(Stage stage) const { return base() + stage.position; }
};

/* What serves memory of GPUs: staging memory of its own, pinned, and copies from and to it. */
struct GpuWay {
    Staging &staging;
    Copier &copier;
};

class Transfer;

/* The end of a pipe that hangs up once the drives of a sidecar that has ended write no memory. */
class Watch {
    int pipe_ = -1;

  public:
    Watch() = default;
    Watch(const Watch &) = delete;
    Watch &operator=(const Watch &) = delete;
    ~Watch();
    void open(const kvrail_client *client);
    /* Sidecars of earlier releases have none. */
    bool shows() const { return pipe_ >= 0; }
    bool hung_up() const;
};

class Session {
    Handle<kvrail_client> client_{kvrail_close};
    Handle<kvrail_store> store_{kvrail_store_close};
    Handle<kvrail_namespace> space_{kvrail_namespace_close};
    Handle<kvrail_queue> queue_;
    Watch transfers_;
    uint64_t run_ = 0;
    kvrail_volume_info volume_{};
    uint64_t block_bytes_max_ = 0;
    uint64_t staging_bytes_;
    std::optional<Staging> staging_, gpu_staging_;
    std::optional<Copier> copier_;
    std::vector<Transfer *> open_;
    std::mutex uses_mutex_;
    std::map<uint32_t, uint32_t> uses_;
    std::atomic<bool> over_ = false;

    void attach(const Settings &settings, const std::string &agent);
    void open_store(const Settings &settings);

  public:
    /* Guards the queue, the staging memory, and the transfers that are open. */
    std::mutex mutex;

    Session(const Settings &settings, const std::string &agent);

    kvrail_queue *queue() const { return queue_; }
    const kvrail_namespace *space() const { return space_; }
    const kvrail_volume_info &volume() const { return volume_; }
    uint64_t block_bytes_max() const { return block_bytes_max_; }

    /* Whether the end of the sidecar was noticed. */
    bool over() const { return over_; }
    /* Looks whether it did. */
    bool look();
    void end() { over_ = true; }
    const Watch &transfers() const { return transfers_; }
    /* Which run of the sidecar it is with. */
    uint64_t run() const { return run_; }

    /* Where this program's memory is, if the sidecar can map it; why not, otherwise. */
    std::optional<Place> find(const void *memory, uint64_t bytes, std::string &why);
    /* The memory that was found there is not used any more. */
    void forget(uint32_t region);

    /* All below with the mutex. Made at their first use. */
    Staging &staging();
    GpuWay gpu_way(int gpu);
    /* Nothing, before gpu_way. */
    Copier *copier() { return copier_ ? &*copier_ : nullptr; }

    /* The transfers that are under way, in the order that they were posted. */
    const std::vector<Transfer *> &open() const { return open_; }
    void enter(Transfer &transfer) { open_.push_back(&transfer); }
    void leave(const Transfer &transfer) { std::erase(open_, &transfer); }

    /* For each key whether its block is there. */
    std::vector<uint8_t> present(const std::vector<kvrail_key> &keys);
};

/* The way to the sidecar, through all its lives. */
class Link {
    Settings settings_;
    std::string agent_;
    std::mutex mutex_;
    std::shared_ptr<Session> session_;
    std::chrono::steady_clock::time_point retry_at_{};

  public:
    Link(Settings settings, std::string agent)
        : settings_(std::move(settings)), agent_(std::move(agent)) {}
    const Settings &settings() const { return settings_; }
    /* The session, which is made if there is none or it is over. Throws Failure. */
    std::shared_ptr<Session> session();
    /* Whether the sidecar of a session that is over lives: another session is with the same run of
     * it. Tries to attach once in a while. */
    bool lives_on(const Session &over);
};

#endif
