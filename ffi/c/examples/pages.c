/*
 * Blocks of a paged KV cache in GPU memory: `pages SOCKET VOLUME`. The GPU here is the stand-in, so
 * its memory is a memory file; a program with CUDA exports its own (KVRAIL_GPU_LEGACY and
 * cudaIpcGetMemHandle, or a descriptor of cuMemExportToShareableHandle).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <kvrail.h>

/* Each layer has one memory: K of all blocks, then V of all blocks. */
#define LAYERS 8
#define BLOCKS 32
#define PART 4096
#define PARTS (2 * LAYERS)

static uint8_t *layers[LAYERS];

static void check(int32_t code, const char *what) {
    if (code != KVRAIL_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, kvrail_status_name(code), kvrail_last_error());
        exit(1);
    }
}

static uint8_t *part(unsigned block, unsigned number) {
    return layers[number / 2] + (number % 2) * BLOCKS * PART + block * PART;
}

/* Stands for cudaMalloc and the export. */
static kvrail_gpu_memory allocate(unsigned layer) {
    kvrail_gpu_memory memory = {.size = sizeof memory, .kind = KVRAIL_GPU_DESCRIPTOR};
    memory.bytes = 2 * BLOCKS * PART;
    memory.fd = memfd_create("cache", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory.fd < 0 || posix_fallocate(memory.fd, 0, (off_t)memory.bytes) != 0 ||
        fcntl(memory.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        perror("memory");
        exit(1);
    }
    layers[layer] =
        mmap(NULL, memory.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd, 0);
    if (layers[layer] == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return memory;
}

static kvrail_gpu_region_info attach(kvrail_client *client) {
    kvrail_gpu_info gpu = {.size = sizeof gpu};
    kvrail_gpu_memory memories[LAYERS];
    kvrail_gpu_fragment fragments[PARTS];
    kvrail_gpu_region_info region = {.size = sizeof region};
    kvrail_gpu_region_options options = {.size = sizeof options, .blocks = BLOCKS};
    for (unsigned layer = 0; layer < LAYERS; layer++) {
        memories[layer] = allocate(layer);
    }
    for (unsigned number = 0; number < PARTS; number++) {
        kvrail_gpu_fragment fragment = {.size = sizeof fragment, .memory = number / 2};
        fragment.base = (number % 2) * BLOCKS * PART;
        fragment.stride = PART;
        fragment.bytes = PART;
        fragments[number] = fragment;
    }
    check(kvrail_gpu_at(client, 0, &gpu), "the first GPU");
    printf("%s: %s\n", gpu.uuid, gpu.name);
    options.gpu = gpu.uuid;
    options.memories = memories;
    options.memory_count = LAYERS;
    options.fragments = fragments;
    options.fragment_count = PARTS;
    check(kvrail_gpu_region_attach(client, &options, &region), "attaching the cache");
    for (unsigned layer = 0; layer < LAYERS; layer++) {
        close(memories[layer].fd); /* the sidecar has opened the memory */
    }
    return region;
}

/* Moves the first half of the blocks, each to or from its place in the volume. */
static void move(kvrail_queue *queue, kvrail_request pattern, unsigned first) {
    kvrail_request requests[BLOCKS / 2];
    kvrail_completion ends[BLOCKS / 2] = {{.size = sizeof *ends}};
    size_t count = 0;
    for (unsigned at = 0; at < BLOCKS / 2; at++) {
        requests[at] = pattern;
        requests[at].offset = at * pattern.length;
        requests[at].block = first + at;
    }
    check(kvrail_submit(queue, requests, BLOCKS / 2, NULL, NULL), "submitting");
    check(kvrail_wait(queue, ends, BLOCKS / 2, BLOCKS / 2, KVRAIL_FOREVER, &count), "waiting");
    for (size_t at = 0; at < count; at++) {
        check(ends[at].status, "moving a block");
    }
}

int main(int argc, char **argv) {
    kvrail_client *client;
    kvrail_queue *queue;
    kvrail_volume_info volume = {.size = sizeof volume};
    if (argc != 3) {
        fprintf(stderr, "usage: pages SOCKET VOLUME\n");
        return 2;
    }
    check(kvrail_attach(argv[1], NULL, &client), "attach");
    check(kvrail_volume_find(client, argv[2], &volume), "volume");
    check(kvrail_queue_open(client, NULL, &queue), "queue");
    kvrail_gpu_region_info region = attach(client);

    for (unsigned block = 0; block < BLOCKS; block++) {
        for (unsigned number = 0; number < PARTS; number++) {
            memset(part(block, number), (int)(1 + block * 7 + number), PART);
        }
    }
    kvrail_request request = {.size = sizeof request, .opcode = KVRAIL_WRITE};
    request.volume = volume.volume;
    request.region = region.region;
    request.length = region.block_bytes;
    move(queue, request, 0);
    for (unsigned layer = 0; layer < LAYERS; layer++) {
        memset(layers[layer], 0, 2 * BLOCKS * PART);
    }
    request.opcode = KVRAIL_READ;
    move(queue, request, BLOCKS / 2);

    check(kvrail_gpu_region_detach(client, region.region), "detaching");
    unsigned wrong = 0;
    for (unsigned block = 0; block < BLOCKS; block++) {
        for (unsigned at = 0; at < PARTS * PART; at++) {
            unsigned wanted = block < BLOCKS / 2 ? 0 : 1 + (block - BLOCKS / 2) * 7 + at / PART;
            wrong += part(block, at / PART)[at % PART] != (uint8_t)wanted;
        }
    }
    check(kvrail_queue_close(&queue, KVRAIL_FOREVER), "closing the queue");
    check(kvrail_close(&client), "closing");
    printf("%d blocks of %d parts: %s\n", BLOCKS / 2, PARTS, wrong ? "wrong" : "right");
    return wrong != 0;
}
