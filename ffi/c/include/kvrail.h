/*
 * libkvrail: puts KV-cache blocks into the stores of a kvrail sidecar and gets them back by key, or
 * moves them between memory and places in its volumes.
 *
 * Calls return KVRAIL_OK (0), a status of the sidecar (above 0, KVRAIL_MISS ...), or an error of
 * this library (below 0, KVRAIL_E_...). kvrail_last_error() has the cause and the remedy.
 *
 * Structures begin with `size`: set it to sizeof the structure. Members beyond the size are taken
 * as 0, so a program built with an older header runs with a newer library; members that are newer
 * than the library must be 0, else the call ends with KVRAIL_E_NEWER. In arrays the size of the
 * first element holds for all.
 *
 * Threads: a kvrail_client, kvrail_store or kvrail_namespace may be used from any thread at once.
 * A kvrail_queue is for one thread at a time; a second one gets KVRAIL_E_BUSY. Open one queue for
 * each thread. No object may be closed while another thread uses it. After fork() the child gets
 * KVRAIL_E_FORKED: attach there.
 *
 * Memory: requests name arenas and positions within them, or GPU regions, a block and a position
 * within the block. While a read or get is in flight its bytes change, and no other request may
 * name them; while a write or put is, they must not change. A read or get that ends
 * KVRAIL_RESTARTED may still be written by hardware: do not use that memory again before
 * kvrail_client_watch_transfers shows that nothing writes it, and memory of a GPU not before the
 * sidecar's process is gone.
 */

#ifndef KVRAIL_H
#define KVRAIL_H

/* Made from the Rust source; change that, and run the tests of ffi/c. */

#include <stddef.h>
#include <stdint.h>

// Every requested byte was moved.
#define KVRAIL_OK (0)
// The block is not there.
#define KVRAIL_MISS (1)
// The data do not match the expected checksum; treat the block as absent.
#define KVRAIL_CORRUPT (2)
// The device reported an error; a write may have happened in part.
#define KVRAIL_IO_ERROR (3)
// The device or file system is full; the write did not happen in full.
#define KVRAIL_NO_SPACE (4)
// The device is no longer there.
#define KVRAIL_DEVICE_GONE (5)
// The device hangs or fails; the request was not started.
#define KVRAIL_DEVICE_DEGRADED (6)
// The GPU failed; its memory must be considered lost.
#define KVRAIL_GPU_ERROR (7)
// The request is malformed, out of range or misaligned; nothing was done.
#define KVRAIL_INVALID (8)
// A limit of the session is reached; nothing was done.
#define KVRAIL_QUOTA (9)
// The sidecar is stopping; pieces not yet accepted were not done.
#define KVRAIL_DRAINING (10)
// The sidecar went away; whether the request happened is unknown.
#define KVRAIL_RESTARTED (11)
// A bug in kvrail; whether the request happened is unknown.
#define KVRAIL_INTERNAL (12)
// This device cannot do that; nothing was done.
#define KVRAIL_UNSUPPORTED (13)
// Notice only: the deadline passed, the request is still in flight.
#define KVRAIL_LATE (14)
// The store did not take it; nothing was written.
#define KVRAIL_DECLINED (15)
// The memory is smaller than the block; nothing was moved.
#define KVRAIL_TOO_SMALL (16)
// The namespace was cleared or removed: open it again; nothing was done.
#define KVRAIL_STALE (17)
// This user may not do that with the namespace; nothing was done.
#define KVRAIL_DENIED (18)
// An argument is null, out of range or of the wrong kind.
#define KVRAIL_E_ARGUMENT (-1)
// A structure uses members that this library lacks.
#define KVRAIL_E_NEWER (-2)
// Nothing answers at the socket; start a sidecar or name its socket.
#define KVRAIL_E_NO_SIDECAR (-3)
// The sidecar does not let this client in.
#define KVRAIL_E_NOT_ADMITTED (-4)
// Library and sidecar do not understand each other; update the older.
#define KVRAIL_E_VERSION (-5)
// The time is over; the request may still be executed.
#define KVRAIL_E_TIMEOUT (-6)
// The session has ended; attach again.
#define KVRAIL_E_GONE (-7)
// The sidecar broke the protocol, which is a bug; attach again.
#define KVRAIL_E_PROTOCOL (-8)
// The memory cannot be mapped or used.
#define KVRAIL_E_MEMORY (-9)
// The sidecar has no such volume.
#define KVRAIL_E_NO_VOLUME (-10)
// No such arena or GPU region is attached; it may be detached already.
#define KVRAIL_E_NO_ARENA (-11)
// The queue is full; poll it and submit the rest again.
#define KVRAIL_E_FULL (-12)
// The request is out of range or misaligned; nothing was done.
#define KVRAIL_E_REFUSED (-13)
// Another thread uses this queue now; open one for each thread.
#define KVRAIL_E_BUSY (-14)
// This process is a fork of the one that attached; attach here.
#define KVRAIL_E_FORKED (-15)
// The kernel refused.
#define KVRAIL_E_SYSTEM (-16)
// A bug in libkvrail; close the object and attach again.
#define KVRAIL_E_PANIC (-17)
// The sidecar does not serve this GPU.
#define KVRAIL_E_NO_GPU (-18)

