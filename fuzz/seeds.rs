//! Writes the seeds of the corpora, made by the encoders themselves: `scripts/dev fuzz --seeds`.

use std::{env, fs, io};

/// Documents that no encoder makes.
const TEXTS: [(&str, &str); 4] = [
    ("configuration", include_str!("../config/default.toml")),
    ("identity_document", r#"{"model":"llama","layout":{"layers":32,"heads":[8,8]}}"#),
    ("client_identity", r#"{"model":"llama","layout":{"layers":32,"heads":[8,8]}}"#),
    ("client_message", r#"{"seq":1,"ask":{"Hello":{"version":{"major":1,"minor":0}}}}"#),
];

fn main() -> io::Result<()> {
    let folder = env::args_os().nth(1).expect("the folder of the corpora");
    let made = [
        kvrail_ring::fuzzing::seeds(),
        kvrail_protocol::fuzzing::seeds(),
        kvrail_store::fuzzing::seeds(),
        kvrail_volume::fuzzing::seeds(),
        kvrail_layout::fuzzing::seeds(),
    ];
    let texts = TEXTS.map(|(target, text)| (target, text.as_bytes().to_vec()));
    for (number, (target, bytes)) in made.into_iter().flatten().chain(texts).enumerate() {
        let home = std::path::Path::new(&folder).join(target);
        fs::create_dir_all(&home)?;
        fs::write(home.join(format!("seed-{number}")), bytes)?;
    }
    Ok(())
}
