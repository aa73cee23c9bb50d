//! C and C++ programs against a real sidecar: warnings are errors, sanitizers and valgrind watch.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::rig::{LONG, Place, Sidecar, VOLUME, actor_program, eventually, run};

/// The checker that a program runs under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watch {
    /// AddressSanitizer with its leak check, and UndefinedBehaviorSanitizer.
    Sanitizers,
    Valgrind,
}

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Whether a program is installed; prints a line when it is not.
fn have(program: &str) -> bool {
    let known = Command::new(program).arg("--version").stdout(Stdio::null()).status();
    let have = known.is_ok_and(|status| status.success());
    if !have {
        println!("skipped: {program} is not installed");
    }
    have
}

/// Compiles and links a program with the built library; the compiler must print nothing.
fn compile(source: &str, watch: Watch, place: &Place) -> PathBuf {
    let source = Path::new(REPOSITORY).join(source);
    let library = actor_program().parent().expect("a folder");
    let program = place.path(&format!("{watch:?}"));
    let cpp = source.extension().is_some_and(|extension| extension == "cpp");
    let mut command = Command::new(if cpp { "c++" } else { "cc" });
    command.args([if cpp { "-std=c++17" } else { "-std=c11" }, "-Wall", "-Wextra", "-Werror"]);
    command.args(["-Wpedantic", "-g", "-O1"]);
    if watch == Watch::Sanitizers {
        command.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    }
    command.arg("-I").arg(Path::new(REPOSITORY).join("ffi/c/include"));
    command.arg(&source).arg("-o").arg(&program).arg("-pthread");
    command.arg("-L").arg(library).arg("-lkvrail").arg(rpath(library));
    let outcome = run(&mut command);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""), "{command:?}");
    program
}

/// The library is found by its soname, as an installed one is.
fn rpath(library: &Path) -> String {
    let soname = library.join("libkvrail.so.1");
    if !soname.exists() {
        // Another test may have been faster.
        let _linked = std::os::unix::fs::symlink("libkvrail.so", &soname);
    }
    format!("-Wl,-rpath,{}", library.display())
}

fn watched(program: &Path, watch: Watch, sidecar: &Sidecar) -> Command {
    let mut command = match watch {
        Watch::Sanitizers => Command::new(program),
        Watch::Valgrind => {
            let mut valgrind = Command::new("valgrind");
            valgrind.args(["--quiet", "--error-exitcode=99", "--leak-check=full"]);
            valgrind.args(["--errors-for-leak-kinds=definite,indirect"]).arg(program);
            valgrind
        }
    };
    command.arg(sidecar.socket()).arg(VOLUME);
    command
}

/// Compiles and runs a program under each watch.
fn passes(source: &str, words: &str) {
    passes_at(&Place::with_volume(2, 16 << 20), source, words);
}

/// As `passes`, with the stand-in for a GPU.
fn passes_with_gpu(source: &str, words: &str) {
    let mut place = Place::with_volume(2, 16 << 20);
    place.configure("gpu.devices = [\"stand-in:0\"]");
    place.configure("gpu.staging_bytes = \"4MiB\"\ngpu.staging_slot_bytes = \"64KiB\"");
    passes_at(&place, source, words);
}

/// As `passes`, with a store in the volume's place.
fn passes_with_store(source: &str, words: &str) {
    passes_at(&Place::with_store(2, 256 << 20), source, words);
}

fn passes_at(place: &Place, source: &str, words: &str) {
    if !have("cc") || !have("c++") {
        return;
    }
    let sidecar = Sidecar::start(place);
    let before = sidecar.belongings();
    for watch in [Watch::Sanitizers, Watch::Valgrind] {
        if watch == Watch::Valgrind && !have("valgrind") {
            continue;
        }
        let program = compile(source, watch, place);
        let outcome = run(&mut watched(&program, watch, &sidecar));
        assert_eq!(outcome.code, Some(0), "{watch:?}: {outcome:#?}");
        assert!(outcome.stdout.contains(words), "{watch:?}: {outcome:#?}");
    }
    sidecar.wait_for_belongings(&before);
    sidecar.stop();
}