// Generation of the ABI. It grows when a program built for the one before cannot run any more;
// the soname grows with it.
#define KVRAIL_ABI_VERSION 1
// Bytes of a volume's name with the zero at its end; a longer one is cut.
#define KVRAIL_NAME_BYTES 64
// Pages of the sidecar's configuration: 2 MiB where there are enough, else base pages.
#define KVRAIL_PAGES_AUTO 0
// Base pages of the machine.
#define KVRAIL_PAGES_BASE 1
// 2 MiB hugepages or an error.
#define KVRAIL_PAGES_2MIB 2
// 1 GiB hugepages or an error.
#define KVRAIL_PAGES_1GIB 3
// Bytes of a GPU's UUID as text, with the zero at its end.
#define KVRAIL_UUID_BYTES 48
// Bytes of a PCIe address as text, with the zero at its end.
#define KVRAIL_PCI_BYTES 32
// Bytes of a GPU's name with the zero at its end; a longer one is cut.
#define KVRAIL_GPU_NAME_BYTES 96
// Bytes of a legacy handle, as of a cudaIpcMemHandle_t.
#define KVRAIL_HANDLE_BYTES 64
// A descriptor of CUDA's virtual memory management, exported with
// CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; for a stand-in a sealed memfd.
#define KVRAIL_GPU_DESCRIPTOR 0
// A handle of cudaIpcGetMemHandle. The memory must live until the region is detached.
#define KVRAIL_GPU_LEGACY 1
// The namespace is made if it is not there.
#define KVRAIL_ABSENT_CREATE 0
// KVRAIL_MISS if it is not there.
#define KVRAIL_ABSENT_FAIL 1
// Bytes of a key.
#define KVRAIL_KEY_BYTES 16
// Bytes of a key as text, with the zero at its end.
#define KVRAIL_KEY_TEXT_BYTES 33
// A round trip to a poller (its number in `offset`), without a device.
#define KVRAIL_NOP 0
// Volume to memory.
#define KVRAIL_READ 1
// Memory to volume.
#define KVRAIL_WRITE 2
// Everything written and completed before is durable when this completes.
#define KVRAIL_FLUSH 3
// The range may be forgotten by the devices.
#define KVRAIL_DISCARD 4
// Somebody waits for it: the default.
#define KVRAIL_DEMAND 0
// Somebody may soon wait for it.
#define KVRAIL_PREFETCH 1
// No caller waits for it.
#define KVRAIL_BACKGROUND 2
// A write, put or drop is on stable media when it completes.
#define KVRAIL_DURABLE 1
// Return CRC-64/NVME of the bytes.
#define KVRAIL_CHECKSUM 2
// Bytes with another checksum than `checksum` end as KVRAIL_CORRUPT.
#define KVRAIL_VERIFY 4
// Nothing.
#define KVRAIL_NOTE_NONE 0
// KVRAIL_OK of a put: the block was there already; nothing was written.
#define KVRAIL_NOTE_PRESENT 1
// KVRAIL_OK of a put: another put of that key is in flight; nothing was written or is promised.
#define KVRAIL_NOTE_PENDING 2
// KVRAIL_MISS: recovery has not seen everything yet; the block may still turn up.
#define KVRAIL_NOTE_WARMING 3
// KVRAIL_MISS: the bytes were not those of the put, twice. The sidecar has a report.
#define KVRAIL_NOTE_WRONG 4
// KVRAIL_MISS or KVRAIL_DECLINED: the namespace was cleared or removed; refresh it.
#define KVRAIL_NOTE_STALE 5
// KVRAIL_DECLINED: all places for puts were taken.
#define KVRAIL_NOTE_BUSY 65
// KVRAIL_DECLINED: the index was full; space was being made.
#define KVRAIL_NOTE_INDEX_FULL 66
// KVRAIL_DECLINED: the store had not read its heads yet.
#define KVRAIL_NOTE_STARTING 67
// KVRAIL_DECLINED: the store only reads for good.
#define KVRAIL_NOTE_READ_ONLY 68
// KVRAIL_DECLINED: given up before it was complete; a drop, a clear or a failed part came between.
#define KVRAIL_NOTE_GIVEN_UP 69
// KVRAIL_DECLINED: little is left of the write budget, and the block was not put before.
#define KVRAIL_NOTE_FIRST_SIGHT 70
// KVRAIL_DECLINED: nothing is left of the write budget.
#define KVRAIL_NOTE_BUDGET 71
// KVRAIL_DECLINED: the drive refuses writes; blocks are taken again when the drive takes writes.
#define KVRAIL_NOTE_REFUSED 72
// KVRAIL_DECLINED of a put with KVRAIL_BEGINS: what is there is used too often to make room for a
// new chain. Chains that keep coming are taken.
#define KVRAIL_NOTE_COLDER 73
// Puts the bytes as the block of a key. An existing block stays, and nothing is written, unless
// KVRAIL_REPLACE is set.
#define KVRAIL_PUT 5
// Fills memory with the block of a key. The bytes are verified before the completion is handed
// out; wrong ones are KVRAIL_MISS. Bytes behind the block stay as they were.
#define KVRAIL_GET 6
// The block of a key is forgotten. KVRAIL_MISS: it was not there.
#define KVRAIL_DROP 8
// For a put: `checksum` is CRC-64/NVME of the bytes, which is not computed again.
#define KVRAIL_SUMMED 8
// For a put: a block with other bytes or of another length is dropped for good before these bytes
// are put; a get between the two is KVRAIL_MISS. The same bytes are KVRAIL_NOTE_PRESENT.
#define KVRAIL_REPLACE 16
// For a put: the store has less than half of the chain that the block belongs to, counted from its
// head. It is taken if it is worth more than the coldest blocks there are; else the put ends as
// KVRAIL_DECLINED with KVRAIL_NOTE_COLDER. Without this flag the block extends its chain.
#define KVRAIL_BEGINS 32
// For a put: the block has the worth of others that are used as often.
#define KVRAIL_WORTH_NORMAL 0
// For a put: it is worth less.
#define KVRAIL_WORTH_LOW 1
// For a put: it is worth more. A quarter of a pool may have such blocks; what is beyond is as
// others.
#define KVRAIL_WORTH_HIGH 2
// A time limit that never comes.
#define KVRAIL_FOREVER UINT64_MAX
// To the first key that is missing, where a prefix ends, and little further.
#define KVRAIL_LOOKUP_PREFIX 0
// All keys.
#define KVRAIL_LOOKUP_ALL 1
// What is found ages as before.
#define KVRAIL_LOOKUP_KEPT 0
// What is found counts as used, as by a get, and is evicted later. Not together with a hold.
#define KVRAIL_LOOKUP_RENEWED 1
// What is found goes first, until it is used again: its session has ended. Not together with a
// hold, and of writers of the namespace alone: else KVRAIL_E_DENIED. Earlier sidecars only look.
#define KVRAIL_LOOKUP_ENDED 2
// What is found is needed soon: it comes into the sidecar's memory tier, in the background, up to
// 64 blocks of each member at once. Without a tier it counts as used. Not together with a hold.
#define KVRAIL_LOOKUP_EXPECTED 3
// The block is not there: a get would be a miss.
#define KVRAIL_ABSENT 0
// Only kvrail_lookup has the answer: the store still reads its drive, the namespace was cleared,
// ...
#define KVRAIL_MAYBE 1
// The block is there, or was a moment ago: a get may be a miss.
#define KVRAIL_PRESENT 2
// Bytes of metadata that a block can have.
#define KVRAIL_METADATA_BYTES 1024
// Its segment was reclaimed.
#define KVRAIL_EVICTED 0
// It was dropped. Its metadata is not known.
#define KVRAIL_DROPPED 1
// Its namespace was cleared or removed: one event for all its blocks, with key 0.
#define KVRAIL_CLEARED 2
// Its block can be got.
#define KVRAIL_KEY_THERE 0
// A put of it is in flight.
#define KVRAIL_KEY_PUTTING 1
// It is not there: never put, or gone; `event` has its end, if that is known.
#define KVRAIL_KEY_ABSENT 2
// It was dropped, or a put of it was given up, while recovery goes on.
#define KVRAIL_KEY_DROPPED 3
// It may yet turn up: recovery has not seen everything.
#define KVRAIL_KEY_WARMING 4
// Its segment is not trusted: durable drops are missing in or behind it.
#define KVRAIL_KEY_DISTRUSTED 5
// In `event`: the sidecar remembers none.
#define KVRAIL_NO_EVENT UINT32_MAX

