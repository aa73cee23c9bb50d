//! Files that may have `unsafe`, and the comments that it needs.

use std::collections::BTreeMap;

use proc_macro2::Delimiter;

use crate::report::{Finding, clean, found_at};
use crate::source::{Source, rust, tree};
use crate::tokens::{each, is_group, is_word, line};

/// Files that call the kernel, share memory with it, or border on C or Python; no other may be
/// unsafe.
const FENCED: &[&str] = &[
    "bench/src/raw/",
    "engine/crc/src/wide.rs",
    "engine/device/src/uring/",
    "engine/gpu/src/cuda/",
    "engine/memory/",
    "engine/host/nvme/src/admin.rs",
    "engine/ring/",
    "ffi/c/src/",
    "ffi/cufile/",
    "ffi/engines/kvbm/src/memory.rs",
    "ffi/python/src/arena.rs",
    "ffi/python/src/memory.rs",
    "ffi/python/src/view.rs",
];

/// Lines at the top of a file within which its header stands, behind the module's docs.
const HEADER_LINES: usize = 30;

/// Lines between an unsafe block and the comment over its statement.
const STATEMENT_LINES: usize = 6;

fn unsafe_lines(source: &Source) -> Vec<usize> {
    let mut lines = Vec::new();
    each(source.tokens(), &mut |run, at| {
        if is_word(run.get(at), "unsafe") {
            lines.push(line(&run[at]));
        }
    });
    lines
}

fn outside(sources: &[Source]) -> Vec<Finding> {
    let open =
        rust(sources).filter(|source| !FENCED.iter().any(|fence| source.path.starts_with(fence)));
    let places = |source: &Source| {
        let lines = unsafe_lines(source).into_iter();
        let finding = |line| Finding::new(&source.path, line, "unsafe outside of the fence");
        lines.map(finding).collect::<Vec<_>>()
    };
    open.flat_map(places).collect()
}

/// Files with unsafe code open with the expectation and, right below it, the reason.
fn headless(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in rust(sources) {
        let Some(first) = unsafe_lines(source).into_iter().next() else { continue };
        let mut top = source.text.lines().take(HEADER_LINES);
        let expected = top.any(|text| text.starts_with("#![expect(unsafe_code"));
        // The attribute may take several lines.
        if !expected || !top.take(4).any(|text| text.starts_with("// UNSAFETY: ")) {
            let what = "unsafe without `#![expect(unsafe_code, ...)]` and `// UNSAFETY:` on top";
            findings.push(Finding::new(&source.path, first, what));
        }
    }
    findings
}

/// Unsafe blocks and impls without a SAFETY comment over their statement.
fn unargued(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in rust(sources) {
        each(source.tokens(), &mut |run, at| {
            let next = run.get(at + 1);
            let claims = is_group(next, Delimiter::Brace) || is_word(next, "impl");
            if is_word(run.get(at), "unsafe") && claims && !argued(source, line(&run[at])) {
                let what = "unsafe without a `// SAFETY:` comment above it";
                findings.push(Finding::new(&source.path, line(&run[at]), what));
            }
        });
    }
    findings
}

/// Whether the comment over the statement that goes on at `number` argues safety.
fn argued(source: &Source, number: usize) -> bool {
    let above = |line: &usize| source.line(*line).trim();
    let comment = |text: &str| text.starts_with("//");
    let candidates = (number.saturating_sub(STATEMENT_LINES)..number).rev();
    let mut within = candidates.take_while(|line| {
        let text = above(line);
        comment(text) || !(text.is_empty() || text.ends_with([';', '{', '}']))
    });
    let Some(last) = within.find(|line| comment(above(line))) else { return false };
    let block = (1..=last).rev().take_while(|line| comment(above(line)));
    block.into_iter().any(|line| above(&line).contains("SAFETY: "))
}

/// Crate roots of packages whose `src` has no unsafe code and that do not forbid it.
fn permissive(sources: &[Source]) -> Vec<Finding> {
    let mut packages: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for source in rust(sources) {
        if let Some((package, _)) = source.path.split_once("/src/") {
            packages.entry(package).or_default().push(source);
        }
    }
    let safe =
        packages.values().filter(|files| files.iter().all(|file| unsafe_lines(file).is_empty()));
    let roots = safe.flatten().filter(|source| {
        source.path.ends_with("/src/lib.rs") || source.path.ends_with("/src/main.rs")
    });
    let lax = roots.filter(|source| !source.text.contains("#![forbid(unsafe_code)]"));
    lax.map(|source| Finding::new(&source.path, 1, "no `#![forbid(unsafe_code)]`")).collect()
}

#[test]
fn unsafe_code_stays_within_the_fence() {
    clean(&outside(tree()), "call rustix, or a safe function of a fenced room");
}

#[test]
fn files_with_unsafe_code_declare_it_on_top() {
    clean(&headless(tree()), "open the file with the expectation and the UNSAFETY line");
}

#[test]
fn unsafe_blocks_and_impls_are_argued() {
    clean(&unargued(tree()), "name the owner of the memory and why it outlives the call");
}

#[test]
fn crates_without_unsafe_code_forbid_it() {
    clean(&permissive(tree()), "add `#![forbid(unsafe_code)]` below the crate's docs");
}

#[test]
fn unsafe_outside_of_the_fence_is_found_in_macros_too() {
    let text = "// unsafe in words\nfn a() { unsafe { b() } }\nmacro! { unsafe { c() } }";
    found_at(&outside(&[Source::snippet("engine/session/src/a.rs", text)]), &[2, 3]);
    found_at(&outside(&[Source::snippet("engine/ring/src/a.rs", text)]), &[]);
}

#[test]
fn files_without_the_header_are_found() {
    let code = "unsafe impl Send for A {}\n";
    let header = "//! Docs.\n#![expect(unsafe_code, reason = \"r\")]\n";
    let found = |text: &str| headless(&[Source::snippet("a.rs", text)]);
    found_at(&found(code), &[1]);
    found_at(&found(&format!("{header}{code}")), &[3]);
    found_at(&found(&format!("{header}// UNSAFETY: why.\n{code}")), &[]);
}

#[test]
fn unargued_blocks_are_found() {
    let text = "// SAFETY: the
// caller's.
#[must_use]
unsafe impl Send for A {}
fn f() {
    // SAFETY: ours.
    let a =
        unsafe { g() };
    let b = unsafe { g() };
    // a plain comment
    let c = unsafe { g() };
}
/// # Safety
/// None.
unsafe fn declared() {}";
    found_at(&unargued(&[Source::snippet("a.rs", text)]), &[9, 11]);
}

#[test]
fn a_safe_crate_that_does_not_forbid_is_found() {
    let library = |text: &str| Source::snippet("a/src/lib.rs", text);
    found_at(&permissive(&[library("//! A.\n")]), &[1]);
    found_at(&permissive(&[library("#![forbid(unsafe_code)]\n")]), &[]);
    let inner = Source::snippet("a/src/b.rs", "unsafe impl Send for A {}");
    found_at(&permissive(&[library("//! A.\n"), inner]), &[]);
}
