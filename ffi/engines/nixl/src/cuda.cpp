#include "cuda.h"

#include <dlfcn.h>

using core::Status;

/* CUpointer_attribute, CUmemorytype. */
constexpr int MEMORY_TYPE = 2, DEVICE_ORDINAL = 9;
constexpr uint32_t OF_DEVICE = 2;

static void *library() {
    static void *it = [] {
        void *found = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        if (found == nullptr)
            throw Failure(Status::unsupported,
                          std::string("memory of a GPU (VRAM) needs NVIDIA's driver: ") +
                              dlerror() + "; install it, give the container its libraries "
                              "(runtime class nvidia), or register host memory (DRAM)");
        return found;
    }();
    return it;
}

void *Cuda::symbol(const char *name) {
    void *it = dlsym(library(), name);
    if (it == nullptr)
        throw Failure(Status::unsupported, std::string("NVIDIA's driver has no ") + name +
                                               "; install driver 550 or newer, or register host "
                                               "memory (DRAM)");
    return it;
}

Cuda &Cuda::driver() {
    /* Never destroyed: backends may end after the statics. */
    static Cuda &it = *new Cuda;
    return it;
}

std::string Cuda::message(const char *function, int32_t code) {
    const char *name = nullptr;
    auto *name_of = reinterpret_cast<int32_t (*)(int32_t, const char **)>(
        dlsym(library(), "cuGetErrorName"));
    if (name_of != nullptr) name_of(code, &name);
    return std::string(function) + ": " + (name != nullptr ? name : "unknown") + " (" +
           std::to_string(code) + ")";
}

int Cuda::gpu_of(const core::Range &range) {
    int gpus[2] = {-1, -1};
    Address ends[2] = {range.address, range.address + range.bytes - 1};
    for (int at = 0; at < 2; at++) {
        uint32_t type = 0;
        int32_t code = pointer_attribute.code(&type, MEMORY_TYPE, ends[at]);
        if (code == 0 && type == OF_DEVICE)
            code = pointer_attribute.code(&gpus[at], DEVICE_ORDINAL, ends[at]);
        if (code != 0 || gpus[at] < 0)
            throw Failure(Status::invalid,
                          "address " + std::to_string(ends[at]) +
                              (code != 0 ? ": " + message("cuPointerGetAttribute", code) : "") +
                              " is no memory that CUDA knows on a GPU; it may have been freed; "
                              "register host memory as DRAM");
    }
    if (gpus[0] != gpus[1])
        throw Failure(Status::invalid, "the range begins on GPU " + std::to_string(gpus[0]) +
                                           " and ends on GPU " + std::to_string(gpus[1]) +
                                           "; register each part by itself");
    return gpus[0];
}

/* Kept until the process ends. */
void *Cuda::context_of(int gpu) {
    std::lock_guard guard(mutex_);
    void *&context = contexts_[gpu];
    if (context != nullptr) return context;
    int number = 0;
    device(&number, gpu);
    retain(&context, number);
    return context;
}
