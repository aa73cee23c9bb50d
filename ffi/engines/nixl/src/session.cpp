#include "session.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>

/* Longest wait for requests of others when a queue is closed. */
constexpr uint64_t CLOSE_NS = 10'000'000'000;
constexpr uint64_t STAGING_UNIT = 4096;
/* Time between two tries to attach, to see whether a sidecar lives. */
constexpr auto RETRY = std::chrono::seconds(1);

core::Status status_of(int32_t code) {
    switch (code) {
    case KVRAIL_OK: return core::Status::done;
    case KVRAIL_MISS: return core::Status::not_found;
    case KVRAIL_INVALID:
    case KVRAIL_E_REFUSED:
    case KVRAIL_E_ARGUMENT: return core::Status::invalid;
    case KVRAIL_DENIED: return core::Status::not_allowed;
    /* Not NIXL's status for a peer that is gone: the core would forget this agent's own memory. */
    default: return core::Status::failed;
    }
}

void require(int32_t code, const std::string &what) {
    if (code != KVRAIL_OK)
        throw Failure(status_of(code), what + ": " + kvrail_last_error() + " (" +
                                           kvrail_status_name(code) + ")");
}

Watch::~Watch() {
    if (shows()) close(pipe_);
}

void Watch::open(const kvrail_client *client) {
    require(kvrail_client_watch_transfers(client, &pipe_), "transfers");
}

bool Watch::hung_up() const {
    pollfd pipe{.fd = pipe_, .events = 0, .revents = 0};
    return shows() && poll(&pipe, 1, 0) > 0 && (pipe.revents & POLLHUP) != 0;
}

static int32_t close_queue(kvrail_queue **queue) { return kvrail_queue_close(queue, CLOSE_NS); }

Session::Session(const Settings &settings, const std::string &agent)
    : queue_(close_queue), staging_bytes_(settings.staging_bytes) {
    attach(settings, agent);
    if (!settings.store.empty()) open_store(settings);
    if (!settings.volume.empty()) {
        volume_.size = sizeof volume_;
        require(kvrail_volume_find(client_, settings.volume.c_str(), &volume_),
                "volume " + settings.volume);
    }
}

void Session::attach(const Settings &settings, const std::string &agent) {
    if (kvrail_abi_version() != KVRAIL_ABI_VERSION)
        throw Failure(core::Status::failed, "libkvrail " + std::string(kvrail_version()) +
                                                " is of another generation than this plug-in; "
                                                "install both from one release");
    std::string name = "nixl " + agent;
    kvrail_attach_options options{.size = sizeof options, .name = name.c_str()};
    require(kvrail_attach(settings.socket.c_str(), &options, client_.out()),
            "sidecar at " + settings.socket);
    kvrail_client_info info{.size = sizeof info};
    require(kvrail_client_describe(client_, &info), "session");
    run_ = info.epoch;
    transfers_.open(client_);
    uint64_t depth = std::min<uint64_t>(settings.depth, info.queue_depth_max);
    kvrail_queue_options wanted{.size = sizeof wanted, .depth = static_cast<uint32_t>(depth)};
    require(kvrail_queue_open(client_, &wanted, queue_.out()), "queue");
}

void Session::open_store(const Settings &settings) {
    require(kvrail_store_open(client_, settings.store.c_str(), store_.out()),
            "store " + settings.store);
    kvrail_store_info info{.size = sizeof info};
    require(kvrail_store_describe(store_, &info), "store " + settings.store);
    block_bytes_max_ = info.block_bytes_max;
    volume_.size = sizeof volume_;
    require(kvrail_volume_at(client_, info.volume, &volume_), "store " + settings.store);
    require(kvrail_namespace_open(store_, settings.space.c_str(), settings.identity.c_str(),
                                  KVRAIL_ABSENT_CREATE, space_.out()),
            "namespace " + settings.space);
}

bool Session::look() {
    pollfd hangup{.fd = -1, .events = POLLRDHUP, .revents = 0};
    if (!over_ && kvrail_client_hangup_fd(client_, &hangup.fd) == KVRAIL_OK)
        over_ = poll(&hangup, 1, 0) > 0;
    return over_;
}

std::optional<Place> Session::find(const void *memory, uint64_t bytes, std::string &why) {
    kvrail_arena_info first{.size = sizeof first}, last{.size = sizeof last};
    uint64_t begin = 0, end = 0;
    const auto *tail = static_cast<const uint8_t *>(memory) + bytes - 1;
    if (kvrail_region_of(client_, memory, &first, &begin) != KVRAIL_OK) {
        why = kvrail_last_error();
        return {};
    }
    if (kvrail_region_of(client_, tail, &last, &end) != KVRAIL_OK ||
        last.region != first.region || end - begin != bytes - 1) {
        why = "it is not one file from end to end";
        return {};
    }
    std::lock_guard guard(uses_mutex_);
    uses_[first.region]++;
    return Place{first.region, begin};
}