// A session with a sidecar.
typedef struct kvrail_client kvrail_client;

// The feed of blocks that are gone from a store.
typedef struct kvrail_events kvrail_events;

// A walk over the blocks of a namespace.
typedef struct kvrail_listing kvrail_listing;

// A set of clients that share blocks: a name, and an identity that must be the same for all.
typedef struct kvrail_namespace kvrail_namespace;

// One thread's way to the sidecar.
typedef struct kvrail_queue kvrail_queue;

// A store of the sidecar.
typedef struct kvrail_store kvrail_store;

// A block in the sidecar's memory tier, where it lies.
typedef struct kvrail_view kvrail_view;

// How to attach. All members but `size` may be 0.
typedef struct kvrail_attach_options {
    // sizeof this structure.
    uint32_t size;
    // Must be 0.
    uint32_t reserved;
    // Longest wait for the sidecar's answers in nanoseconds; 0 is 30 seconds.
    uint64_t timeout_ns;
    // Name of this client in `kvrail status`; NULL is the program's name.
    const char *name;
    // Longest wait in nanoseconds for a sidecar where there is none or one that is stopping, as
    // while it is upgraded; 0: that is KVRAIL_E_NO_SIDECAR or KVRAIL_E_GONE at once.
    uint64_t wait_ns;
} kvrail_attach_options;

// Properties of a session.
typedef struct kvrail_client_info {
    // sizeof this structure.
    uint32_t size;
    // Pollers of the sidecar.
    uint32_t pollers;
    // Number of the sidecar's run.
    uint64_t epoch;
    // Number of the session within it.
    uint64_t session;
    // Volumes of the sidecar.
    uint32_t volumes;
    // Queues this client may have at once.
    uint32_t queues_max;
    // Most requests one queue can have in flight.
    uint32_t queue_depth_max;
    // Arenas this client may have at once.
    uint32_t arenas_max;
    // Bytes all its arenas may have together.
    uint64_t arena_bytes_max;
    // Bytes that stay out of reach because hardware may still write them.
    uint64_t quarantined_bytes;
    // GPUs that the sidecar serves.
    uint32_t gpus;
    // GPU regions this client may have at once.
    uint32_t gpu_regions_max;
    // Bytes all its GPU regions may have together.
    uint64_t gpu_bytes_max;
} kvrail_client_info;

