//! Where the built programs are.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The helper program of these tests.
pub(crate) fn actor_program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_kvrail-actor"))
}

/// The program under test, in the helper's folder, where a build of the workspace leaves it.
///
/// # Panics
/// When it was not built.
pub(crate) fn kvrail_program() -> PathBuf {
    let program = actor_program().with_file_name("kvrail");
    assert!(
        program.is_file(),
        "{} does not exist: run `scripts/dev test`, which builds it first",
        program.display()
    );
    program
}

/// Removes every variable of this environment that configures kvrail.
pub(crate) fn without_configuration(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("KVRAIL_") {
            command.env_remove(name);
        }
    }
    // The configuration in /etc of this machine is not read.
    command.env("KVRAIL_CONFIG", "/dev/null");
}

/// A run of `kvrail`, without configuration from this environment.
pub(crate) fn kvrail() -> Command {
    let mut command = Command::new(kvrail_program());
    without_configuration(&mut command);
    command
}

/// Runs it to its end.
pub(crate) fn run(command: &mut Command) -> Outcome {
    let Output { status, stdout, stderr } = command.output().expect("the program starts");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Outcome { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

/// Exit status and output of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// None when a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    /// Checks the exit status and that standard error has all these words.
    pub(crate) fn expect(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:#?}");
        for word in words {
            assert!(self.stderr.contains(word), "no {word:?} in {}", self.stderr);
        }
    }
}
