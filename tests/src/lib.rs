//! Tests that see several rooms at once: contract suites, flows between processes, faults, house
//! rules. Each target below `tests/` runs alone.
#![forbid(unsafe_code)]
