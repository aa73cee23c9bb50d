//! The poller with a store on a simulated device: requests through real lanes, content checked.

mod calls;
mod faults;
mod fills;
mod late;
mod late_durable;
mod load_time;
mod refusing;
mod requests;
mod rig;
mod sessions;
mod shares;
mod space;
mod traced;
