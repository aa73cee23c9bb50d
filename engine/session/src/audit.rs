//! Lines of the log about changes, each with its author.

/// Their target: changes of the configuration and of namespaces, begin and end of a sidecar.
pub const AUDIT: &str = "kvrail::audit";
