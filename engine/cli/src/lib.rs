//! The common parts of kvrail's commands: the configuration and the global options, how a command
//! fails, what it prints, and the signals that end it.
//!
//! Owns exit statuses, the words of failures and the keys of the configuration. Runs no command and
//! serves nothing.
#![forbid(unsafe_code)]

#[expect(missing_docs, reason = "config/default.toml explains each key, and a test compares them")]
pub mod config;
pub mod context;
pub mod failure;
mod format;
pub mod output;
pub mod progress;
pub mod stop;