// A volume.
typedef struct kvrail_volume_info {
    // sizeof this structure.
    uint32_t size;
    // Its number, for requests.
    uint32_t volume;
    // Bytes it holds.
    uint64_t capacity;
    // Bytes of one stripe; a request within one stripe goes to one device.
    uint64_t stripe_bytes;
    // Unit of offsets and lengths in bytes, a power of two.
    uint32_t logical_block;
    // Unit of positions in arenas in bytes, a power of two.
    uint32_t memory_alignment;
    // Devices it is striped over.
    uint32_t members;
    // Must be ignored.
    uint32_t reserved;
    // From its label; another one means other data.
    uint8_t uuid[16];
    // Its name, ended by a zero.
    char name[KVRAIL_NAME_BYTES];
} kvrail_volume_info;

// Options of an arena.
typedef struct kvrail_arena_options {
    // sizeof this structure.
    uint32_t size;
    // KVRAIL_PAGES_...
    uint32_t pages;
    // Bytes at least.
    uint64_t bytes;
} kvrail_arena_options;

// An arena.
typedef struct kvrail_arena_info {
    // sizeof this structure.
    uint32_t size;
    // Its number, for requests; never 0.
    uint32_t region;
    // First byte, until the arena is detached and the client closed.
    void *base;
    // Bytes.
    uint64_t bytes;
    // Bytes of the pages behind it.
    uint64_t page_bytes;
} kvrail_arena_info;

// A GPU that the sidecar serves.
typedef struct kvrail_gpu_info {
    // sizeof this structure.
    uint32_t size;
    // Its number in the sidecar, which may be another one in this process.
    uint32_t index;
    // Bytes of its memory.
    uint64_t memory_bytes;
    // The same everywhere, as nvidia-smi -L prints it.
    char uuid[KVRAIL_UUID_BYTES];
    // Its PCIe address.
    char pci_address[KVRAIL_PCI_BYTES];
    // Its name.
    char name[KVRAIL_GPU_NAME_BYTES];
} kvrail_gpu_info;

// Memory of this program on a GPU, as it exported it.
typedef struct kvrail_gpu_memory {
    // sizeof this structure.
    uint32_t size;
    // KVRAIL_GPU_DESCRIPTOR or KVRAIL_GPU_LEGACY.
    uint32_t kind;
    // The descriptor, which stays the caller's; 0 for a legacy handle.
    int fd;
    // Must be 0.
    uint32_t reserved;
    // First byte of the memory in the allocation of a legacy handle; 0 for a descriptor.
    uint64_t offset;
    // Bytes from there on; for a descriptor the exact size of the allocation.
    uint64_t bytes;
    // The legacy handle.
    uint8_t handle[KVRAIL_HANDLE_BYTES];
} kvrail_gpu_memory;

// One fragment of every block, such as K or V of one layer.
typedef struct kvrail_gpu_fragment {
    // sizeof this structure.
    uint32_t size;
    // Place of its memory in the region's memories.
    uint32_t memory;
    // First byte of block 0's in that memory, a multiple of 16.
    uint64_t base;
    // Bytes from one block's to the next block's, a multiple of 16.
    uint64_t stride;
    // Its bytes, at least 512 and a multiple of 16.
    uint64_t bytes;
} kvrail_gpu_fragment;

// A paged KV cache on one GPU. A block is all its fragments, one after the other in this order;
// together they must be a multiple of 512 bytes.
typedef struct kvrail_gpu_region_options {
    // sizeof this structure.
    uint32_t size;
    // Blocks of the cache.
    uint32_t blocks;
    // UUID of the GPU as text.
    const char *gpu;
    // The memories of the fragments.
    const struct kvrail_gpu_memory *memories;
    // At most 256.
    size_t memory_count;
    // The fragments of every block.
    const struct kvrail_gpu_fragment *fragments;
    // At most 1024.
    size_t fragment_count;
} kvrail_gpu_region_options;

// A region.
typedef struct kvrail_gpu_region_info {
    // sizeof this structure.
    uint32_t size;
    // Its number, for requests; never 0.
    uint32_t region;
    // Bytes of one block.
    uint64_t block_bytes;
} kvrail_gpu_region_info;

// Properties of a store.
typedef struct kvrail_store_info {
    // sizeof this structure.
    uint32_t size;
    // The number of its volume.
    uint32_t volume;
    // Most bytes of a block.
    uint64_t block_bytes_max;
} kvrail_store_info;

// Size of a namespace, on all devices.
typedef struct kvrail_namespace_info {
    // sizeof this structure.
    uint32_t size;
    // Must be ignored.
    uint32_t reserved;
    // Blocks.
    uint64_t blocks;
    // Bytes of them.
    uint64_t bytes;
    // Its number, which is another one after each clear.
    uint64_t uid;
} kvrail_namespace_info;

// The key of a block within its namespace: 128 uniform bits. The first 16 bytes of a SHA-256 are
// one; anything else is folded by kvrail_key_of.
typedef struct kvrail_key {
    // The bits.
    uint8_t bytes[KVRAIL_KEY_BYTES];
} kvrail_key;

