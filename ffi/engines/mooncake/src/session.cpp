#include "session.h"

#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace kvrail {

constexpr uint64_t UNIT = 4096;
constexpr uint64_t CLOSE_NS = 1'000'000'000;
constexpr size_t EVENTS = 256;

void require(int32_t code, const std::string &what) {
    if (code != KVRAIL_OK)
        throw Failure(what + ": " + kvrail_last_error() + " (" + kvrail_status_name(code) + ")");
}

static std::string text(const char *name, const char *otherwise) {
    const char *given = std::getenv(name);
    return given != nullptr && *given != 0 ? given : otherwise;
}

static uint64_t number(const char *name, const char *otherwise) {
    std::string given = text(name, otherwise);
    if (given.size() > 15 || given.find_first_not_of("0123456789") != std::string::npos ||
        std::stoull(given) == 0)
        throw Failure(std::string(name) + " is '" + given + "'; it is a whole number above 0");
    return std::stoull(given);
}

Settings Settings::of_environment() {
    return {text("MOONCAKE_OFFLOAD_KVRAIL_SOCKET", "/run/kvrail/kvrail.sock"),
            text("MOONCAKE_OFFLOAD_KVRAIL_STORE", "kv"),
            text("MOONCAKE_OFFLOAD_KVRAIL_NAMESPACE", "mooncake"),
            text("MOONCAKE_OFFLOAD_KVRAIL_IDENTITY", R"({"written_by": "mooncake"})"),
            number("MOONCAKE_OFFLOAD_KVRAIL_TIMEOUT_MS", "3000"),
            number("MOONCAKE_OFFLOAD_KVRAIL_STAGING_BYTES", "67108864")};
}

Item::Item(const std::string &name) : key(name) { kvrail_key_of(name.data(), name.size(), &id); }

void Item::add(void *at, size_t size) {
    memory.emplace_back(static_cast<char *>(at), size);
    bytes += size;
}

std::string Item::why() const {
    std::string it = kvrail_status_name(status);
    return note == KVRAIL_NOTE_NONE ? it : it + ", " + kvrail_note_meaning(note);
}

static int32_t close_queue(kvrail_queue **queue) { return kvrail_queue_close(queue, CLOSE_NS); }

Lane::Lane(const kvrail_client *client, uint64_t bytes) : queue(close_queue) {
    kvrail_arena_options wanted{.size = sizeof wanted, .bytes = bytes};
    arena_.size = sizeof arena_;
    require(kvrail_arena_create(client, &wanted, &arena_), "staging memory");
    free_[0] = arena_.bytes;
    require(kvrail_queue_open(client, nullptr, queue.out()), "queue");
}

std::optional<uint64_t> Lane::take(uint64_t room) {
    auto found = std::ranges::find_if(free_, [room](auto &it) { return it.second >= room; });
    if (found == free_.end()) return {};
    auto [begin, length] = *found;
    free_.erase(found);
    if (length > room) free_[begin + room] = length - room;
    return begin;
}

void Lane::give(uint64_t position, uint64_t room) {
    auto here = free_.emplace(position, room).first;
    auto next = std::next(here);
    if (next != free_.end() && position + room == next->first) {
        here->second += next->second;
        free_.erase(next);
    }
    if (here == free_.begin()) return;
    auto before = std::prev(here);
    if (before->first + before->second != position) return;
    before->second += here->second;
    free_.erase(here);
}

int32_t Lane::submit(const kvrail_namespace *space, uint8_t opcode, std::vector<Item> &items,
                     size_t number) {
    const Item &item = items[number];
    kvrail_block_request request{.size = sizeof request, .opcode = opcode, .key = item.id};
    request.priority = opcode == KVRAIL_GET ? KVRAIL_DEMAND : KVRAIL_BACKGROUND;
    Flight flight{0, (item.bytes + UNIT - 1) / UNIT * UNIT, calls_, number};
    if (opcode != KVRAIL_DROP) {
        auto position = take(flight.room);
        if (!position) return KVRAIL_E_FULL;
        flight.position = request.position = *position;
        request.region = arena_.region;
        request.length = item.bytes;
    }
    if (opcode == KVRAIL_PUT) {
        char *to = at(flight.position);
        for (auto [from, bytes] : item.memory) to = std::copy_n(from, bytes, to);
        request.flags = KVRAIL_REPLACE;
        request.metadata = item.key.data();
        request.metadata_bytes = item.key.size();
    }
    request.tag = ++tags_;
    int32_t code = kvrail_submit_blocks(queue, space, &request, 1, nullptr, nullptr);
    if (code == KVRAIL_OK) flights_.emplace(request.tag, flight);
    else if (opcode != KVRAIL_DROP) give(flight.position, flight.room);
    return code;
}

