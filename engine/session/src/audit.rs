//! Lines of the log that answer what changed, and by whom.

/// Their target: changes of the configuration and of namespaces, begin and end of a sidecar.
pub const AUDIT: &str = "kvrail::audit";
