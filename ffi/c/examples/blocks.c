/* Writes blocks, reads them back, compares: `blocks SOCKET VOLUME`. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <kvrail.h>

#define BLOCKS 16u
#define BLOCK_BYTES (256u << 10)

static void check(int32_t code, const char *what) {
    if (code != KVRAIL_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, kvrail_status_name(code), kvrail_last_error());
        exit(1);
    }
}

/* Submits one request for each block and waits until all have ended well. */
static void move(kvrail_queue *queue, uint8_t opcode, uint32_t volume, uint32_t region) {
    kvrail_request requests[BLOCKS];
    kvrail_completion ends[BLOCKS];
    uint64_t tickets[BLOCKS];
    size_t count = 0;

    memset(requests, 0, sizeof requests);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        requests[i].size = sizeof requests[i];
        requests[i].opcode = opcode;
        requests[i].volume = volume;
        requests[i].region = region;
        requests[i].offset = requests[i].position = (uint64_t)i * BLOCK_BYTES;
        requests[i].length = BLOCK_BYTES;
        requests[i].tag = i;
    }
    check(kvrail_submit(queue, requests, BLOCKS, tickets, &count), "submit");
    ends[0].size = sizeof ends[0];
    check(kvrail_wait(queue, ends, BLOCKS, BLOCKS, KVRAIL_FOREVER, &count), "wait");
    for (size_t i = 0; i < count; i++) {
        check(ends[i].status, "block");
        if (ends[i].bytes != BLOCK_BYTES || ends[i].ticket != tickets[ends[i].tag]) {
            fprintf(stderr, "completion %zu does not fit its request\n", i);
            exit(1);
        }
    }
}

static void write_read_compare(kvrail_queue *queue, uint32_t volume, kvrail_arena_info arena) {
    unsigned char *bytes = arena.base;
    for (size_t i = 0; i < (size_t)BLOCKS * BLOCK_BYTES; i++) {
        bytes[i] = (unsigned char)(i * 31 + i / BLOCK_BYTES + arena.region);
    }
    move(queue, KVRAIL_WRITE, volume, arena.region);
    memset(bytes, 0, (size_t)BLOCKS * BLOCK_BYTES);
    move(queue, KVRAIL_READ, volume, arena.region);
    for (size_t i = 0; i < (size_t)BLOCKS * BLOCK_BYTES; i++) {
        if (bytes[i] != (unsigned char)(i * 31 + i / BLOCK_BYTES + arena.region)) {
            fprintf(stderr, "byte %zu is wrong\n", i);
            exit(1);
        }
    }
}

/* One flush, waited for in an event loop. */
static void flush_in_a_loop(kvrail_queue *queue, uint32_t volume) {
    kvrail_request flush = {.size = sizeof flush, .opcode = KVRAIL_FLUSH, .volume = volume};
    kvrail_completion end = {.size = sizeof end};
    size_t count = 0;
    struct pollfd loop = {.events = POLLIN};

    check(kvrail_queue_fd(queue, &loop.fd), "queue fd");
    check(kvrail_submit(queue, &flush, 1, NULL, NULL), "flush");
    while (count == 0) {
        int ready = 0;
        check(kvrail_queue_arm(queue, &ready), "arm");
        if (!ready && poll(&loop, 1, 10000) < 0) {
            perror("poll");
            exit(1);
        }
        check(kvrail_poll(queue, &end, 1, &count), "poll");
    }
    check(end.status, "flush");
}

/* Memory of the program's own: a sealed memfd. */
static int own_memory(uint64_t bytes) {
    int fd = memfd_create("blocks", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || posix_fallocate(fd, 0, (off_t)bytes) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        perror("memfd");
        exit(1);
    }
    return fd;
}

int main(int argc, char **argv) {
    kvrail_client *client = NULL;
    kvrail_queue *queue = NULL;
    kvrail_attach_options options = {.size = sizeof options, .name = "blocks.c"};
    kvrail_volume_info volume = {.size = sizeof volume};
    kvrail_arena_options wanted = {.size = sizeof wanted, .bytes = BLOCKS * BLOCK_BYTES};
    kvrail_arena_info made = {.size = sizeof made}, imported = {.size = sizeof imported};

    if (argc != 3 || kvrail_abi_version() != KVRAIL_ABI_VERSION) {
        fprintf(stderr, "usage: %s SOCKET VOLUME\n", argv[0]);
        return 2;
    }
    check(kvrail_attach(argv[1], &options, &client), "attach");
    check(kvrail_volume_find(client, argv[2], &volume), "volume");
    check(kvrail_queue_open(client, NULL, &queue), "queue");

    check(kvrail_arena_create(client, &wanted, &made), "arena");
    write_read_compare(queue, volume.volume, made);
    flush_in_a_loop(queue, volume.volume);
    check(kvrail_arena_detach(client, made.region), "detach");

    int fd = own_memory(BLOCKS * BLOCK_BYTES);
    check(kvrail_arena_import(client, fd, BLOCKS * BLOCK_BYTES, &imported), "import");
    close(fd);
    write_read_compare(queue, volume.volume, imported);
    check(kvrail_arena_detach(client, imported.region), "detach");

    check(kvrail_queue_close(&queue, KVRAIL_FOREVER), "close the queue");
    check(kvrail_close(&client), "close");
    printf("%u blocks of %u bytes: right\n", 2 * BLOCKS, BLOCK_BYTES);
    return 0;
}
