//! Clients of a store that speak lanes themselves: a second implementation of the wire protocol,
//! independent of the client library.

mod books;
mod content;
mod job;
mod process;
mod roles;
mod seat;

pub use books::Books;
pub use content::{bytes_of, key_of, length_of};
pub use process::{KeyedPlan, KeyedTally, drive_keyed};
pub use roles::{TwinTally, half, hold, noise, role_seat, twin};
pub use seat::{End, Gone, Op, Seat, SeatOptions};
