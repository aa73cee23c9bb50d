//! The store against a simulated drive and a reference model. Every scenario prints its seed when
//! it fails; `KVRAIL_STORE_SEED` is the first one, `KVRAIL_STORE_CASES` how many.

mod asking;
mod budget;
mod confirms;
mod crash;
mod cut;
mod drive;
mod fates;
mod faults;
mod hints;
mod ledger;
mod life;
mod listing;
mod model;
mod mutants;
mod odd;
mod pools;
mod reclaim;
mod refusing;
mod seeds;
mod start;
mod twins;
mod world;

use crate::seeds::each_seed;
