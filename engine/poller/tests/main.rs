//! A poller in one thread and in made-up time: with a device that does as the test says (`flow`),
//! with a store on a simulated device (`keyed`), and against a model (`model`).

mod flow;
mod keyed;
mod model;
mod rig;
