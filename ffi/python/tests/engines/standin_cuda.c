/* Stands in for libcuda.so.1 where there is no GPU: memory of a "GPU" is the process's own, and
 * copies happen when their event is asked for, never before. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { INVALID = 1, NOT_READY = 600, LAUNCH_FAILED = 719, MANY = 1 << 14 };

struct range {
    uint64_t base, bytes;
};

static struct {
    void *to;
    const void *from;
    size_t bytes;
} copies[MANY];
static struct range gpu, pinned[8];
static size_t begun, done, waiting_bytes;

/* What tests set and read: copies do not end; they fail; most bytes that waited at once. */
int standin_holds, standin_fails;
size_t standin_most_bytes;

static int is_in(const struct range *it, uint64_t at, uint64_t bytes) {
    return it->base <= at && at + bytes <= it->base + it->bytes;
}

static int copy(void *to, const void *from, size_t bytes, uint64_t on_gpu, uint64_t on_host) {
    int is_pinned = 0;
    for (size_t at = 0; at < 8; at++) is_pinned |= is_in(&pinned[at], on_host, bytes);
    if (!is_pinned || !is_in(&gpu, on_gpu, bytes) || begun - done == MANY) return INVALID;
    copies[begun % MANY].to = to;
    copies[begun % MANY].from = from;
    copies[begun++ % MANY].bytes = bytes;
    waiting_bytes += bytes;
    if (waiting_bytes > standin_most_bytes) standin_most_bytes = waiting_bytes;
    return 0;
}

int cuInit(unsigned flags) { return (int)flags; }
int cuGetErrorName(int code, const char **name) {
    *name = code == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR_INVALID_VALUE";
    return 0;
}
int cuDeviceGet(int *device, int number) { return (*device = number) == 0 ? 0 : INVALID; }
int cuDeviceGetCount(int *count) { return (*count = 1) - 1; }
int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = &gpu;
    return device;
}
int cuCtxPushCurrent_v2(void *context) { return context == &gpu ? 0 : INVALID; }
int cuCtxPopCurrent_v2(void **context) { return (*context = &gpu) == NULL; }

int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    gpu.base = *address = (uint64_t)aligned_alloc(4096, bytes);
    gpu.bytes = bytes;
    return 0;
}
int cuMemFree_v2(uint64_t address) {
    free((void *)address);
    gpu.bytes = 0;
    return 0;
}
int cuPointerGetAttribute(void *value, int which, uint64_t address) {
    if (!is_in(&gpu, address, 1)) return INVALID;
    *(uint32_t *)value = which == 2 ? 2 : 0;
    return 0;
}
int cuMemHostRegister_v2(void *base, size_t bytes, unsigned flags) {
    for (size_t at = 0; at < 8; at++) {
        if (pinned[at].bytes != 0) continue;
        pinned[at] = (struct range){(uint64_t)base, bytes};
        return flags == 1 ? 0 : INVALID;
    }
    return INVALID;
}
int cuMemHostUnregister(void *base) {
    for (size_t at = 0; at < 8; at++)
        if (pinned[at].base == (uint64_t)base) pinned[at].bytes = 0;
    return 0;
}
int cuStreamCreate(void **stream, unsigned flags) { return (*stream = &gpu) == NULL || !flags; }
int cuStreamDestroy_v2(void *stream) { return stream == NULL; }
int cuEventCreate(void **event, unsigned flags) {
    *event = calloc(1, sizeof(size_t));
    return flags == 0;
}
int cuEventDestroy_v2(void *event) {
    free(event);
    return 0;
}
int cuEventRecord(void *event, void *stream) {
    *(size_t *)event = begun;
    return stream == NULL;
}
int cuEventQuery(void *event) {
    if (standin_holds) return NOT_READY;
    if (standin_fails) return LAUNCH_FAILED;
    for (; done < *(size_t *)event; done++) {
        memcpy(copies[done % MANY].to, copies[done % MANY].from, copies[done % MANY].bytes);
        waiting_bytes -= copies[done % MANY].bytes;
    }
    return 0;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    return stream == NULL || copy((void *)to, from, bytes, to, (uint64_t)from);
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    return stream == NULL || copy(to, (const void *)from, bytes, from, (uint64_t)to);
}
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) {
    memcpy((void *)to, from, bytes);
    return 0;
}
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
    memcpy(to, (const void *)from, bytes);
    return 0;
}
