//! Scenarios over seeds, for this suite and for the replays of `bench/replay`.

/// Runs a scenario for one seed after another.
pub(crate) fn each_seed(name: &str, cases: u64, scenario: impl Fn(u64)) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first: u64 = number("KVRAIL_STORE_SEED").unwrap_or(1);
    let cases: u64 = number("KVRAIL_STORE_CASES").unwrap_or(cases);
    println!("{name}: seeds {first} to {}", first + cases - 1);
    for seed in first..first + cases {
        let run = std::panic::AssertUnwindSafe(|| scenario(seed));
        if let Err(why) = std::panic::catch_unwind(run) {
            eprintln!("{name}: failed with KVRAIL_STORE_SEED={seed} KVRAIL_STORE_CASES=1");
            std::panic::resume_unwind(why);
        }
    }
    println!("{name}: {cases} seeds, nothing wrong");
}
