// The store from C++: wrong uses end in the code of the header, listings and the feed have the
// blocks that are there and gone: `store SOCKET STORE`.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <kvrail.h>

namespace {

constexpr const char *identity = R"({"model": "m", "dtype": "bf16"})";
constexpr std::size_t blocks = 10;

kvrail_client *client;
kvrail_store *store;
kvrail_namespace *space;
kvrail_queue *queue;
kvrail_arena_info arena;

// Checks the code, and that an error has a message, which contains the given words.
void expect(std::int32_t wanted, std::int32_t got, int line, const char *words = "") {
    if (got != wanted || (got != KVRAIL_OK && std::strstr(kvrail_last_error(), words) == nullptr)) {
        std::fprintf(stderr, "line %d: %s, not %s: %s\n", line, kvrail_status_name(got),
                     kvrail_status_name(wanted), kvrail_last_error());
        std::exit(1);
    }
}
#define CHECK(condition) expect(KVRAIL_OK, (condition) ? KVRAIL_OK : KVRAIL_INTERNAL, __LINE__)

kvrail_key key_of(std::uint64_t number) {
    kvrail_key key{};
    expect(KVRAIL_OK, kvrail_key_of(&number, sizeof number, &key), __LINE__);
    return key;
}

kvrail_block_request request(std::uint8_t opcode, std::uint64_t number) {
    kvrail_block_request made{};
    made.size = sizeof made;
    made.opcode = opcode;
    made.key = key_of(number);
    made.region = opcode == KVRAIL_DROP ? 0 : arena.region;
    made.length = 1000 + number;
    return made;
}

std::int32_t submit(const kvrail_block_request &made) {
    return kvrail_submit_blocks(queue, space, &made, 1, nullptr, nullptr);
}

kvrail_completion end_of(const kvrail_block_request &made) {
    kvrail_completion end{};
    end.size = sizeof end;
    std::size_t count = 0;
    expect(KVRAIL_OK, submit(made), __LINE__);
    expect(KVRAIL_OK, kvrail_wait(queue, &end, 1, 1, KVRAIL_FOREVER, &count), __LINE__);
    CHECK(count == 1);
    return end;
}

void misuse() {
    kvrail_store *no_store = nullptr;
    kvrail_namespace *none = nullptr;
    const auto open = [&](const char *name, const char *json, std::uint32_t absent) {
        return kvrail_namespace_open(store, name, json, absent, &none);
    };
    expect(KVRAIL_E_NO_VOLUME, kvrail_store_open(client, "nowhere", &no_store), __LINE__, "kv");
    expect(KVRAIL_E_ARGUMENT, open("a", "{", 0), __LINE__, "JSON object");
    expect(KVRAIL_E_ARGUMENT, open("a", R"({"model": null})", 0), __LINE__, "\"model\" is null");
    expect(KVRAIL_E_ARGUMENT, open("a", nullptr, 0), __LINE__, "identity is null");
    expect(KVRAIL_E_ARGUMENT, open("a", identity, 7), __LINE__, "KVRAIL_ABSENT_CREATE");
    expect(KVRAIL_MISS, open("a", identity, KVRAIL_ABSENT_FAIL), __LINE__, "a");
    const char *other = R"({"model": "m", "dtype": "fp8"})";
    expect(KVRAIL_INVALID, open("store.cpp", other, 0), __LINE__, "dtype");
    CHECK(none == nullptr);
    kvrail_key key{};
    expect(KVRAIL_E_ARGUMENT, kvrail_key_uniform("short", 5, &key), __LINE__, "kvrail_key_of");
    expect(KVRAIL_E_ARGUMENT, kvrail_key_of(nullptr, 5, &key), __LINE__, "data is null");

    auto bad = request(99, 1);
    expect(KVRAIL_E_ARGUMENT, submit(bad), __LINE__, "KVRAIL_PUT");
    bad = request(KVRAIL_PUT, 1);
    bad.flags = 64;
    expect(KVRAIL_E_ARGUMENT, submit(bad), __LINE__, "flags");
    bad = request(KVRAIL_PUT, 1);
    const std::vector<char> metadata(1025);
    bad.metadata = metadata.data();
    bad.metadata_bytes = metadata.size();
    expect(KVRAIL_E_REFUSED, submit(bad), __LINE__, "1024 at most");
    bad = request(KVRAIL_GET, 1);
    bad.metadata = identity;
    bad.metadata_bytes = 1;
    expect(KVRAIL_E_REFUSED, submit(bad), __LINE__, "metadata means nothing for a get");
    bad = request(KVRAIL_GET, 1);
    bad.flags = KVRAIL_BEGINS;
    expect(KVRAIL_E_REFUSED, submit(bad), __LINE__, "chain means nothing for a get");
    bad = request(KVRAIL_DROP, 1);
    bad.deadline_ns = 1;
    expect(KVRAIL_E_REFUSED, submit(bad), __LINE__, "deadline");
    bad = request(KVRAIL_GET, 1);
    bad.region = arena.region + 1;
    expect(KVRAIL_E_NO_ARENA, submit(bad), __LINE__);
    bad = request(KVRAIL_GET, 1);
    bad.length = 0;
    expect(KVRAIL_E_MEMORY, submit(bad), __LINE__);
    bad.length = UINT64_MAX;
    expect(KVRAIL_E_MEMORY, submit(bad), __LINE__);

    kvrail_lookup_request lookup{};
    kvrail_found found{};
    lookup.size = sizeof lookup;
    found.size = sizeof found;
    expect(KVRAIL_OK, kvrail_lookup(queue, space, &lookup, &found), __LINE__);
    CHECK(found.prefix == 0 && found.asked == 0);
    lookup.hold_ns = 61ull * 1000 * 1000 * 1000;
    expect(KVRAIL_INVALID, kvrail_lookup(queue, space, &lookup, &found), __LINE__, "60000 at most");
    lookup.hold_ns = 0;
    lookup.extent = 2;
    expect(KVRAIL_E_ARGUMENT, kvrail_lookup(queue, space, &lookup, &found), __LINE__, "extent");
    lookup.extent = 0;
    lookup.count = 3;
    expect(KVRAIL_E_ARGUMENT, kvrail_lookup(queue, space, &lookup, &found), __LINE__, "keys");
}

void put_get_drop() {
    for (std::uint64_t i = 0; i < blocks; i++) {
        std::memset(arena.base, static_cast<int>('a' + i), 1000 + i);
        auto put = request(KVRAIL_PUT, i);
        put.metadata = &i;
        put.metadata_bytes = sizeof i;
        put.flags = i % 2 == 0 ? 0 : KVRAIL_BEGINS;
        auto end = end_of(put);
        CHECK(end.status == KVRAIL_OK && end.note == KVRAIL_NOTE_NONE && end.bytes == 1000 + i);
        end = end_of(put);
        CHECK(end.status == KVRAIL_OK && end.note == KVRAIL_NOTE_PRESENT);
    }
    auto get = request(KVRAIL_GET, 3);
    get.length = 10;
    auto end = end_of(get);
    CHECK(end.status == KVRAIL_TOO_SMALL && end.bytes == 1003);
    get.length = end.bytes;
    end = end_of(get);
    CHECK(end.status == KVRAIL_OK && std::memcmp(arena.base, "dddd", 4) == 0);
    CHECK(end_of(request(KVRAIL_GET, 77)).status == KVRAIL_MISS);
}

// One block is there, one is not; errors name the misuse.
void probes() {
    const kvrail_key keys[] = {key_of(3), key_of(5), key_of(77), key_of(6)};
    std::uint8_t presence[5] = {9, 9, 9, 9, 9};
    std::size_t prefix = 9;
    const auto probe = [&](std::size_t count) {
        return kvrail_namespace_probe(space, keys, count, presence, &prefix);
    };
    while (presence[2] != KVRAIL_ABSENT) { // until recovery is over
        expect(KVRAIL_OK, probe(4), __LINE__);
    }
    CHECK(presence[0] == KVRAIL_PRESENT && presence[1] == KVRAIL_PRESENT && presence[4] == 9);
    CHECK(presence[2] == KVRAIL_ABSENT && presence[3] == KVRAIL_PRESENT && prefix == 2);
    expect(KVRAIL_OK, probe(0), __LINE__);
    CHECK(prefix == 0);
    expect(KVRAIL_OK, kvrail_namespace_probe(space, keys, 4, nullptr, nullptr), __LINE__);
    expect(KVRAIL_E_ARGUMENT, kvrail_namespace_probe(space, nullptr, 1, presence, &prefix),
           __LINE__, "keys is null");
    expect(KVRAIL_E_ARGUMENT, kvrail_namespace_probe(nullptr, keys, 1, presence, &prefix),
           __LINE__, "space is null");
}

// Content of the listing: each block once, with the number in its metadata.
std::vector<bool> listed() {
    std::vector<bool> seen(blocks);
    kvrail_listing *listing = nullptr;
    std::uint64_t unreadable = 7;
    expect(KVRAIL_OK, kvrail_namespace_list(space, &listing), __LINE__);
    for (std::size_t count = 1; count > 0;) {
        kvrail_block_info info[3]{};
        info[0].size = sizeof *info;
        expect(KVRAIL_OK, kvrail_listing_next(listing, info, 3, &count, &unreadable), __LINE__);
        CHECK(unreadable == 0 && count <= 3);
        for (std::size_t at = 0; at < count; at++) {
            std::uint64_t number = 0;
            CHECK(info[at].metadata_bytes == sizeof number);
            std::memcpy(&number, info[at].metadata, sizeof number);
            const kvrail_key key = key_of(number);
            CHECK(number < blocks && !seen[number] && info[at].length == 1000 + number);
            CHECK(std::memcmp(&key, &info[at].key, sizeof key) == 0);
            seen[number] = true;
        }
    }
    expect(KVRAIL_OK, kvrail_listing_close(&listing), __LINE__);
    CHECK(listing == nullptr);
    return seen;
}

// Waits for one event.
kvrail_event next(const kvrail_events *events) {
    kvrail_event gone{};
    gone.size = sizeof gone;
    std::size_t count = 0;
    for (std::uint64_t lost = 0; count == 0;) {
        expect(KVRAIL_OK, kvrail_events_poll(events, &gone, 1, &count, &lost), __LINE__);
        CHECK(lost == 0);
    }
    return gone;
}

void listings_and_events() {
    kvrail_events *events = nullptr;
    kvrail_namespace_info usage{};
    usage.size = sizeof usage;
    expect(KVRAIL_OK, kvrail_store_events(store, &events), __LINE__);
    expect(KVRAIL_OK, kvrail_namespace_usage(space, &usage), __LINE__);
    CHECK(usage.blocks == blocks && listed() == std::vector<bool>(blocks, true));
    CHECK(end_of(request(KVRAIL_DROP, 4)).status == KVRAIL_OK);
    CHECK(end_of(request(KVRAIL_DROP, 4)).status == KVRAIL_MISS);
    const kvrail_event gone = next(events);
    const kvrail_key key = key_of(4);
    CHECK(gone.kind == KVRAIL_DROPPED && gone.uid == usage.uid);
    CHECK(std::memcmp(&gone.key, &key, sizeof key) == 0);
    std::vector<bool> left(blocks, true);
    left[4] = false;
    CHECK(listed() == left);
    std::uint8_t dropped = 9;
    expect(KVRAIL_OK, kvrail_namespace_probe(space, &key, 1, &dropped, nullptr), __LINE__);
    CHECK(dropped == KVRAIL_ABSENT);
    expect(KVRAIL_OK, kvrail_namespace_clear(space), __LINE__);
    kvrail_event cleared = next(events);
    while (cleared.kind == KVRAIL_DROPPED) { // the second drop left a record, too
        cleared = next(events);
    }
    CHECK(cleared.kind == KVRAIL_CLEARED && cleared.uid == usage.uid);
    expect(KVRAIL_OK, kvrail_events_close(&events), __LINE__);
    CHECK(listed() == std::vector<bool>(blocks, false));
}

kvrail_key_info explained(std::uint64_t number) {
    const kvrail_key key = key_of(number);
    kvrail_key_info info{};
    info.size = sizeof info;
    expect(KVRAIL_OK, kvrail_namespace_explain(space, &key, &info), __LINE__);
    return info;
}

void explanations() {
    const auto there = explained(3);
    CHECK(there.state == KVRAIL_KEY_THERE && there.length == 1003 && there.worth == 0);
    CHECK(there.event == KVRAIL_NO_EVENT && there.epoch > 0 && there.opened_unix_s > 0);
    CHECK(explained(77).state == KVRAIL_KEY_ABSENT);
    kvrail_key_info info{};
    info.size = sizeof info;
    expect(KVRAIL_E_ARGUMENT, kvrail_namespace_explain(space, nullptr, &info), __LINE__, "key");
}

// Memory that an engine hands over: it becomes an arena once, whatever mapping names it.
void regions() {
    constexpr std::size_t bytes = 1 << 20;
    const int fd = memfd_create("engine", MFD_ALLOW_SEALING);
    CHECK(posix_fallocate(fd, 0, bytes) == 0);
    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
    const auto map = [fd](int flags) {
        void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
        CHECK(at != MAP_FAILED);
        return static_cast<char *>(at);
    };
    char *first = map(MAP_SHARED);
    char *second = map(MAP_SHARED);
    char *copy = map(MAP_PRIVATE);
    kvrail_arena_info info{};
    kvrail_arena_info same{};
    info.size = sizeof info;
    same.size = sizeof same;
    std::uint64_t position = 7;
    const auto region_of = [&](const void *address, kvrail_arena_info &of) {
        return kvrail_region_of(client, address, &of, &position);
    };
    expect(KVRAIL_E_MEMORY, region_of(copy, info), __LINE__, "private to this process");
    expect(KVRAIL_E_MEMORY, region_of(nullptr, info), __LINE__, "0x0 is not mapped");
    CHECK(position == 0);
    expect(KVRAIL_OK, region_of(first + 8192, info), __LINE__);
    CHECK(position == 8192 && info.region != arena.region && info.bytes == bytes);
    expect(KVRAIL_OK, region_of(second + 1, same), __LINE__);
    CHECK(position == 1 && same.region == info.region && same.base == info.base);
    expect(KVRAIL_OK, region_of(static_cast<char *>(arena.base) + 5, same), __LINE__);
    CHECK(position == 5 && same.region == arena.region);

    auto get = request(KVRAIL_GET, 3);
    get.region = info.region;
    get.position = 8192;
    CHECK(end_of(get).status == KVRAIL_OK && std::memcmp(second + 8192, "dddd", 4) == 0);
    expect(KVRAIL_OK, kvrail_arena_detach(client, info.region), __LINE__);
    for (char *at : {first, second, copy}) {
        munmap(at, bytes);
    }
    close(fd);

    const int nameless = memfd_create("nameless", 0);
    CHECK(ftruncate(nameless, 4096) == 0);
    void *page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, nameless, 0);
    close(nameless);
    expect(KVRAIL_E_MEMORY, region_of(page, info), __LINE__, "cannot be opened");
    munmap(page, 4096);
}

