//! The house rules, as tests over the text of the repository. No rule has an exceptions list.
//!
//! Each rule is one function from sources to findings, one test that the repository has none, and
//! one test that a bad snippet has some, so that a rule that finds nothing fails.

mod atomics;
mod book;
mod changelog;
mod cycles;
mod docs;
mod fence;
mod fields;
mod grammar;
mod length;
mod limits;
mod manifest;
mod marks;
mod metrics;
mod params;
mod prose;
mod python_cycles;
mod reach;
mod report;
mod results;
mod rooms;
mod scripts;
mod source;
mod supply;
mod tables;
mod tokens;
mod unused;
