/* Blocks that outlive sidecars: puts them, gets them for as long as sidecars come and go, and
 * attaches again by itself: `upgrade SOCKET STORE`. Ends after LIVES sidecars. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvrail.h>

#define BLOCKS 32u
#define ROOM (64u << 10)
#define LIVES 3
#define SECOND UINT64_C(1000000000)

static const char identity[] = "{\"model\": \"upgrade.c\"}";

typedef struct session {
    kvrail_client *client;
    kvrail_store *store;
    kvrail_namespace *space;
    kvrail_queue *queue;
    kvrail_arena_info arena;
} session;

static void check(int32_t code, const char *what) {
    if (code != KVRAIL_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, kvrail_status_name(code), kvrail_last_error());
        exit(1);
    }
}

/* Whether a code means the end of a sidecar. */
static int is_end(int32_t code) {
    return code == KVRAIL_E_GONE || code == KVRAIL_RESTARTED || code == KVRAIL_DRAINING;
}

static uint64_t length_of(uint32_t block) {
    return 1 + block * 2003u;
}

static unsigned char byte_of(uint32_t block, uint64_t at) {
    return (unsigned char)(at * 31 + at / 4096 + block * 7 + 1);
}

static void let_go(session *it) {
    /* Closed with any result: the end of its sidecar is known. */
    if (it->queue) {
        (void)kvrail_queue_close(&it->queue, SECOND);
    }
    check(kvrail_namespace_close(&it->space), "close the namespace");
    check(kvrail_store_close(&it->store), "close the store");
    check(kvrail_close(&it->client), "close");
}

/* 1: the sidecar ended meanwhile. */
static int attach(session *it, const char *socket, const char *store) {
    kvrail_attach_options options = {.size = sizeof options, .wait_ns = 60 * SECOND};
    kvrail_arena_options wanted = {.size = sizeof wanted, .bytes = (uint64_t)BLOCKS * ROOM};
    int32_t code;

    memset(it, 0, sizeof *it);
    it->arena.size = sizeof it->arena;
    check(kvrail_attach(socket, &options, &it->client), "attach");
    code = kvrail_store_open(it->client, store, &it->store);
    if (!code) {
        code = kvrail_namespace_open(it->store, "upgrade.c", identity, KVRAIL_ABSENT_CREATE,
                                     &it->space);
    }
    if (!code) {
        code = kvrail_arena_create(it->client, &wanted, &it->arena);
    }
    if (!code) {
        code = kvrail_queue_open(it->client, NULL, &it->queue);
    }
    if (is_end(code)) {
        let_go(it);
        return 1;
    }
    check(code, "a session");
    return 0;
}

/* Puts or gets all blocks. 1: the sidecar ended meanwhile. */
static int turn(session *it, uint32_t opcode, const kvrail_key *keys) {
    kvrail_block_request requests[BLOCKS] = {{0}};
    kvrail_completion ends[BLOCKS] = {{.size = sizeof *ends}};
    unsigned char *bytes = it->arena.base;
    size_t count = 0;
    int32_t code;

    for (uint32_t i = 0; i < BLOCKS; i++) {
        requests[i].size = sizeof requests[i];
        requests[i].opcode = opcode;
        requests[i].key = keys[i];
        requests[i].region = it->arena.region;
        requests[i].position = (uint64_t)i * ROOM;
        requests[i].length = opcode == KVRAIL_PUT ? length_of(i) : ROOM;
        requests[i].tag = i;
        for (uint64_t at = 0; at < length_of(i); at++) {
            bytes[requests[i].position + at] = opcode == KVRAIL_PUT ? byte_of(i, at) : 0x5a;
        }
    }
    code = kvrail_submit_blocks(it->queue, it->space, requests, BLOCKS, NULL, &count);
    if (!code) {
        code = kvrail_wait(it->queue, ends, BLOCKS, BLOCKS, 60 * SECOND, &count);
    }
    if (is_end(code)) {
        return 1;
    }
    check(code, "blocks");
    for (size_t i = 0; i < count; i++) {
        uint32_t block = (uint32_t)ends[i].tag;
        if (is_end(ends[i].status)) {
            return 1;
        }
        check(ends[i].status, opcode == KVRAIL_PUT ? "put" : "get");
        for (uint64_t at = 0; at < length_of(block); at++) {
            if (bytes[(uint64_t)block * ROOM + at] != byte_of(block, at)) {
                fprintf(stderr, "block %u: byte %llu is wrong\n", block, (unsigned long long)at);
                exit(1);
            }
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    kvrail_key keys[BLOCKS];
    uint64_t numbers[BLOCKS];
    session it;
    int lives = 0;

    if (argc != 3) {
        fprintf(stderr, "usage: %s SOCKET STORE\n", argv[0]);
        return 2;
    }
    for (uint64_t i = 0; i < BLOCKS; i++) {
        numbers[i] = i;
    }
    check(kvrail_keys_of(numbers, sizeof *numbers, BLOCKS, keys), "keys");
    while (lives < LIVES) {
        if (attach(&it, argv[1], argv[2])) {
            continue;
        }
        if ((lives > 0 || !turn(&it, KVRAIL_PUT, keys)) && !turn(&it, KVRAIL_GET, keys)) {
            printf("right in life %d\n", ++lives);
            fflush(stdout);
            while (lives < LIVES && !turn(&it, KVRAIL_GET, keys)) {
            }
        }
        let_go(&it);
    }
    return 0;
}