void cleared_by_another(const char *socket, const char *name) {
    kvrail_client *another = nullptr;
    kvrail_store *same = nullptr;
    kvrail_namespace *other = nullptr;
    expect(KVRAIL_OK, kvrail_attach(socket, nullptr, &another), __LINE__);
    expect(KVRAIL_OK, kvrail_store_open(another, name, &same), __LINE__);
    expect(KVRAIL_OK, kvrail_namespace_open(same, "store.cpp", identity, 0, &other), __LINE__);
    auto drop = request(KVRAIL_DROP, 1);
    expect(KVRAIL_E_REFUSED, kvrail_submit_blocks(queue, other, &drop, 1, nullptr, nullptr),
           __LINE__, "another client");
    expect(KVRAIL_OK, kvrail_namespace_clear(other), __LINE__);
    auto end = end_of(request(KVRAIL_GET, 1));
    CHECK(end.status == KVRAIL_MISS && end.note == KVRAIL_NOTE_STALE);
    expect(KVRAIL_OK, kvrail_namespace_refresh(space), __LINE__);
    CHECK(end_of(request(KVRAIL_GET, 1)).note == KVRAIL_NOTE_NONE);
    expect(KVRAIL_OK, kvrail_namespace_remove(store, "store.cpp"), __LINE__);
    kvrail_namespace_info usage{};
    usage.size = sizeof usage;
    expect(KVRAIL_STALE, kvrail_namespace_usage(space, &usage), __LINE__, "was removed");
    expect(KVRAIL_OK, kvrail_namespace_close(&other), __LINE__);
    expect(KVRAIL_OK, kvrail_store_close(&same), __LINE__);
    expect(KVRAIL_OK, kvrail_close(&another), __LINE__);
}

}  // namespace

