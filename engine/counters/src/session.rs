//! Counters of a session.

counters! {
    /// Counters of a session.
    SessionCounters {
        accepted: Counter, "kvrail_session_requests_accepted",
            "Requests accepted. A lookup of many keys is one.";
        completed: Counter, "kvrail_session_requests_completed",
            "Requests completed, refused ones included.";
        failed: Counter, "kvrail_session_requests_failed",
            "Requests that failed: misses and declined puts did not.";
        bytes: Counter, "kvrail_session_transferred_bytes", "Bytes moved.";
    }
}