// What queue to open.
typedef struct kvrail_queue_options {
    // sizeof this structure.
    uint32_t size;
    // Pieces of requests that can be in flight, rounded up to a power of two; 0 is 128.
    uint32_t depth;
} kvrail_queue_options;

// One request.
typedef struct kvrail_request {
    // sizeof this structure.
    uint32_t size;
    // KVRAIL_READ, ...
    uint8_t opcode;
    // KVRAIL_DEMAND, ...
    uint8_t priority;
    // KVRAIL_DURABLE | ...
    uint16_t flags;
    // Number of the volume.
    uint32_t volume;
    // Number of the arena or GPU region for reads and writes, else 0.
    uint32_t region;
    // First byte in the volume, a multiple of its logical block.
    uint64_t offset;
    // First byte in the arena, or in the block of the GPU region; a multiple of the volume's
    // memory alignment, and of 16 in a block.
    uint64_t position;
    // Bytes to move, a multiple of the volume's logical block.
    uint64_t length;
    // Comes back in the completion.
    uint64_t tag;
    // For KVRAIL_VERIFY: CRC-64/NVME of the bytes.
    uint64_t checksum;
    // If not 0: a notice KVRAIL_LATE comes when the request takes longer; it still goes on.
    uint64_t deadline_ns;
    // Which block of the GPU region; 0 for an arena.
    uint32_t block;
    // Must be 0.
    uint32_t reserved;
} kvrail_request;

// One request for one block.
typedef struct kvrail_block_request {
    // sizeof this structure.
    uint32_t size;
    // KVRAIL_PUT, KVRAIL_GET or KVRAIL_DROP.
    uint8_t opcode;
    // KVRAIL_DEMAND, ...
    uint8_t priority;
    // KVRAIL_DURABLE for a put or drop; KVRAIL_SUMMED, KVRAIL_REPLACE and KVRAIL_BEGINS for a put.
    uint16_t flags;
    // The key.
    struct kvrail_key key;
    // Number of the arena for puts and gets, else 0.
    uint32_t region;
    // For a put: how deep in its chain the block is; 0 is the head of a prompt. More than 32,767
    // counts as 32,767.
    uint32_t depth;
    // First byte in the arena, a multiple of the volume's memory alignment.
    uint64_t position;
    // Bytes to put, from 1 to the store's `block_bytes_max`; bytes of memory for a get.
    uint64_t length;
    // Comes back in the completion.
    uint64_t tag;
    // If not 0: a notice KVRAIL_LATE comes when a put or get takes longer; it still goes on.
    uint64_t deadline_ns;
    // For KVRAIL_SUMMED: CRC-64/NVME of the bytes.
    uint64_t checksum;
    // For a put: bytes that stay with the block, for listings and the feed of what is gone. They
    // are copied.
    const void *metadata;
    // How many; 1,024 at most.
    uint64_t metadata_bytes;
    // For a put: KVRAIL_WORTH_NORMAL, ... It stays with the block, over restarts too.
    uint32_t worth;
    // For a put: seconds after which the block is worth nothing and goes first; 0: none.
    uint32_t ttl_s;
} kvrail_block_request;

// The end of a request, or a notice that it is late.
typedef struct kvrail_completion {
    // sizeof this structure.
    uint32_t size;
    // KVRAIL_OK, KVRAIL_IO_ERROR, ... After KVRAIL_LATE the end is still to come.
    int32_t status;
    // What kvrail_submit gave out for it.
    uint64_t ticket;
    // The request's.
    uint64_t tag;
    // Bytes moved: all of them when the status is KVRAIL_OK. Of a block the whole block's; after
    // KVRAIL_TOO_SMALL those that a get of it needs.
    uint64_t bytes;
    // CRC-64/NVME of the bytes, if the request has KVRAIL_CHECKSUM or KVRAIL_VERIFY.
    uint64_t checksum;
    // Nanoseconds at the device; of several pieces the longest.
    uint32_t device_ns;
    // Nanoseconds from acceptance to submission; of several pieces the longest.
    uint32_t queue_ns;
    // Details of a block's end beyond the status: KVRAIL_NOTE_...
    uint32_t note;
    // Must be ignored.
    uint32_t reserved;
} kvrail_completion;

// Options of a lookup. Members that are 0 or NULL are left out.
typedef struct kvrail_lookup_request {
    // sizeof this structure.
    uint32_t size;
    // KVRAIL_LOOKUP_PREFIX or KVRAIL_LOOKUP_ALL.
    uint32_t extent;
    // The keys, in the order of their chain.
    const struct kvrail_key *keys;
    // Number of keys.
    size_t count;
    // One byte for each key: becomes 1 where the block is there, else 0.
    uint8_t *there;
    // Time that found blocks are held: they are moved, not evicted. 0 holds none; a minute at
    // most.
    uint64_t hold_ns;
    // Longest time for all; 0 is 10 seconds.
    uint64_t timeout_ns;
    // KVRAIL_LOOKUP_KEPT, ...
    uint32_t recency;
    // Must be 0.
    uint32_t reserved;
} kvrail_lookup_request;

