//! Every snippet of the guide runs; those in Python are run by the package's own tests.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::TempDir;

use crate::rig::{actor_program, eventually, kvrail_program, run, without_configuration};

const GUIDE: &str = include_str!("../../docs/guide.md");
const RUST: &str = include_str!("guide/main.rs");
const RUST_STORE: &str = include_str!("guide/store.rs");
const RUST_PAGES: &str = include_str!("guide/pages.rs");

/// The snippet with this title.
fn snippet(title: &str) -> String {
    let mark = format!(" title={title}");
    let lines =
        GUIDE.lines().skip_while(|line| !(line.starts_with("```") && line.ends_with(&mark)));
    let body: Vec<&str> = lines.skip(1).take_while(|line| *line != "```").collect();
    assert!(!body.is_empty(), "the guide has no snippet {title}");
    body.join("\n") + "\n"
}

/// A shell command of the guide, in its folder, with the built program in the path.
fn shell(script: &str, folder: &Path) -> Command {
    let built = kvrail_program();
    let path = built.parent().expect("a folder").display();
    let inherited = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("bash");
    without_configuration(&mut command);
    command.args(["-ec", script]).current_dir(folder).env("PATH", format!("{path}:{inherited}"));
    command
}

/// The guide's sidecar; ends with the test.
struct Serving {
    child: Child,
    _port: MutexGuard<'static, ()>,
}

/// The guide's sidecars show their metrics at the default place: one at a time.
static PORT: Mutex<()> = Mutex::new(());

impl Drop for Serving {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// A sidecar by the snippets of these titles: one makes a volume, one serves it.
fn serving([create, serve]: [&str; 2]) -> (TempDir, Serving) {
    let port = PORT.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a temporary folder");
    run(&mut shell(&snippet(create), folder.path())).expect(0, &[]);
    let script = format!("exec {} --exit-with-parent", snippet(serve).trim_end());
    let mut command = shell(&script, folder.path());
    let child = command.stderr(Stdio::null()).process_group(0).spawn().expect("bash starts");
    let serving = Serving { child, _port: port };
    let socket = folder.path().join("kvrail.sock");
    eventually("the guide's sidecar serves", || kvrail_client::Client::attach(&socket).is_ok());
    (folder, serving)
}

#[test]
fn the_rust_program_is_the_guides_and_runs() {
    let program = env!("CARGO_BIN_EXE_kvrail-guide");
    is_the_guides_and_runs("main.rs", RUST, program, ["create", "serve"]);
}

#[test]
fn the_rust_program_for_a_store_is_the_guides_and_runs() {
    let program = env!("CARGO_BIN_EXE_kvrail-guide-store");
    is_the_guides_and_runs("store.rs", RUST_STORE, program, ["create-store", "serve"]);
}

#[test]
fn the_rust_program_for_gpu_memory_is_the_guides_and_runs() {
    let program = env!("CARGO_BIN_EXE_kvrail-guide-pages");
    is_the_guides_and_runs("pages.rs", RUST_PAGES, program, ["create", "serve-gpu"]);
}

fn is_the_guides_and_runs(title: &str, source: &str, program: &str, made: [&str; 2]) {
    let without_head = source.split_once("\n\n").expect("a head").1;
    assert_eq!(without_head, snippet(title), "guide/{title} is not the guide's snippet");
    let (folder, _serving) = serving(made);
    let outcome = run(Command::new(program).current_dir(folder.path()));
    assert_eq!(
        (outcome.code, outcome.stdout.as_str()),
        (Some(0), "the same bytes\n"),
        "{outcome:?}"
    );
}

#[test]
fn the_c_program_is_installed_compiled_and_runs() {
    is_installed_compiled_and_runs("guide", "compile", ["create", "serve"]);
}

#[test]
fn the_c_program_for_a_store_is_installed_compiled_and_runs() {
    is_installed_compiled_and_runs("blocks", "compile-blocks", ["create-store", "serve"]);
}

fn is_installed_compiled_and_runs(name: &str, compile: &str, made: [&str; 2]) {
    for tool in ["cc", "pkg-config"] {
        let found = Command::new(tool).arg("--version").stdout(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            println!("skipped: {tool} is not installed");
            return;
        }
    }
    let (folder, _serving) = serving(made);
    let prefix = folder.path().join("prefix");
    let built = actor_program().parent().expect("a folder");
    let repository = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut install = Command::new("scripts/verbs/install.sh");
    install.arg(&prefix).arg(built.file_name().expect("the profile")).current_dir(repository);
    install.env("CARGO_TARGET_DIR", built.parent().expect("the target folder"));
    run(&mut install).expect(0, &[]);
    let source = format!("{name}.c");
    fs::write(folder.path().join(&source), snippet(&source)).expect("our folder");
    let script = snippet("prefix") + &snippet(compile);
    let outcome = run(shell(&script, folder.path()).env("PREFIX", &prefix));
    assert_eq!(
        (outcome.code, outcome.stdout.as_str()),
        (Some(0), "the same bytes\n"),
        "{outcome:?}"
    );
}

/// The guide's commands for a running sidecar print what the guide shows.
#[test]
fn what_is_looked_at_is_answered() {
    let (folder, _serving) = serving(["create-store", "serve"]);
    // A client is taken a moment before the phase is Serving.
    let look = || run(&mut shell(&snippet("look"), folder.path()));
    eventually("it serves", || look().stdout.contains("Serving"));
    let outcome = look();
    outcome.expect(0, &[]);
    assert!(outcome.stdout.contains("STORE"), "{}", outcome.stdout);
}

#[test]
fn the_crates_are_at_the_paths_of_the_guide() {
    let repository = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let manifest = snippet("Cargo.toml");
    let paths =
        manifest.split("path = \"kvrail/").skip(1).filter_map(|rest| rest.split('"').next());
    let paths: Vec<&str> = paths.collect();
    assert_eq!(paths.len(), 2, "{manifest}");
    for path in paths {
        let text = fs::read_to_string(repository.join(path).join("Cargo.toml")).expect(path);
        let name = format!("name = \"kvrail-{}\"", path.rsplit('/').next().unwrap_or_default());
        assert!(text.contains(&name) && manifest.contains(&name[8..name.len() - 1]), "{path}");
    }
}

#[test]
fn every_snippet_has_a_test() {
    let known = [
        "first.py",
        "many.py",
        "chain.py",
        "blocks.py",
        "memory.py",
        "late.py",
        "view.py",
        "volume.py",
        "batches.py",
        "loop.py",
        "pages.py",
        "create-store",
        "look",
        "prefix",
        "Cargo.toml",
        "create",
        "serve",
        "serve-gpu",
        "blocks.c",
        "compile-blocks",
        "guide.c",
        "compile",
        "store.rs",
        "main.rs",
        "pages.rs",
        // By scripts/dev torch, where there is a GPU.
        "tensors.py",
        "paged.py",
    ];
    let fences = GUIDE.lines().filter(|line| line.starts_with("```") && line.len() > 3);
    for fence in fences {
        let title = fence.split_once(" title=").map_or("", |(_, title)| title);
        assert!(known.contains(&title), "no test runs {fence:?}");
    }
}
