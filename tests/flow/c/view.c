/* Reads blocks where they lie in the sidecar's memory: `view SOCKET STORE`, of one with a tier. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <kvrail.h>

#define BLOCKS 8u
#define BYTES 100001u

static void check(int32_t code, const char *what) {
    if (code != KVRAIL_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, kvrail_status_name(code), kvrail_last_error());
        exit(1);
    }
}

static void need(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

static unsigned char byte_of(uint32_t block, unsigned char version) {
    return (unsigned char)(block * 7 + version + 1);
}

static void put(kvrail_queue *queue, const kvrail_namespace *space, kvrail_arena_info arena,
                const kvrail_key *keys, unsigned char version) {
    for (uint32_t i = 0; i < BLOCKS; i++) {
        kvrail_completion end = {.size = sizeof end};
        kvrail_block_request request = {.size = sizeof request, .opcode = KVRAIL_PUT};
        size_t count = 0;

        request.flags = KVRAIL_REPLACE;
        request.key = keys[i];
        request.region = arena.region;
        request.length = BYTES;
        memset(arena.base, byte_of(i, version), BYTES);
        check(kvrail_submit_blocks(queue, space, &request, 1, NULL, &count), "submit");
        check(kvrail_wait(queue, &end, 1, 1, KVRAIL_FOREVER, &count), "wait");
        check(end.status, "put");
    }
}

/* Views a block as soon as it has come into memory. */
static kvrail_view *view(kvrail_queue *queue, const kvrail_namespace *space, const kvrail_key *key,
                         const unsigned char **bytes) {
    const struct timespec pause = {.tv_nsec = 1000000};
    kvrail_lookup_request lookup = {.size = sizeof lookup, .keys = key, .count = 1};
    kvrail_found found = {.size = sizeof found};

    lookup.recency = KVRAIL_LOOKUP_EXPECTED;
    for (int i = 0; i < 20000; i++) {
        kvrail_view *opened = NULL;
        const void *begin = NULL;
        size_t length = 0;

        check(kvrail_view_open(queue, space, key, &opened, &begin, &length), "view");
        need((opened != NULL) == (length == BYTES) && (begin != NULL) == (length == BYTES),
             "a view has its bytes, none has none");
        if (opened != NULL) {
            *bytes = begin;
            return opened;
        }
        check(kvrail_lookup(queue, space, &lookup, &found), "lookup");
        nanosleep(&pause, NULL);
    }
    need(0, "the block does not come into memory");
    return NULL;
}

static int all_are(const unsigned char *bytes, unsigned char wanted) {
    return bytes[0] == wanted && memcmp(bytes, bytes + 1, BYTES - 1) == 0;
}

int main(int argc, char **argv) {
    kvrail_client *client = NULL;
    kvrail_queue *queue = NULL;
    kvrail_store *store = NULL;
    kvrail_namespace *space = NULL;
    kvrail_arena_options wanted = {.size = sizeof wanted, .bytes = 1u << 20};
    kvrail_arena_info arena = {.size = sizeof arena};
    kvrail_key keys[BLOCKS];
    kvrail_view *views[3];
    const unsigned char *bytes[3];
    uint64_t numbers[BLOCKS];

    need(argc == 3, "usage: view SOCKET STORE");
    check(kvrail_attach(argv[1], NULL, &client), "attach");
    check(kvrail_store_open(client, argv[2], &store), "store");
    check(kvrail_namespace_open(store, "view.c", "{\"model\": \"m\"}", KVRAIL_ABSENT_CREATE,
                                &space),
          "namespace");
    check(kvrail_arena_create(client, &wanted, &arena), "arena");
    check(kvrail_queue_open(client, NULL, &queue), "queue");
    for (uint64_t i = 0; i < BLOCKS; i++) {
        numbers[i] = i;
    }
    check(kvrail_keys_of(numbers, sizeof *numbers, BLOCKS, keys), "keys");

    put(queue, space, arena, keys, 0);
    for (uint32_t i = 0; i < 3; i++) {
        views[i] = view(queue, space, &keys[i], &bytes[i]);
    }
    put(queue, space, arena, keys, 100);
    for (uint32_t i = 0; i < 3; i++) {
        need(all_are(bytes[i], byte_of(i, 0)), "a view changed");
        check(kvrail_view_close(&views[i]), "close a view");
        need(views[i] == NULL, "the variable is NULL");
        views[i] = view(queue, space, &keys[i], &bytes[i]);
        need(all_are(bytes[i], byte_of(i, 100)), "a view is of the block that replaced another");
    }
    need(kvrail_view_close(NULL) == KVRAIL_E_ARGUMENT, "NULL is no variable");
    need(kvrail_view_open(queue, space, keys, NULL, NULL, NULL) == KVRAIL_E_ARGUMENT,
         "NULL is no variable");
    check(kvrail_namespace_clear(space), "clear");

    /* Views outlive the queue and the client. */
    check(kvrail_queue_close(&queue, KVRAIL_FOREVER), "close the queue");
    check(kvrail_namespace_close(&space), "close the namespace");
    check(kvrail_store_close(&store), "close the store");
    check(kvrail_close(&client), "close");
    for (uint32_t i = 0; i < 3; i++) {
        need(all_are(bytes[i], byte_of(i, 100)), "a view changed");
        check(kvrail_view_close(&views[i]), "close a view");
    }
    printf("%u views: right\n", 6u);
    return 0;
}
