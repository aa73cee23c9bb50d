//! Errors of a configuration.

use std::fmt;
use std::path::PathBuf;

use super::provenance::Origin;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read ({error})", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The file's text is not a configuration; the message shows line and caret.
    #[error("{}: {}", path.display(), message.trim_end())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The parser's words.
        message: String,
    },
    /// An environment variable or `--set` does not fit.
    #[error("{origin}: {message}")]
    Override {
        /// Which one.
        origin: Origin,
        /// The violated rule.
        message: String,
    },
    /// Values that are readable and make no sense.
    #[error("{}", SourceLines(.0))]
    Invalid(Vec<ConfigProblem>),
}

impl ConfigError {
    /// The remedy.
    pub fn remedy(&self) -> String {
        match self {
            Self::Read { .. } => "name a readable file with --config".into(),
            Self::Parse { .. } | Self::Override { .. } => {
                "`kvrail config default` shows every key with its meaning".into()
            }
            Self::Invalid(problems) => {
                let all: Vec<&str> = problems.iter().map(|problem| &*problem.remedy).collect();
                all.join("; ")
            }
        }
    }
}

/// One value that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigProblem {
    /// Its key path.
    pub key: String,
    /// The value.
    pub value: String,
    /// Where it was set.
    pub origin: Origin,
    /// The rule that it must fulfil.
    pub rule: String,
    /// The remedy.
    pub remedy: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {} ({}): {}", self.key, self.value, self.origin, self.rule)
    }
}

struct SourceLines<'a>(&'a [ConfigProblem]);

impl fmt::Display for SourceLines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n  ")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}
