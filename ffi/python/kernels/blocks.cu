// Moves blocks of a paged cache in GPU memory to and from mapped host memory, and computes their
// CRC-64/NVME where they are. `blocks.ptx` in the Python package is made from it by
// `scripts/dev ptx`; `kvrail/_crc.py` has the maths and the tables.
//
// A block is some pages of the cache, a page its fragments; the bytes of a block are numbered in
// units of 16, fragment after fragment. Grid row y is block y, grid column x a slice of its units.
// The CRC without its first and last inversion is linear: each thread sums every 256th unit by
// Horner's rule, and the sums are weighted by what follows them. Zeros in front change nothing, so
// a slice is filled up to whole rows there.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

// One fragment of every page. The same layout as `_ROW` in `kvrail/_mover.py`.
struct Fragment {
    u64 base;    // address of this fragment of page 0
    u64 stride;  // bytes from one page to the next
    u64 end;     // number of the first unit behind it, within the page
};

// The same layout as `_Launch` in `kvrail/_mover.py`.
struct Launch {
    const Fragment* fragments;  // of a page
    const u64* tables;    // 8 of 256: what a byte of a sum becomes one row of units later
    const u64* weights;   // for each thread what follows its last unit's first and second half
    const u64* behind;    // for each slice what follows it
    const int* pages;     // of each block; -1 is none: its bytes are in the staging slot alone
    const u64* slots;     // where each block's bytes are in mapped host memory
    u64* sums;            // of each slice of each block, in mapped host memory
    u32 block_pages;      // pages of a block
    u32 page_units;       // units of a page
    u32 slice_units;      // units of a slice
    u32 slices;           // slices of a block
};

constexpr u32 THREADS = 256;
constexpr u32 LOADS = 4;  // units in flight for each thread: hides the latency of memory and bus

enum Way { GATHER, SCATTER, CHECK };

// The product of two polynomials, the lowest bit of a word being the highest power, modulo that of
// CRC-64/NVME.
__device__ __forceinline__ u64 multiply(u64 a, u64 b) {
    u64 product = 0;
#pragma unroll 8
    for (int bit = 63; bit >= 0; bit--) {
        product ^= b & -((a >> bit) & 1);
        b = (b >> 1) ^ (0x9a6c9329ac4bc9b5ull & -(b & 1));
    }
    return product;
}

// A sum one row of units later.
__device__ __forceinline__ u64 later(const u64* tables, u64 sum) {
    u64 next = 0;
#pragma unroll
    for (u32 byte = 0; byte < 8; byte++) next ^= tables[byte * 256 + ((sum >> (8 * byte)) & 255)];
    return next;
}

// Where the units of a block are; asked in ascending order.
struct Cursor {
    const Launch& launch;
    const int* pages;
    u32 page, first, fragment, begin;  // the page's first unit; the fragment's, within the page

    __device__ Cursor(const Launch& launch, u32 unit)
        : launch(launch),
          pages(launch.pages + (u64)blockIdx.y * launch.block_pages),
          page(unit / launch.page_units),
          first(page * launch.page_units),
          fragment(0),
          begin(0) {}

    __device__ uint4* paged(u32 unit) {
        while (unit - first >= launch.page_units) {
            page++;
            first += launch.page_units;
            fragment = begin = 0;
        }
        int number = pages[page];
        if (number < 0) return nullptr;
        while (unit - first >= launch.fragments[fragment].end) {
            begin = launch.fragments[fragment].end;
            fragment++;
        }
        const Fragment& its = launch.fragments[fragment];
        return (uint4*)(its.base + number * its.stride) + (unit - first - begin);
    }
};

template <Way WAY>
__device__ __forceinline__ void run(const Launch& launch) {
    __shared__ u64 tables[8 * 256];
    __shared__ u64 sums[THREADS / 32];
    if (WAY != SCATTER) {
        for (u32 at = threadIdx.x; at < 8 * 256; at += THREADS) tables[at] = launch.tables[at];
        __syncthreads();
    }
    u32 units = launch.block_pages * launch.page_units;
    u32 from = blockIdx.x * launch.slice_units;
    u32 count = min(launch.slice_units, units - from);
    u32 rows = (count + THREADS - 1) / THREADS, empty = rows * THREADS - count;
    uint4* staged = (uint4*)launch.slots[blockIdx.y];
    Cursor cursor(launch, from);
    u64 low = 0, high = 0;
    for (u32 row = 0; row < rows; row += LOADS) {
        uint4 values[LOADS];
        uint4* targets[LOADS];
#pragma unroll
        for (u32 load = 0; load < LOADS; load++) {
            u32 at = (row + load) * THREADS + threadIdx.x;
            values[load] = make_uint4(0, 0, 0, 0);
            targets[load] = nullptr;
            if (row + load >= rows || at < empty) continue;
            u32 unit = from + at - empty;
            uint4* paged = cursor.paged(unit);
            if (WAY == SCATTER) {
                targets[load] = paged;
                if (paged) values[load] = __ldcv(staged + unit);
            } else {
                values[load] = paged ? *paged : __ldcv(staged + unit);
                if (WAY == GATHER) targets[load] = staged + unit;
            }
        }
#pragma unroll
        for (u32 load = 0; load < LOADS; load++) {
            if (WAY != CHECK && targets[load]) *targets[load] = values[load];
            if (WAY == SCATTER || row + load >= rows) continue;
            low = later(tables, low) ^ (((u64)values[load].y << 32) | values[load].x);
            high = later(tables, high) ^ (((u64)values[load].w << 32) | values[load].z);
        }
    }
    if (WAY == SCATTER) return;
    u64 sum = multiply(low, launch.weights[2 * threadIdx.x]) ^
              multiply(high, launch.weights[2 * threadIdx.x + 1]);
    for (u32 lanes = 16; lanes > 0; lanes /= 2) sum ^= __shfl_down_sync(~0u, sum, lanes);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (u32 warp = 1; warp < THREADS / 32; warp++) sum ^= sums[warp];
    launch.sums[(u64)blockIdx.y * launch.slices + blockIdx.x] =
        multiply(sum, launch.behind[blockIdx.x]);
}

#define KERNEL(NAME, WAY)                                 \
    extern "C" __global__ void __launch_bounds__(THREADS) \
    NAME(const __grid_constant__ Launch launch) {         \
        run<WAY>(launch);                                 \
    }

KERNEL(kvrail_blocks_gather, GATHER)
KERNEL(kvrail_blocks_scatter, SCATTER)
KERNEL(kvrail_blocks_check, CHECK)
