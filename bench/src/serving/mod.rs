//! A trace of an engine's requests, played against a store with real bytes.
//!
//! Every request looks its blocks up from the front, gets those that are there and puts the rest,
//! as an engine does that offloads. Every byte of every get is compared. Owns the clients that do
//! so and what they count; the trace is `kvrail-replay`'s, and the same as simulations take.

mod client;
mod counts;
mod play;
mod report;

pub(crate) use play::play;
pub(crate) use report::table;