bool Lane::end(const kvrail_completion &end, uint8_t opcode, std::vector<Item> &items) {
    auto node = flights_.extract(end.tag);
    if (node.empty()) return false;
    const Flight flight = node.mapped();
    const bool ours = flight.call == calls_;
    if (ours) {
        Item &item = items[flight.item];
        item.status = end.status;
        item.note = end.note;
        const bool other = opcode == KVRAIL_GET && end.bytes != item.bytes;
        if (end.status == KVRAIL_TOO_SMALL || (end.status == KVRAIL_OK && other))
            item.status = KVRAIL_MISS;  // an object of another length is not this one
        if (opcode == KVRAIL_GET && item.status == KVRAIL_OK) {
            const char *from = at(flight.position);
            for (auto [to, bytes] : item.memory) {
                std::memcpy(to, from, bytes);
                from += bytes;
            }
        }
    }
    if (flight.room > 0 && opcode != KVRAIL_DROP) give(flight.position, flight.room);
    return ours;
}

Session::Session(const Settings &settings) : timeout_(settings.timeout_ms) {
    if (kvrail_abi_version() != KVRAIL_ABI_VERSION)
        throw Failure(std::string("libkvrail ") + kvrail_version() +
                      " is of another generation than its header");
    kvrail_attach_options options{.size = sizeof options, .name = "mooncake"};
    options.timeout_ns = settings.timeout_ms * 1'000'000;
    require(kvrail_attach(settings.socket.c_str(), &options, client_.out()),
            "sidecar at " + settings.socket);
    require(kvrail_store_open(client_, settings.store.c_str(), store_.out()),
            "store " + settings.store);
    kvrail_store_info info{.size = sizeof info};
    require(kvrail_store_describe(store_, &info), "store " + settings.store);
    block_bytes_max_ = info.block_bytes_max;
    require(kvrail_namespace_open(store_, settings.space.c_str(), settings.identity.c_str(),
                                  KVRAIL_ABSENT_CREATE, space_.out()),
            "namespace " + settings.space);
    require(kvrail_store_events(store_, events_.out()), "feed of store " + settings.store);
    puts_.emplace(client_, std::max(settings.staging_bytes, block_bytes_max_));
    gets_.emplace(client_, std::max(settings.staging_bytes, block_bytes_max_));
}

bool Session::over() {
    pollfd hangup{.fd = -1, .events = POLLRDHUP, .revents = 0};
    if (!over_ && kvrail_client_hangup_fd(client_, &hangup.fd) == KVRAIL_OK)
        over_ = poll(&hangup, 1, 0) > 0;
    return over_;
}

void Session::run(uint8_t opcode, std::vector<Item> &items) {
    Lane &lane = opcode == KVRAIL_GET ? *gets_ : *puts_;
    std::unique_lock guard(lane.mutex, timeout_);
    if (!guard) return;
    lane.begin();
    const uint64_t patience = std::chrono::nanoseconds(timeout_).count();
    bool stale = false;
    for (size_t next = 0, open = 0;;) {
        for (int32_t code; next < items.size(); next++) {
            code = lane.submit(space_, opcode, items, next);
            if (code == KVRAIL_E_FULL) break;
            if (code == KVRAIL_OK) open++;
            else items[next].status = code;
        }
        if (next == items.size() && open == 0) break;
        kvrail_completion ends[64];
        size_t count = 0;
        ends[0].size = sizeof ends[0];
        int32_t code = kvrail_wait(lane.queue, ends, std::size(ends), 1, patience, &count);
        for (size_t i = 0; i < count; i++) {
            open -= lane.end(ends[i], opcode, items);
            over_ = over_ || ends[i].status == KVRAIL_RESTARTED;
            stale |= ends[i].status == KVRAIL_STALE || ends[i].note == KVRAIL_NOTE_STALE;
        }
        if (count > 0) continue;
        over_ = over_ || (code != KVRAIL_OK && code != KVRAIL_E_TIMEOUT);
        break;
    }
    if (stale) kvrail_namespace_refresh(space_);
}

std::vector<uint8_t> Session::probe(const std::vector<kvrail_key> &keys) {
    std::vector<uint8_t> there(keys.size());
    require(kvrail_namespace_probe(space_, keys.data(), keys.size(), there.data(), nullptr),
            "lookup");
    return there;
}

std::vector<std::string> Session::evicted() {
    std::vector<std::string> keys;
    std::vector<kvrail_event> events(EVENTS);
    uint64_t uid = 0;
    for (size_t count = 1; count > 0;) {
        uint64_t lost = 0;
        events[0].size = sizeof events[0];
        require(kvrail_events_poll(events_, events.data(), EVENTS, &count, &lost), "feed");
        if (count > 0 && uid == 0) {
            kvrail_namespace_info info{.size = sizeof info};
            require(kvrail_namespace_usage(space_, &info), "namespace");
            uid = info.uid;
        }
        for (size_t i = 0; i < count; i++) {
            const kvrail_event &it = events[i];
            if (it.kind == KVRAIL_EVICTED && it.uid == uid && it.metadata_bytes > 0)
                keys.emplace_back(reinterpret_cast<const char *>(it.metadata), it.metadata_bytes);
        }
    }
    return keys;
}

}  // namespace kvrail
