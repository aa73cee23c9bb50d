// Moves KV blocks between a paged cache in GPU memory and staging slots in mapped host memory.
//
// The bytes of a block are numbered fragment after fragment; a job is a range of those numbers. One
// launch does many jobs: grid row y is job y, grid column x its chunk x. The last CTA of a launch
// stores the launch's number into a flag in host memory, which the poller watches: no event, no
// driver call. `move.ptx` beside this file is made from it by `scripts/dev ptx`.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

// One fragment of every block. The same layout as `FragmentRow` in `layout/table.rs`.
struct Fragment {
    u64 base;    // address of this fragment of block 0
    u64 stride;  // bytes from one block to the next
    u64 start;   // number of its first byte within the block
    u64 bytes;   // a multiple of 16
};

// One range of one block. The same layout as `DeviceJob` in `cuda/launch.rs`.
struct Job {
    const Fragment* fragments;
    u8* staged;      // where the first byte of the range is, in mapped host memory
    u64 start;       // number of its first byte within the block, a multiple of 16
    u32 length;      // bytes, a multiple of 16
    u32 block;       // which block
    u32 count;       // fragments of a block
    u32 reserved;
};

constexpr u32 THREADS = 256;
constexpr u32 VECTOR = 16;
constexpr u32 LOADS = 4;  // vectors in flight for each thread: hides the latency of the bus
constexpr u32 CHUNK = THREADS * VECTOR * LOADS;

// The same layout as `Batch` in `cuda/launch.rs`, whose beginning serves the kernels for few jobs:
// parameters travel with the launch, and 2.5 KiB of them take longer than 350 bytes.
template <u32 JOBS>
struct Batch {
    u32* arrived;  // in GPU memory: CTAs done, back to 0 when the launch ends
    u32* flag;     // in mapped host memory
    u32 ticket;    // what the flag says when this launch is done
    u32 reserved;
    Job jobs[JOBS];
};

enum Way { GATHER, SCATTER };

// The fragment that holds byte `at` of a block: the last one that starts at or before it.
__device__ __forceinline__ u32 find(const Fragment* fragments, u32 count, u64 at) {
    u32 low = 0;
    while (count > 1) {
        u32 half = count / 2;
        if (fragments[low + half].start <= at) {
            low += half;
            count -= half;
        } else {
            count = half;
        }
    }
    return low;
}

template <Way WAY>
__device__ __forceinline__ void move_chunk(const Job& job) {
    u64 from = (u64)blockIdx.x * CHUNK;
    if (from >= job.length) return;
    uint4* paged[LOADS];
    uint4* staged[LOADS];
    uint4 values[LOADS];
    const Fragment* fragment = nullptr;
#pragma unroll
    for (u32 load = 0; load < LOADS; load++) {
        u64 at = from + (load * THREADS + threadIdx.x) * VECTOR;
        paged[load] = nullptr;
        if (at < job.length) {
            u64 number = job.start + at;
            if (load == 0) {
                fragment = job.fragments + find(job.fragments, job.count, number);
            }
            while (number >= fragment->start + fragment->bytes) fragment++;
            u64 address = fragment->base + job.block * fragment->stride;
            paged[load] = (uint4*)(address + (number - fragment->start));
            staged[load] = (uint4*)(job.staged + at);
            values[load] = WAY == GATHER ? *paged[load] : __ldcv(staged[load]);
        }
    }
#pragma unroll
    for (u32 load = 0; load < LOADS; load++) {
        if (paged[load] != nullptr) {
            *(WAY == GATHER ? staged[load] : paged[load]) = values[load];
        }
    }
}

// Says that the launch is done, when this is its last CTA. Stores of a CTA are ordered before its
// count by the barrier and the release; the last count acquires them all, and the release of the
// flag at system scope makes them visible to the host first. One fence over the bus for a launch.
template <u32 JOBS>
__device__ __forceinline__ void arrive(const Batch<JOBS>& batch) {
    __syncthreads();
    if (threadIdx.x != 0) return;
    u32 total = gridDim.x * gridDim.y;
    if (total > 1) {
        u32 before;
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                     : "=r"(before)
                     : "l"(batch.arrived)
                     : "memory");
        if (before + 1 < total) return;
        *(volatile u32*)batch.arrived = 0;
    }
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(batch.flag), "r"(batch.ticket)
                 : "memory");
}

#define KERNEL(NAME, WAY, JOBS)                                       \
    extern "C" __global__ void __launch_bounds__(THREADS)             \
    NAME(const __grid_constant__ Batch<JOBS> batch) {                 \
        move_chunk<WAY>(batch.jobs[blockIdx.y]);                      \
        arrive(batch);                                                \
    }

KERNEL(kvrail_gather_8, GATHER, 8)
KERNEL(kvrail_gather_64, GATHER, 64)
KERNEL(kvrail_scatter_8, SCATTER, 8)
KERNEL(kvrail_scatter_64, SCATTER, 64)