// Blocks of a namespace of their own.
void worths() {
    kvrail_namespace *others = space;
    expect(KVRAIL_OK, kvrail_namespace_open(store, "worth", identity, 0, &space), __LINE__);
    for (const std::uint32_t worth : {KVRAIL_WORTH_LOW, KVRAIL_WORTH_HIGH}) {
        kvrail_block_request put = request(KVRAIL_PUT, 600 + worth);
        put.worth = worth;
        put.ttl_s = 600;
        CHECK(end_of(put).status == KVRAIL_OK);
        CHECK(explained(600 + worth).worth == worth);
    }
    kvrail_block_request no_worth = request(KVRAIL_PUT, 603);
    no_worth.worth = 3;
    expect(KVRAIL_E_ARGUMENT, submit(no_worth), __LINE__, "KVRAIL_WORTH_NORMAL");
    expect(KVRAIL_OK, kvrail_namespace_close(&space), __LINE__);
    space = others;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        return 2;
    }
    kvrail_arena_options wanted{};
    wanted.size = sizeof wanted;
    wanted.bytes = 1 << 20;
    arena.size = sizeof arena;
    expect(KVRAIL_OK, kvrail_attach(argv[1], nullptr, &client), __LINE__);
    expect(KVRAIL_OK, kvrail_store_open(client, argv[2], &store), __LINE__);
    expect(KVRAIL_OK, kvrail_namespace_open(store, "store.cpp", identity, 0, &space), __LINE__);
    expect(KVRAIL_OK, kvrail_arena_create(client, &wanted, &arena), __LINE__);
    expect(KVRAIL_OK, kvrail_queue_open(client, nullptr, &queue), __LINE__);
    misuse();
    put_get_drop();
    probes();
    explanations();
    regions();
    listings_and_events();
    cleared_by_another(argv[1], argv[2]);
    worths();
    expect(KVRAIL_OK, kvrail_queue_close(&queue, KVRAIL_FOREVER), __LINE__);
    expect(KVRAIL_OK, kvrail_namespace_close(&space), __LINE__);
    expect(KVRAIL_OK, kvrail_store_close(&store), __LINE__);
    expect(KVRAIL_OK, kvrail_close(&client), __LINE__);
    std::puts("the store keeps its word");
    return 0;
}
