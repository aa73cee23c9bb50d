//! The reconciler against a tree that keeps the kernel's rules.

mod change;
mod crash;
mod exchange;
mod fake;
mod fault;
mod others;
mod refusals;
mod vendor;
mod whole;
mod world;