void Session::forget(uint32_t region) {
    {
        std::lock_guard guard(uses_mutex_);
        if (--uses_[region] > 0) return;
        uses_.erase(region);
    }
    /* A session that is over has no arenas. */
    kvrail_arena_detach(client_, region);
}

Staging::Staging(const kvrail_client *client, uint64_t bytes) {
    kvrail_arena_options wanted{.size = sizeof wanted, .bytes = bytes};
    arena_.size = sizeof arena_;
    require(kvrail_arena_create(client, &wanted, &arena_), "staging memory");
    free_[0] = arena_.bytes;
}

Staging &Session::staging() {
    if (!staging_) staging_.emplace(client_, staging_bytes_);
    return *staging_;
}

GpuWay Session::gpu_way(int gpu) {
    if (!gpu_staging_) gpu_staging_.emplace(client_, staging_bytes_);
    if (!copier_) {
        copier_.emplace(gpu_staging_->base(), gpu_staging_->bytes(), gpu);
        print("memory of GPUs is copied through " + std::to_string(gpu_staging_->bytes()) +
            " bytes of pinned memory (staging_bytes)");
    }
    return {*gpu_staging_, *copier_};
}

static uint64_t rounded(uint64_t bytes) {
    return (bytes + STAGING_UNIT - 1) / STAGING_UNIT * STAGING_UNIT;
}

std::optional<Stage> Staging::take(uint64_t bytes) {
    bytes = rounded(bytes);
    if (bytes > arena_.bytes)
        throw Failure(core::Status::invalid,
                      std::to_string(bytes) + " bytes do not fit the staging memory of " +
                          std::to_string(arena_.bytes) +
                          " bytes; raise staging_bytes, or register host memory that is a "
                          "shared file");
    auto room = std::find_if(free_.begin(), free_.end(),
                             [bytes](const auto &it) { return it.second >= bytes; });
    if (room == free_.end()) return {};
    auto [begin, length] = *room;
    free_.erase(room);
    if (length > bytes) free_[begin + bytes] = length - bytes;
    return Stage{begin, bytes};
}

void Staging::give(Stage stage) {
    auto at = free_.emplace(stage.position, stage.bytes).first;
    auto next = std::next(at);
    if (next != free_.end() && at->first + at->second == next->first) {
        at->second += next->second;
        free_.erase(next);
    }
    if (at == free_.begin()) return;
    auto before = std::prev(at);
    if (before->first + before->second == at->first) {
        before->second += at->second;
        free_.erase(at);
    }
}

std::vector<uint8_t> Session::present(const std::vector<kvrail_key> &keys) {
    std::vector<uint8_t> there(keys.size());
    std::lock_guard guard(mutex);
    auto probe = [&] {
        return kvrail_namespace_probe(space_, keys.data(), keys.size(), there.data(), nullptr);
    };
    int32_t code = probe();
    if (code == KVRAIL_STALE && kvrail_namespace_refresh(space_) == KVRAIL_OK) code = probe();
    if (code != KVRAIL_OK) over_ = over_ || code == KVRAIL_E_GONE;
    require(code, "lookup");
    bool unsure = std::ranges::count(there, KVRAIL_MAYBE) > 0;
    for (auto &it : there) it = it == KVRAIL_PRESENT;
    if (!unsure) return there;
    kvrail_lookup_request wanted{.size = sizeof wanted,
                                 .extent = KVRAIL_LOOKUP_ALL,
                                 .keys = keys.data(),
                                 .count = keys.size(),
                                 .there = there.data()};
    kvrail_found found{.size = sizeof found};
    code = kvrail_lookup(queue_, space_, &wanted, &found);
    if (code == KVRAIL_STALE && kvrail_namespace_refresh(space_) == KVRAIL_OK)
        code = kvrail_lookup(queue_, space_, &wanted, &found);
    if (code == KVRAIL_RESTARTED || code == KVRAIL_E_GONE) over_ = true;
    require(code, "lookup");
    return there;
}

std::shared_ptr<Session> Link::session() {
    std::lock_guard guard(mutex_);
    if (session_ == nullptr || session_->look())
        session_ = std::make_shared<Session>(settings_, agent_);
    return session_;
}

bool Link::lives_on(const Session &over) {
    std::lock_guard guard(mutex_);
    auto now = std::chrono::steady_clock::now();
    if ((session_ == nullptr || session_->look()) && now >= retry_at_) {
        retry_at_ = now + RETRY;
        try {
            session_ = std::make_shared<Session>(settings_, agent_);
        } catch (const Failure &) {
            return false;
        }
    }
    return session_ != nullptr && session_.get() != &over && session_->run() == over.run();
}
