//! Findings of rules, and how a test reports them.

use std::fmt;

/// One place that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) path: String,
    /// Counted from 1.
    pub(crate) line: usize,
    pub(crate) what: String,
}

impl Finding {
    pub(crate) fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, what } = self;
        write!(f, "{path}:{line}: {what}")
    }
}

/// Fails the test when there are findings, with every place and the remedy.
#[track_caller]
pub(crate) fn clean(findings: &[Finding], remedy: &str) {
    let places: Vec<String> = findings.iter().map(ToString::to_string).collect();
    let count = places.len();
    assert!(places.is_empty(), "{count} found\n{}\nremedy: {remedy}\n", places.join("\n"));
}

/// Fails the test unless the findings lie at exactly these lines.
#[track_caller]
pub(crate) fn found_at(findings: &[Finding], lines: &[usize]) {
    let mut found: Vec<usize> = findings.iter().map(|finding| finding.line).collect();
    found.sort_unstable();
    assert_eq!(found, lines, "{findings:#?}");
}

#[test]
#[should_panic(expected = "a.rs:7: too long\nremedy: cut it")]
fn a_finding_fails_the_test_with_place_and_remedy() {
    clean(&[Finding::new("a.rs", 7, "too long")], "cut it");
}

#[test]
#[should_panic(expected = "assertion")]
fn a_missing_finding_fails_a_self_test() {
    found_at(&[], &[1]);
}
