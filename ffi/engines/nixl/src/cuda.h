/* NVIDIA's driver. It is loaded when memory of a GPU is first registered, and not linked: the
 * plug-in serves machines without a GPU, too. */
#ifndef KVRAIL_NIXL_CUDA_H
#define KVRAIL_NIXL_CUDA_H

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "failure.h"

class Cuda {
    template <class... T> class Function {
        using Pointer = int32_t (*)(T...);
        const char *name_;
        Pointer it_;

      public:
        explicit Function(const char *name)
            : name_(name), it_(reinterpret_cast<Pointer>(symbol(name))) {}
        int32_t code(T... values) const { return it_(values...); }
        void operator()(T... values) const {
            if (int32_t code = it_(values...))
                throw Failure(core::Status::failed, message(name_, code));
        }
    };

    std::mutex mutex_;
    std::map<int, void *> contexts_;

    Cuda() { init(0); }
    static void *symbol(const char *name);
    void *context_of(int gpu);

  public:
    using Address = unsigned long long;

    /* Throws Failure where there is no driver or no GPU. */
    static Cuda &driver();
    /* "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)" */
    static std::string message(const char *function, int32_t code);
    /* The GPU whose memory a range is. */
    int gpu_of(const core::Range &range);

    /* The primary context of a GPU is this thread's, for a while. */
    class Within {
        Cuda &driver_;

      public:
        Within(Cuda &driver, int gpu) : driver_(driver) { driver.push(driver.context_of(gpu)); }
        Within(const Within &) = delete;
        Within &operator=(const Within &) = delete;
        ~Within() {
            void *context = nullptr;
            driver_.pop.code(&context);
        }
    };

    Function<unsigned> init{"cuInit"};
    Function<void *, int, Address> pointer_attribute{"cuPointerGetAttribute"};
    Function<int *, int> device{"cuDeviceGet"};
    Function<void **, int> retain{"cuDevicePrimaryCtxRetain"};
    Function<void *> push{"cuCtxPushCurrent_v2"};
    Function<void **> pop{"cuCtxPopCurrent_v2"};
    Function<void *, size_t, unsigned> pin{"cuMemHostRegister_v2"};
    Function<void *> unpin{"cuMemHostUnregister"};
    Function<void **, unsigned> stream_create{"cuStreamCreate"};
    Function<void *> stream_destroy{"cuStreamDestroy_v2"};
    Function<void **, unsigned> event_create{"cuEventCreate"};
    Function<void *> event_destroy{"cuEventDestroy_v2"};
    Function<void *, void *> event_record{"cuEventRecord"};
    Function<void *> event_query{"cuEventQuery"};
    Function<Address, const void *, size_t, void *> to_gpu{"cuMemcpyHtoDAsync_v2"};
    Function<void *, Address, size_t, void *> from_gpu{"cuMemcpyDtoHAsync_v2"};
};

#endif