#[test]
fn a_c_program_moves_blocks() {
    passes("ffi/c/examples/blocks.c", "32 blocks of 262144 bytes: right");
}

#[test]
fn a_cpp_program_moves_blocks_in_threads() {
    passes("ffi/c/examples/threads.cpp", "4 threads, 32 rounds: right");
}

#[test]
fn a_c_program_puts_and_gets_blocks_by_key() {
    passes_with_store("ffi/c/examples/store.c", "24 blocks of 1 to 640256 bytes: right");
}

#[test]
fn a_cpp_program_uses_a_store_in_every_way() {
    passes_with_store("tests/flow/c/store.cpp", "the store keeps its word");
}

#[test]
fn a_c_program_reads_blocks_in_place() {
    let mut place = Place::with_store(2, 256 << 20);
    place.configure("[memory_tier]\nbytes = \"16MiB\"");
    passes_at(&place, "tests/flow/c/view.c", "6 views: right");
}

#[test]
fn a_c_program_moves_blocks_of_gpu_memory() {
    passes_with_gpu("ffi/c/examples/pages.c", "16 blocks of 16 parts: right");
}

#[test]
fn every_misuse_of_gpu_memory_is_refused() {
    passes_with_gpu("tests/flow/c/pages.c", "every misuse of GPU memory was refused");
}

#[test]
fn every_misuse_is_refused() {
    passes("tests/flow/c/misuse.c", "every misuse was refused");
}

#[test]
fn a_c_program_survives_its_sidecar() {
    if !have("cc") {
        return;
    }
    let place = Place::with_volume(1, 8 << 20);
    let program = compile("tests/flow/c/orphan.c", Watch::Sanitizers, &place);
    let sidecar = Sidecar::start(&place);
    let mut command = watched(&program, Watch::Sanitizers, &sidecar);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("it has requests", || {
        sidecar.status().sessions.iter().any(|session| session.counters.accepted > Some(0))
    });
    sidecar.kill();
    let start = std::time::Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > LONG {
            let _killed = child.kill();
            panic!("it hangs after the death of its sidecar");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("waiting") && text.contains("came back"), "{text}");
}

#[test]
fn a_c_program_goes_on_over_upgrades() {
    if !have("cc") {
        return;
    }
    let place = Place::with_store(2, 256 << 20);
    let program = compile("tests/flow/c/upgrade.c", Watch::Sanitizers, &place);
    let mut sidecar = Sidecar::start(&place);
    let mut command = watched(&program, Watch::Sanitizers, &sidecar);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut expect_life = |life: u32| {
        let line = lines.next().map(|line| line.expect("its output"));
        assert_eq!(line.as_deref(), Some(format!("right in life {life}").as_str()));
    };
    expect_life(1);
    sidecar.stop();
    sidecar = Sidecar::start(&place);
    expect_life(2);
    // Blocks that a stop made durable outlive a crash, too.
    sidecar.kill();
    sidecar = Sidecar::start(&place);
    expect_life(3);
    assert!(child.wait().expect("it ends").success());
    sidecar.stop();
}

#[test]
fn the_static_library_links_with_the_flags_of_the_package_file() {
    if !have("cc") {
        return;
    }
    let place = Place::with_volume(1, 16 << 20);
    let package = std::fs::read_to_string(Path::new(REPOSITORY).join("ffi/c/kvrail.pc.in"));
    let package = package.expect("the package file");
    let private = package.lines().find_map(|line| line.strip_prefix("Libs.private: "));
    let program = place.path("static");
    let mut command = Command::new("cc");
    command.arg("-I").arg(Path::new(REPOSITORY).join("ffi/c/include"));
    command.arg(Path::new(REPOSITORY).join("ffi/c/examples/blocks.c")).arg("-o").arg(&program);
    command.arg(actor_program().with_file_name("libkvrail.a"));
    command.args(private.expect("its libraries").split(' '));
    run(&mut command).expect(0, &[]);
    let sidecar = Sidecar::start(&place);
    let outcome = run(Command::new(&program).arg(sidecar.socket()).arg(VOLUME));
    assert_eq!(outcome.code, Some(0), "{outcome:#?}");
    sidecar.stop();
}
