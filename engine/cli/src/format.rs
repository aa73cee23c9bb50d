//! The reader of the output: a person or a program.

/// The reader of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Text and tables.
    #[default]
    Human,
    /// JSON documents; errors too, on standard error.
    Json,
}
