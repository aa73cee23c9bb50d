//! Counters of the sidecar as a whole.

counters! {
    /// Counters of a sidecar that belong to none of its parts.
    SidecarCounters {
        refused: Counter, "kvrail_connections_refused",
            "Connections of clients that were refused.";
        closing: Gauge, "kvrail_connections_closing",
            "Connections that have ended, and wait for what their clients had sent to be closed.";
        log_lines_lost: Counter, "kvrail_log_lines_lost",
            "Lines of the log that were lost because their reader was too slow, or gone.";
    }
}
