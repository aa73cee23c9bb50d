//! Makes `include/kvrail.h` and compares it with the one that is checked in.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::code::codes;

/// Set to write the header instead of comparing it.
const WRITE: &str = "KVRAIL_WRITE_HEADER";

/// What is public, in the order of the header.
const MODULES: [&str; 19] = [
    "version",
    "code",
    "boundary",
    "client",
    "volume",
    "arena",
    "gpu",
    "store",
    "namespace",
    "key",
    "request",
    "note",
    "block",
    "queue",
    "lookup",
    "presence",
    "view",
    "listing",
    "explain",
];

/// The constants that `code` makes by macro, which cbindgen cannot see.
fn constants() -> String {
    let mut text = String::new();
    for (code, name, meaning) in codes() {
        let _written = write!(text, "\n// {meaning}\n#define {name} ({code})\n");
    }
    text
}

fn generated() -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = cbindgen::Config::from_file(here.join("cbindgen.toml")).unwrap();
    config.after_includes = Some(constants());
    // The source alone: no look at other packages, so no run of cargo.
    let mut builder = cbindgen::Builder::new().with_config(config);
    for module in MODULES {
        builder = builder.with_src(here.join("src").join(module).with_extension("rs"));
    }
    let mut text = Vec::new();
    builder.generate().expect("the source can be read").write(&mut text);
    tight(&String::from_utf8(text).expect("a header is text"))
}

/// A declaration in as few lines as it fits.
fn wrapped(declared: &str) -> String {
    const COLUMNS: usize = 100;
    let joined = declared.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut lines = vec![String::new()];
    for parameter in joined.split_inclusive(", ") {
        match lines.last_mut() {
            Some(line) if line.len() + parameter.trim_end().len() <= COLUMNS => *line += parameter,
            _ => lines.push(format!("    {parameter}")),
        }
    }
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}

/// Declarations and constants close together: cbindgen gives each parameter a line of its own, and
/// each constant a gap.
fn tight(text: &str) -> String {
    let mut paragraphs: Vec<String> = Vec::new();
    for paragraph in text.split("\n\n") {
        let (docs, declared) = paragraph.split_at(paragraph.find("int32_t kvrail_").unwrap_or(0));
        let paragraph = match declared.starts_with("int32_t") {
            // Each structure has its name without the word, too.
            true => format!("{docs}{}", wrapped(&declared.replace("struct ", ""))),
            false => paragraph.to_owned(),
        };
        let constant = |text: &str| {
            let last = text.lines().last();
            last.is_some_and(|line| line.starts_with("#define") && line != "#define KVRAIL_H")
        };
        match paragraphs.last_mut() {
            Some(before) if constant(before) && constant(&paragraph) => {
                *before += "\n";
                *before += &paragraph;
            }
            _ => paragraphs.push(paragraph),
        }
    }
    paragraphs.join("\n\n")
}

#[test]
fn the_header_is_the_one_the_source_makes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/kvrail.h");
    let made = generated();
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, &made).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == made, "include/kvrail.h is old: run `{WRITE}=1 cargo test -p kvrail-c`");
}
