//! Counters of a GPU.

counters! {
    /// Counters of a GPU's poller.
    GpuCounters {
        launches: Counter, "kvrail_gpu_launches", "Kernel launches.";
        moves: Counter, "kvrail_gpu_moves", "Moves of blocks by kernels.";
        gathered_bytes: Counter, "kvrail_gpu_gathered_bytes",
            "Bytes from the GPU to staging memory.";
        scattered_bytes: Counter, "kvrail_gpu_scattered_bytes",
            "Bytes from staging memory to the GPU.";
        direct_bytes: Counter, "kvrail_gpu_direct_bytes", "Bytes that went past host memory.";
        failed: Counter, "kvrail_gpu_failures", "Jobs that ended in an error.";
    }
}
