//! The reconciler against a tree that keeps the kernel's rules.

mod cards;
mod change;
mod crash;
mod exchange;
mod fake;
mod fault;
mod machine;
mod others;
mod refusals;
mod unloaded;
mod vendor;
mod whole;
mod world;
