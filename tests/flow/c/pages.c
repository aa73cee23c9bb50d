/* GPU regions that cannot be, and requests that name them wrongly: `pages SOCKET VOLUME`. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <kvrail.h>

#define BYTES 65536

static kvrail_client *client;
static kvrail_queue *queue;
static kvrail_volume_info volume = {.size = sizeof volume};
static kvrail_gpu_info gpu = {.size = sizeof gpu};
static kvrail_gpu_memory memory = {.size = sizeof memory, .bytes = BYTES};
static kvrail_gpu_fragment fragment = {.size = sizeof fragment, .stride = 1024, .bytes = 1024};

/* Checks the code, and that an error has these words. */
#define EXPECT(wanted, words, call)                                                               \
    do {                                                                                          \
        int32_t got = (call);                                                                     \
        if (got != (wanted) || (got != KVRAIL_OK && !strstr(kvrail_last_error(), words))) {       \
            fprintf(stderr, "line %d: %s, not %s: %s\n", __LINE__, kvrail_status_name(got),       \
                    kvrail_status_name(wanted), kvrail_last_error());                             \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

static kvrail_gpu_region_options good(void) {
    kvrail_gpu_region_options options = {.size = sizeof options, .blocks = 8, .gpu = gpu.uuid};
    options.memories = &memory;
    options.memory_count = 1;
    options.fragments = &fragment;
    options.fragment_count = 1;
    return options;
}

static kvrail_gpu_region_info region = {.size = sizeof region};

static int32_t attach(kvrail_gpu_region_options options) {
    return kvrail_gpu_region_attach(client, &options, &region);
}

static int32_t with_memory(kvrail_gpu_memory other) {
    kvrail_gpu_region_options options = good();
    options.memories = &other;
    return attach(options);
}

static int32_t with_fragment(kvrail_gpu_fragment other) {
    kvrail_gpu_region_options options = good();
    options.fragments = &other;
    return attach(options);
}

static void options(void) {
    kvrail_gpu_region_options wrong = good();
    EXPECT(KVRAIL_E_ARGUMENT, "null", kvrail_gpu_region_attach(NULL, &wrong, &region));
    EXPECT(KVRAIL_E_ARGUMENT, "null", kvrail_gpu_region_attach(client, NULL, &region));
    EXPECT(KVRAIL_E_ARGUMENT, "null", kvrail_gpu_region_attach(client, &wrong, NULL));
    wrong.gpu = NULL;
    EXPECT(KVRAIL_E_ARGUMENT, "gpu is null", attach(wrong));
    wrong.gpu = "GPU-0";
    EXPECT(KVRAIL_E_NO_GPU, gpu.uuid, attach(wrong));
    wrong = good();
    wrong.memories = NULL;
    EXPECT(KVRAIL_E_ARGUMENT, "null", attach(wrong));
    wrong = good();
    wrong.memory_count = 257;
    EXPECT(KVRAIL_E_ARGUMENT, "at most 256", attach(wrong));
    wrong = good();
    wrong.fragment_count = SIZE_MAX;
    EXPECT(KVRAIL_E_ARGUMENT, "at most 1024", attach(wrong));
    wrong.fragment_count = 0;
    EXPECT(KVRAIL_E_ARGUMENT, "fragments, not 0", attach(wrong));
    wrong = good();
    wrong.blocks = 0;
    EXPECT(KVRAIL_E_ARGUMENT, "blocks, not 0", attach(wrong));
    wrong.blocks = 65;
    EXPECT(KVRAIL_E_ARGUMENT, "ends at byte", attach(wrong));
    EXPECT(KVRAIL_E_NO_GPU, "serves 1", kvrail_gpu_at(client, 1, &gpu));
    EXPECT(KVRAIL_E_ARGUMENT, "null", kvrail_gpu_at(client, 0, NULL));
}

static void memories(void) {
    kvrail_gpu_memory wrong = memory;
    wrong.kind = 2;
    EXPECT(KVRAIL_E_ARGUMENT, "kind is 2", with_memory(wrong));
    wrong = memory;
    wrong.offset = 16;
    EXPECT(KVRAIL_E_ARGUMENT, "must be 0", with_memory(wrong));
    wrong = memory;
    wrong.fd = -1;
    EXPECT(KVRAIL_E_ARGUMENT, "fd is -1", with_memory(wrong));
    wrong.fd = 12345;
    EXPECT(KVRAIL_E_SYSTEM, "descriptor", with_memory(wrong));
    wrong = memory;
    wrong.kind = KVRAIL_GPU_LEGACY;
    EXPECT(KVRAIL_E_ARGUMENT, "must be 0", with_memory(wrong));
    wrong.fd = 0;
    EXPECT(KVRAIL_INVALID, "memory 0", with_memory(wrong));
    wrong = memory;
    wrong.bytes *= 2;
    EXPECT(KVRAIL_INVALID, "memory 0", with_memory(wrong));
}

static void fragments(void) {
    kvrail_gpu_fragment wrong = fragment;
    wrong.memory = 70000;
    EXPECT(KVRAIL_E_ARGUMENT, "which has 0 bytes", with_fragment(wrong));
    wrong = fragment;
    wrong.base = 8;
    EXPECT(KVRAIL_E_ARGUMENT, "base = 8", with_fragment(wrong));
    wrong = fragment;
    wrong.bytes = 256;
    EXPECT(KVRAIL_E_ARGUMENT, "at least 512", with_fragment(wrong));
    wrong = fragment;
    wrong.stride = 512;
    EXPECT(KVRAIL_E_ARGUMENT, "overlap", with_fragment(wrong));
    wrong = fragment;
    wrong.size = 8;
    EXPECT(KVRAIL_E_ARGUMENT, "size", with_fragment(wrong));
}

static int32_t submit(kvrail_request request) {
    request.size = sizeof request;
    request.opcode = request.opcode ? request.opcode : KVRAIL_READ;
    request.volume = volume.volume;
    return kvrail_submit(queue, &request, 1, NULL, NULL);
}

static void requests(void) {
    const uint32_t its = region.region;
    kvrail_arena_options wanted = {.size = sizeof wanted, .bytes = 4096};
    kvrail_arena_info arena = {.size = sizeof arena};
    EXPECT(KVRAIL_OK, "", kvrail_arena_create(client, &wanted, &arena));
    EXPECT(KVRAIL_E_REFUSED, "block 8 does not exist",
           submit((kvrail_request){.region = its, .block = 8, .length = 512}));
    EXPECT(KVRAIL_E_REFUSED, "leave the block",
           submit((kvrail_request){.region = its, .position = 512, .length = 1024}));
    EXPECT(KVRAIL_E_REFUSED, "leave the block",
           submit((kvrail_request){.region = its, .position = UINT64_MAX, .length = 512}));
    EXPECT(KVRAIL_E_REFUSED, "multiple of",
           submit((kvrail_request){.region = its, .position = 8, .length = 512}));
    EXPECT(KVRAIL_E_REFUSED, "no checksum",
           submit((kvrail_request){.region = its, .length = 512, .flags = KVRAIL_CHECKSUM}));
    EXPECT(KVRAIL_E_ARGUMENT, "reserved",
           submit((kvrail_request){.region = its, .length = 512, .reserved = 1}));
    EXPECT(KVRAIL_E_ARGUMENT, "block is 1",
           submit((kvrail_request){.region = arena.region, .length = 512, .block = 1}));
    EXPECT(KVRAIL_E_NO_ARENA, "other kind", kvrail_arena_detach(client, its));
    EXPECT(KVRAIL_E_NO_ARENA, "other kind", kvrail_gpu_region_detach(client, arena.region));
    EXPECT(KVRAIL_E_NO_ARENA, "detached", kvrail_gpu_region_detach(client, 4242));
    EXPECT(KVRAIL_OK, "", kvrail_gpu_region_detach(client, its));
    EXPECT(KVRAIL_E_NO_ARENA, "detached", kvrail_gpu_region_detach(client, its));
    EXPECT(KVRAIL_E_NO_ARENA, "detached", submit((kvrail_request){.region = its, .length = 512}));
}

int main(int argc, char **argv) {
    kvrail_client_info info = {.size = sizeof info};
    if (argc != 3) {
        return 2;
    }
    memory.fd = memfd_create("cache", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory.fd < 0 || posix_fallocate(memory.fd, 0, BYTES) != 0 ||
        fcntl(memory.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        return 1;
    }
    EXPECT(KVRAIL_OK, "", kvrail_attach(argv[1], NULL, &client));
    EXPECT(KVRAIL_OK, "", kvrail_volume_find(client, argv[2], &volume));
    EXPECT(KVRAIL_OK, "", kvrail_queue_open(client, NULL, &queue));
    EXPECT(KVRAIL_OK, "", kvrail_gpu_at(client, 0, &gpu));
    EXPECT(KVRAIL_OK, "", kvrail_client_describe(client, &info));
    EXPECT(KVRAIL_OK, "", info.gpus == 1 && info.gpu_regions_max > 0 ? KVRAIL_OK : -1);
    options();
    memories();
    fragments();
    EXPECT(KVRAIL_OK, "", attach(good()));
    EXPECT(KVRAIL_OK, "", region.block_bytes == 1024 ? KVRAIL_OK : -1);
    requests();
    close(memory.fd);
    EXPECT(KVRAIL_OK, "", kvrail_queue_close(&queue, KVRAIL_FOREVER));
    EXPECT(KVRAIL_OK, "", kvrail_close(&client));
    puts("every misuse of GPU memory was refused");
    return 0;
}