// Result of a lookup.
typedef struct kvrail_found {
    // sizeof this structure.
    uint32_t size;
    // Must be ignored.
    uint32_t reserved;
    // Keys from the first on that are all there.
    uint64_t prefix;
    // Keys that were looked up; the state of those behind is unknown.
    uint64_t asked;
    // Keys that are held now.
    uint64_t held;
    // Keys that may yet turn up: recovery has not seen everything.
    uint64_t warming;
    // Nanoseconds that gets of the prefix would take if they began now; 0 where that is not known,
    // as long as a drive was not measured, and for no key.
    uint64_t load_ns;
} kvrail_found;

// A block that was there when it was listed.
typedef struct kvrail_block_info {
    // sizeof this structure.
    uint32_t size;
    // Its bytes.
    uint32_t length;
    // The key.
    struct kvrail_key key;
    // Its depth in its chain; 0 is the head of a prompt.
    uint32_t depth;
    // Seconds since 1970 when it was put.
    uint32_t put_unix_s;
    // Bytes of `metadata`.
    uint32_t metadata_bytes;
    // Must be ignored.
    uint32_t reserved;
    // Metadata of its put.
    uint8_t metadata[KVRAIL_METADATA_BYTES];
} kvrail_block_info;

// A block that is not there any more.
typedef struct kvrail_event {
    // sizeof this structure.
    uint32_t size;
    // KVRAIL_EVICTED, ...
    uint32_t kind;
    // The key.
    struct kvrail_key key;
    // The namespace, as kvrail_namespace_info has it.
    uint64_t uid;
    // Its bytes.
    uint32_t length;
    // Bytes of `metadata`.
    uint32_t metadata_bytes;
    // Metadata of its put.
    uint8_t metadata[KVRAIL_METADATA_BYTES];
} kvrail_event;

// State of a key in a store. Members that do not apply to its state are 0.
typedef struct kvrail_key_info {
    // sizeof this structure.
    uint32_t size;
    // KVRAIL_KEY_THERE, ...
    uint32_t state;
    // Bytes of the block; there and putting.
    uint32_t length;
    // Bytes of it that are written; putting.
    uint32_t written;
    // The latest event about it: KVRAIL_EVICTED, ... or KVRAIL_NO_EVENT.
    uint32_t event;
    // Segment of the ring, as all members below: there.
    uint32_t segment;
    // Seconds since the event.
    uint64_t event_seconds;
    // The segment's epoch.
    uint64_t epoch;
    // The block's first byte on the area of its member.
    uint64_t offset;
    // Its check.
    uint64_t check;
    // Milliseconds until its last hold ends; 0 is no hold.
    uint64_t held_ms;
    // Seconds since 1970 when the segment was made ready: the block is no older than that.
    uint32_t opened_unix_s;
    // Segments that are reclaimed before it.
    uint32_t segments_ahead;
    // Place of its member in the store, in every state.
    uint16_t member;
    // The member's device, in every state.
    uint16_t device;
    // Its worth: 0 normal, 1 less (demoted), 2 more (retained), 3 nothing (over).
    uint8_t worth;
    // 0: not known here. A listing has the depth of a block in its chain.
    uint8_t depth;
    // 1: a reader reported wrong bytes, and the store has not checked them yet.
    uint8_t suspect;
    // 1: reclaim would move it now; 0: evict it.
    uint8_t moves;
} kvrail_key_info;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The generation of the library that runs; compare it with `KVRAIL_ABI_VERSION` of the header.
uint32_t kvrail_abi_version(void);

// The release of the library that runs, as "1.2.3".
const char *kvrail_version(void);

// Name of a status or error, as "KVRAIL_CORRUPT". Never null; lives for ever.
const char *kvrail_status_name(int32_t code);

// One sentence on what a status or error means. Never null; lives for ever.
const char *kvrail_status_meaning(int32_t code);

// Cause and remedy of the last call that failed in this thread. Never null; valid until the next
// call of this library that fails in this thread.
const char *kvrail_last_error(void);

// Attaches to the sidecar behind the socket at this path. `options` may be NULL.
int32_t kvrail_attach(const char *socket, const kvrail_attach_options *options,
    kvrail_client **client);

// Closes the client and sets the variable to NULL. The session ends, and the memory of its
// arenas is unmapped, when its queues, stores and namespaces are closed too.
int32_t kvrail_close(kvrail_client **client);

// Properties of the session.
int32_t kvrail_client_describe(const kvrail_client *client, kvrail_client_info *info);

// A descriptor that reports a hang-up (POLLRDHUP) when the session ends. Only to be waited on; it
// belongs to the client.
int32_t kvrail_client_hangup_fd(const kvrail_client *client, int *fd);

// A descriptor that hangs up (POLLHUP) once the sidecar's process has ended and no device reads or
// writes memory of this host for it any more: then memory of requests that ended as
// KVRAIL_RESTARTED is the program's again. That is some milliseconds behind a kill, where drives
// answer. It is the program's to close, and only to be waited on, never to be read. -1 where
// nothing shows it: from a sidecar of an earlier release, and on some kernels; wait for 5 s then.
int32_t kvrail_client_watch_transfers(const kvrail_client *client, int *fd);

// The volume of this name.
int32_t kvrail_volume_find(const kvrail_client *client, const char *name, kvrail_volume_info *info);

// The volume of this number; numbers count from 0.
int32_t kvrail_volume_at(const kvrail_client *client, uint32_t number, kvrail_volume_info *info);

// Makes the sidecar create an arena, registered with all devices.
int32_t kvrail_arena_create(const kvrail_client *client, const kvrail_arena_options *options,
    kvrail_arena_info *info);

