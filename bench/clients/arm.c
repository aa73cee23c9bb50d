/* The C arm of run.py, as bench/examples/client_arm.rs: arm SOCKET VOLUME latency|batch SECONDS */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <kvrail.h>

#define BATCH 64u
#define BLOCK_BYTES (256u << 10)
#define SMALL_BYTES 4096u
#define SAMPLES (1u << 22)

static void check(int32_t code) {
    if (code != KVRAIL_OK) {
        fprintf(stderr, "%s: %s\n", kvrail_status_name(code), kvrail_last_error());
        exit(1);
    }
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int by_size(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

static void latency(kvrail_queue *queue, kvrail_request request, uint64_t capacity, uint64_t time) {
    uint64_t *samples = malloc(SAMPLES * sizeof *samples);
    uint64_t span = (capacity < (64u << 20) ? capacity : (64u << 20)) / SMALL_BYTES;
    uint64_t start = now_ns(), offset = 0;
    size_t taken = 0, count;
    kvrail_completion end = {.size = sizeof end};
    request.length = SMALL_BYTES;
    while (now_ns() - start < time && taken < SAMPLES) {
        offset = (offset + 7919) % span;
        request.offset = offset * SMALL_BYTES;
        uint64_t before = now_ns();
        check(kvrail_submit(queue, &request, 1, NULL, NULL));
        check(kvrail_wait(queue, &end, 1, 1, KVRAIL_FOREVER, &count));
        samples[taken++] = now_ns() - before;
        check(end.status);
    }
    qsort(samples, taken, sizeof *samples, by_size);
    printf("{\"p50_ns\": %llu}\n", (unsigned long long)samples[taken / 2]);
    free(samples);
}

static void batches(kvrail_queue *queue, kvrail_request request, uint64_t capacity, uint64_t time) {
    kvrail_request requests[BATCH];
    kvrail_completion ends[BATCH];
    uint64_t span = capacity / BLOCK_BYTES, start = now_ns(), offset = 0, bytes = 0;
    while (now_ns() - start < time) {
        size_t count;
        for (unsigned i = 0; i < BATCH; i++) {
            offset = (offset + 7919) % span;
            requests[i] = request;
            requests[i].length = BLOCK_BYTES;
            requests[i].offset = offset * BLOCK_BYTES;
            requests[i].position = (uint64_t)i * BLOCK_BYTES;
        }
        check(kvrail_submit(queue, requests, BATCH, NULL, NULL));
        ends[0].size = sizeof *ends;
        check(kvrail_wait(queue, ends, BATCH, BATCH, KVRAIL_FOREVER, &count));
        for (size_t i = 0; i < count; i++) {
            check(ends[i].status);
            bytes += ends[i].bytes;
        }
    }
    double seconds = (double)(now_ns() - start) / 1e9;
    printf("{\"gib_per_s\": %.4f}\n", (double)bytes / (double)(1u << 30) / seconds);
}

int main(int argc, char **argv) {
    kvrail_client *client;
    kvrail_queue *queue;
    kvrail_volume_info volume = {.size = sizeof volume};
    kvrail_arena_options options = {.size = sizeof options, .bytes = BATCH * BLOCK_BYTES};
    kvrail_arena_info arena = {.size = sizeof arena};
    kvrail_request request = {.size = sizeof request, .opcode = KVRAIL_READ};
    if (argc != 5) {
        fprintf(stderr, "usage: %s SOCKET VOLUME latency|batch SECONDS\n", argv[0]);
        return 2;
    }
    check(kvrail_attach(argv[1], NULL, &client));
    check(kvrail_volume_find(client, argv[2], &volume));
    check(kvrail_arena_create(client, &options, &arena));
    check(kvrail_queue_open(client, NULL, &queue));
    request.volume = volume.volume;
    request.region = arena.region;
    uint64_t time = (uint64_t)(atof(argv[4]) * 1e9);
    if (strcmp(argv[3], "latency") == 0) {
        latency(queue, request, volume.capacity, time);
    } else {
        batches(queue, request, volume.capacity, time);
    }
    check(kvrail_queue_close(&queue, KVRAIL_FOREVER));
    check(kvrail_close(&client));
    return 0;
}
