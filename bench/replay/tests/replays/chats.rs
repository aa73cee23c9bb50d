//! A generator of chats: prompts that share system texts and grow turn by turn.

use std::fmt::Write;

use fastrand::Rng;

/// A trace as text.
pub(crate) fn chats(seed: u64, requests: u32) -> String {
    let mut random = Rng::with_seed(seed);
    let mut next = 1000;
    let mut fresh = |count: usize| {
        let first = next;
        next += count as u64;
        first..next
    };
    let systems: Vec<Vec<u64>> = (0..6).map(|_| fresh(1 + random.usize(..4)).collect()).collect();
    let mut open: Vec<Vec<u64>> = Vec::new();
    let (mut text, mut at) = (String::new(), 0);
    for _ in 0..requests {
        at += random.u64(..600);
        if open.is_empty() || random.u8(..10) < 4 {
            // A few system texts are asked for much more often than others.
            let which = random.usize(..6).min(random.usize(..6));
            open.push(systems[which].clone());
        }
        // Most chats go on soon, or never.
        let back = random.usize(..open.len()).min(random.usize(..open.len()));
        let at_chat = open.len() - 1 - back;
        let chat = &mut open[at_chat];
        chat.extend(fresh(1 + random.usize(..12)));
        writeln!(text, "{{\"timestamp\": {at}, \"hash_ids\": {chat:?}}}").unwrap();
        if chat.len() > 80 || random.u8(..3) == 0 {
            open.remove(at_chat);
        }
    }
    text
}