// Registers memory of the program's own with all devices: a memfd of exactly `bytes` bytes, fully
// allocated, sealed with F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL. The descriptor stays the
// caller's. The memory is mapped once more, at `info->base`.
int32_t kvrail_arena_import(const kvrail_client *client, int fd, uint64_t bytes,
    kvrail_arena_info *info);

// The arena that an address of this process lies in, and where: by the arena's own mapping, or by
// another one of the same file. Memory that is in no arena yet and in a file that is mapped
// shared, as a memfd or one of /dev/shm, becomes an arena: the whole file, once.
// KVRAIL_E_MEMORY: others cannot map it; copy the bytes through an arena of the client.
int32_t kvrail_region_of(const kvrail_client *client, const void *address, kvrail_arena_info *info,
    uint64_t *position);

// Takes an arena away from the sidecar. Blocks until nothing can touch the memory any more;
// requests in flight are finished first. The program must not touch it either from then on.
int32_t kvrail_arena_detach(const kvrail_client *client, uint32_t region);

// The GPU of this place in the sidecar's list; places count from 0.
int32_t kvrail_gpu_at(const kvrail_client *client, uint32_t place, kvrail_gpu_info *info);

// Makes the sidecar use memory of this program on a GPU. Descriptors may be closed afterwards;
// memory behind legacy handles must live until the region is detached.
int32_t kvrail_gpu_region_attach(const kvrail_client *client,
    const kvrail_gpu_region_options *options, kvrail_gpu_region_info *info);

// Takes a region away from the sidecar. Blocks until nothing can touch the memory any more;
// requests in flight are finished first. KVRAIL_E_GONE: the sidecar went away first, and its
// process must be gone before the memory is used for anything else.
int32_t kvrail_gpu_region_detach(const kvrail_client *client, uint32_t region);

// Opens the store of this name. It may be used from any thread at once.
int32_t kvrail_store_open(const kvrail_client *client, const char *name, kvrail_store **store);

// Closes the handle and sets the variable to NULL. Its namespaces stay open.
int32_t kvrail_store_close(kvrail_store **store);

// Properties of a store.
int32_t kvrail_store_describe(const kvrail_store *store, kvrail_store_info *info);

// Opens a namespace. `identity` is a JSON object that names all that makes blocks incompatible:
// model, weights, dtype, layout, tokens a block, rank. Another identity than that of its creation
// is KVRAIL_INVALID; kvrail_last_error names the field. `absent` is KVRAIL_ABSENT_CREATE or
// KVRAIL_ABSENT_FAIL. It may be used from any thread at once.
int32_t kvrail_namespace_open(const kvrail_store *store, const char *name, const char *identity,
    uint32_t absent, kvrail_namespace **space);

// Closes the handle and sets the variable to NULL. Requests in flight go on.
int32_t kvrail_namespace_close(kvrail_namespace **space);

// Makes all blocks of a namespace unreachable, for all clients, and opens it again. Requests of
// others end with KVRAIL_NOTE_STALE until they refresh it.
int32_t kvrail_namespace_clear(const kvrail_namespace *space);

// Opens a namespace again after another client cleared it.
int32_t kvrail_namespace_refresh(const kvrail_namespace *space);

// What a namespace holds, on all devices. KVRAIL_STALE: it was removed.
int32_t kvrail_namespace_usage(const kvrail_namespace *space, kvrail_namespace_info *info);

// Forgets the namespace of this name and its blocks, for everybody.
int32_t kvrail_namespace_remove(const kvrail_store *store, const char *name);

// Folds any bytes to a key: the first 128 bits of their BLAKE3. The same bytes make the same key
// in all languages.
int32_t kvrail_key_of(const void *data, size_t length, kvrail_key *key);

// Folds `count` pieces of `length` bytes each, one behind the other, to `count` keys.
int32_t kvrail_keys_of(const void *data, size_t length, size_t count, kvrail_key *keys);

// The key of a hash that is uniform by itself, as SHA-256: its first 16 bytes.
int32_t kvrail_key_uniform(const void *hash, size_t length, kvrail_key *key);

// A key as `kvrail store` shows and takes it. `text` has room for KVRAIL_KEY_TEXT_BYTES.
int32_t kvrail_key_text(const kvrail_key *key, char *text);

// What a completion's note means, in a few words. Never null; lives for ever.
const char *kvrail_note_meaning(uint32_t note);

// Opens a queue. `options` may be NULL.
int32_t kvrail_queue_open(const kvrail_client *client, const kvrail_queue_options *options,
    kvrail_queue **queue);

// Waits until nothing is in flight, closes the queue, and sets the variable to NULL, whatever it
// returns. KVRAIL_E_TIMEOUT: requests were still in flight at the end of the time.
int32_t kvrail_queue_close(kvrail_queue **queue, uint64_t timeout_ns);

// Submits requests, all of them with one store for each device thread. Ends at the first that is
// refused and returns why; those before it are in flight. `submitted` becomes their number, and
// their tickets are written to the front of `tickets`; either may be NULL.
int32_t kvrail_submit(kvrail_queue *queue, const kvrail_request *requests, size_t count,
    uint64_t *tickets, size_t *submitted);

