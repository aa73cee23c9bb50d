/* Puts blocks of odd sizes by key, looks them up, gets them back: `store SOCKET STORE`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvrail.h>

#define BLOCKS 24u
#define ROOM (640u << 10)

static const char identity[] =
    "{\"model\": \"example\", \"dtype\": \"fp8\", \"block_tokens\": 16, \"rank\": \"0/1\"}";

static void check(int32_t code, const char *what) {
    if (code != KVRAIL_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, kvrail_status_name(code), kvrail_last_error());
        exit(1);
    }
}

/* No two blocks have the same length; the longest is one of 16 tokens of fp8 MLA. */
static uint64_t length_of(uint32_t block) {
    return block == BLOCKS - 1 ? 640256 : 1 + block * 4099u;
}

static unsigned char byte_of(uint32_t block, uint64_t at) {
    return (unsigned char)(at * 31 + at / 4096 + block * 7 + 1);
}

/* Submits one request for each block and waits for all ends, in the order of their tags. */
static void submit(kvrail_queue *queue, const kvrail_namespace *space,
                   const kvrail_block_request *requests, kvrail_completion *ends) {
    kvrail_completion ended[BLOCKS] = {{.size = sizeof *ended}};
    size_t count = 0;

    check(kvrail_submit_blocks(queue, space, requests, BLOCKS, NULL, &count), "submit");
    check(kvrail_wait(queue, ended, BLOCKS, BLOCKS, KVRAIL_FOREVER, &count), "wait");
    for (size_t i = 0; i < count; i++) {
        ends[ended[i].tag] = ended[i];
    }
}

static void put_and_get(kvrail_queue *queue, const kvrail_namespace *space,
                        kvrail_arena_info arena, const kvrail_key *keys) {
    kvrail_block_request requests[BLOCKS] = {{0}};
    kvrail_completion ends[BLOCKS];
    unsigned char *bytes = arena.base;

    for (uint32_t i = 0; i < BLOCKS; i++) {
        requests[i].size = sizeof requests[i];
        requests[i].opcode = KVRAIL_PUT;
        requests[i].key = keys[i];
        requests[i].region = arena.region;
        requests[i].position = (uint64_t)i * ROOM;
        requests[i].length = length_of(i);
        requests[i].tag = requests[i].depth = i;
        requests[i].metadata = &keys[i ? i - 1 : 0]; /* such as the key of its parent */
        requests[i].metadata_bytes = sizeof *keys;
        for (uint64_t at = 0; at < length_of(i); at++) {
            bytes[requests[i].position + at] = byte_of(i, at);
        }
    }
    submit(queue, space, requests, ends);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        /* DECLINED is no error: the store had a reason not to take it. */
        if (ends[i].status == KVRAIL_DECLINED) {
            printf("block %u: %s\n", i, kvrail_note_meaning(ends[i].note));
        } else {
            check(ends[i].status, "put");
        }
    }

    memset(bytes, 0x5a, (size_t)BLOCKS * ROOM);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        requests[i].opcode = KVRAIL_GET;
        requests[i].length = ROOM; /* the memory there is; the end says how long the block is */
        requests[i].depth = 0;
        requests[i].metadata_bytes = 0;
    }
    submit(queue, space, requests, ends);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        check(ends[i].status, "get");
        for (uint64_t at = 0; at < ROOM; at++) {
            unsigned char right = at < length_of(i) ? byte_of(i, at) : 0x5a;
            if (ends[i].bytes != length_of(i) || bytes[requests[i].position + at] != right) {
                fprintf(stderr, "block %u: byte %llu is wrong\n", i, (unsigned long long)at);
                exit(1);
            }
        }
    }
}

int main(int argc, char **argv) {
    kvrail_client *client = NULL;
    kvrail_queue *queue = NULL;
    kvrail_store *store = NULL;
    kvrail_namespace *space = NULL;
    kvrail_arena_options wanted = {.size = sizeof wanted, .bytes = (uint64_t)BLOCKS * ROOM};
    kvrail_arena_info arena = {.size = sizeof arena};
    kvrail_namespace_info usage = {.size = sizeof usage};
    kvrail_found found = {.size = sizeof found};
    kvrail_key keys[BLOCKS + 1];
    unsigned char there[BLOCKS + 1];

    if (argc != 3 || kvrail_abi_version() != KVRAIL_ABI_VERSION) {
        fprintf(stderr, "usage: %s SOCKET STORE\n", argv[0]);
        return 2;
    }
    check(kvrail_attach(argv[1], NULL, &client), "attach");
    check(kvrail_store_open(client, argv[2], &store), "store");
    check(kvrail_namespace_open(store, "store.c", identity, KVRAIL_ABSENT_CREATE, &space),
          "namespace");
    check(kvrail_arena_create(client, &wanted, &arena), "arena");
    check(kvrail_queue_open(client, NULL, &queue), "queue");

    /* An engine's own keys, one behind the other; the last one is of a block that is never put. */
    uint64_t engine_keys[BLOCKS + 1];
    for (uint64_t i = 0; i <= BLOCKS; i++) {
        engine_keys[i] = i;
    }
    check(kvrail_keys_of(engine_keys, sizeof *engine_keys, BLOCKS + 1, keys), "keys");

    put_and_get(queue, space, arena, keys);
    kvrail_lookup_request lookup = {.size = sizeof lookup, .keys = keys, .count = BLOCKS + 1};
    lookup.there = there;
    lookup.hold_ns = 1000000000; /* what is found stays for a second */
    check(kvrail_lookup(queue, space, &lookup, &found), "lookup");
    check(kvrail_release(queue, space, keys, found.prefix, KVRAIL_FOREVER), "release");
    check(kvrail_namespace_usage(space, &usage), "usage");
    if (found.prefix != BLOCKS || found.held != BLOCKS || there[BLOCKS] || !there[BLOCKS - 1] ||
        usage.blocks != BLOCKS) {
        fprintf(stderr, "found %llu of %u\n", (unsigned long long)found.prefix, BLOCKS);
        return 1;
    }
    check(kvrail_namespace_clear(space), "clear");

    check(kvrail_queue_close(&queue, KVRAIL_FOREVER), "close the queue");
    check(kvrail_namespace_close(&space), "close the namespace");
    check(kvrail_store_close(&store), "close the store");
    check(kvrail_close(&client), "close");
    printf("%u blocks of 1 to 640256 bytes: right\n", BLOCKS);
    return 0;
}
