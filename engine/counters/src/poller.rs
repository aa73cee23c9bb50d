//! Counters of a poller.

counters! {
    /// Counters of a poller since its start.
    PollerCounters {
        ticks: Counter, "kvrail_poller_ticks", "Ticks of the poller's loop.";
        busy_ticks: Counter, "kvrail_poller_busy_ticks", "Ticks that found work.";
        sleeps: Counter, "kvrail_poller_sleeps", "Times that the poller went to sleep.";
        doorbells: Counter, "kvrail_poller_doorbells", "Doorbells rung for sleeping clients.";
        allocations: Counter, "kvrail_poller_allocations",
            "Heap calls on the poller's thread after its start: there should be none.";
    }
}