// As kvrail_submit, for blocks of one namespace. The checks of blocks that are put are computed
// here: a pass over their bytes.
int32_t kvrail_submit_blocks(kvrail_queue *queue, const kvrail_namespace *space,
    const kvrail_block_request *requests, size_t count, uint64_t *tickets, size_t *submitted);

// Fetches completions, without waiting: up to `capacity`; `count` becomes their number.
int32_t kvrail_poll(kvrail_queue *queue, kvrail_completion *completions, size_t capacity,
    size_t *count);

// Waits until `least` requests have ended (at most `capacity`), and fetches up to `capacity`
// ends. KVRAIL_E_TIMEOUT: the time is over, `count` are there. KVRAIL_OK with fewer than `least`:
// nothing is in flight that could end. Signals do not end a wait; KVRAIL_FOREVER waits as long
// as the sidecar lives.
int32_t kvrail_wait(kvrail_queue *queue, kvrail_completion *completions, size_t capacity,
    size_t least, uint64_t timeout_ns, size_t *count);

// A descriptor for event loops: it becomes readable when something has ended, after
// kvrail_queue_arm. Only to be waited on, never to be read; it belongs to the queue.
int32_t kvrail_queue_fd(kvrail_queue *queue, int *fd);

// Prepares to wait on the descriptor. `ready` becomes 1 when something has ended already: then
// poll, do not wait. Call kvrail_poll after each wait.
int32_t kvrail_queue_arm(kvrail_queue *queue, int *ready);

// Pieces of requests that are in flight.
int32_t kvrail_queue_outstanding(kvrail_queue *queue, size_t *count);

// Looks up blocks of a namespace, and waits for the answer. Other requests of the queue continue
// meanwhile. KVRAIL_STALE: the namespace was cleared; refresh it.
int32_t kvrail_lookup(kvrail_queue *queue, const kvrail_namespace *space,
    const kvrail_lookup_request *wanted, kvrail_found *found);

// Ends this client's holds on these keys.
int32_t kvrail_release(kvrail_queue *queue, const kvrail_namespace *space, const kvrail_key *first,
    size_t count, uint64_t timeout_ns);

// Whether blocks are there, without a request to the sidecar: some tens of nanoseconds a key,
// whether it sleeps or not. KVRAIL_ABSENT is never the answer for a block that was acknowledged to
// any client before, and not dropped, cleared or evicted since. `presence` has a byte for each
// key, which becomes KVRAIL_ABSENT, KVRAIL_MAYBE or KVRAIL_PRESENT; it may be NULL. So may
// `prefix`, which becomes the number of keys from the first on that are KVRAIL_PRESENT. From any
// thread; the first call for a store waits until the sidecar has shared its tables.
int32_t kvrail_namespace_probe(const kvrail_namespace *space, const kvrail_key *first, size_t count,
    uint8_t *presence, size_t *prefix);

// A block in the sidecar's memory tier, without a copy, a request or a read: `bytes` becomes its
// first byte, `length` how many there are. They may be read, by any thread, and stay as they are
// until kvrail_view_close, whatever becomes of the block, as long as the sidecar does not end the
// session; not in a forked child. `view` becomes NULL where the tier does
// not have the block, or this client has as many views as it may (4 to 255, one for each 128
// blocks of the tier): get it then. Verified at its first view by this client. A view keeps the
// session of its client.
int32_t kvrail_view_open(kvrail_queue *queue, const kvrail_namespace *space, const kvrail_key *key,
    kvrail_view **view, const void **bytes, size_t *length);

// Lets the sidecar use the memory for other blocks, and sets the variable to NULL.
int32_t kvrail_view_close(kvrail_view **view);

// Begins a walk over the blocks of a namespace. A whole walk has every block that was there when
// it began and when it ended; one that the store moved meanwhile may come twice.
int32_t kvrail_namespace_list(const kvrail_namespace *space, kvrail_listing **listing);

// The next blocks of a walk, up to `capacity`; `count` is 0 behind the last one. `unreadable`, if
// it is not NULL, becomes the number of pages so far that could not be read, whose blocks are
// missing here. KVRAIL_STALE: the namespace was cleared meanwhile; asking again goes on.
int32_t kvrail_listing_next(const kvrail_listing *listing, kvrail_block_info *blocks,
    size_t capacity, size_t *count, uint64_t *unreadable);

// Ends a walk and sets the variable to NULL.
int32_t kvrail_listing_close(kvrail_listing **listing);

// The feed of blocks that are gone from a store from now on: evicted, dropped, cleared, of all
// namespaces. Each feed has its own place; none takes events from another.
int32_t kvrail_store_events(const kvrail_store *store, kvrail_events **events);

// Blocks that are gone since the last call, without waiting, up to `capacity`; `count` is 0 when
// there is none now. `lost` becomes the number of events since the last call that were
// overwritten: above 0, list again.
int32_t kvrail_events_poll(const kvrail_events *events, kvrail_event *gone, size_t capacity,
    size_t *count, uint64_t *lost);

// Ends a feed and sets the variable to NULL.
int32_t kvrail_events_close(kvrail_events **events);

// State of a key in a store: where its block is and what becomes of it next, or its end, if that
// is known. A request to the sidecar's control thread: for people, not for each request.
// KVRAIL_MISS: the namespace was removed.
int32_t kvrail_namespace_explain(const kvrail_namespace *space, const kvrail_key *key,
    kvrail_key_info *info);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KVRAIL_H */
