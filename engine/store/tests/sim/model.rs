//! The reference: for each key what a get may return, and what it must.

use std::collections::BTreeMap;

/// A value that was put: its bytes follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Value {
    pub(crate) version: u64,
    pub(crate) length: u32,
}

impl Value {
    pub(crate) fn bytes(self) -> Vec<u8> {
        let mut rng = fastrand::Rng::with_seed(self.version);
        let mut bytes = vec![0; self.length as usize];
        rng.fill(&mut bytes);
        bytes
    }
}

/// The model's state of one key.
#[derive(Clone, Debug, Default)]
struct State {
    /// The result of a get now, unless it was evicted.
    now: Now,
    /// Values that may come back after a crash.
    history: Vec<Value>,
    /// Must be there after a crash, if nothing was evicted.
    must: Option<Value>,
    /// The state that holds again if the put in flight fails.
    prior: Now,
    /// It may have been evicted since it was last seen.
    doubtful: bool,
    /// The model's doubts when its put began.
    began: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Now {
    /// Never put, or dropped.
    #[default]
    Nothing,
    /// Not found; never dropped, so that a restart may bring it back.
    Absent,
    /// A put of this is not answered: it is there or not.
    Putting(Value),
    /// This value.
    This(Value),
    /// After a crash: something of the history, or nothing.
    Any,
}

/// Permitted results of a get, as of its beginning.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    pub(crate) now: Now,
    /// Values that may come back after a crash.
    history: Vec<Value>,
    doubts: u64,
}

/// All keys of all namespaces.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    keys: BTreeMap<(u16, u64), State>,
    /// Times that all keys became doubtful.
    doubts: u64,
}

impl Model {
    fn at(&mut self, space: u16, key: u64) -> &mut State {
        self.keys.entry((space, key)).or_default()
    }

    /// A put was taken, so the key was not there. `whole`: the store knew everything.
    pub(crate) fn putting(&mut self, space: u16, key: u64, value: Value, whole: bool) {
        let doubts = self.doubts;
        let state = self.at(space, key);
        state.began = doubts;
        assert!(!whole || state.must.is_none(), "key {key} was there: {state:?}");
        // The block was there and can be put again: it was evicted.
        state.prior = if let Now::This(_) = state.now { Now::Absent } else { state.now };
        state.now = Now::Putting(value);
        state.history.push(value);
        state.must = None;
    }

    /// A put was answered OK.
    pub(crate) fn put(&mut self, space: u16, key: u64, value: Value, durable: bool) {
        let doubts = self.doubts;
        let state = self.at(space, key);
        if state.now == Now::Putting(value) {
            state.now = Now::This(value);
            // It is there from its record on, and may be evicted before the answer.
            state.doubtful = state.began != doubts;
            state.must = (durable && !state.doubtful).then_some(value);
        }
    }

    /// A put was given up, or failed.
    pub(crate) fn abandoned(&mut self, space: u16, key: u64, value: Value) {
        let state = self.at(space, key);
        if state.now == Now::Putting(value) {
            state.now = state.prior;
        }
    }

    /// A put was declined after it was taken: the block may be there.
    pub(crate) fn declined(&mut self, space: u16, key: u64, value: Value) {
        let state = self.at(space, key);
        if state.now == Now::Putting(value) {
            state.now = Now::Any;
        }
    }

    /// A drop was given: from now on the key is not found.
    pub(crate) fn drop_begins(&mut self, space: u16, key: u64) -> Vec<Value> {
        let state = self.at(space, key);
        state.now = Now::Nothing;
        state.must = None;
        state.history.clone()
    }

    /// A durable drop was answered: what was there before it never comes back.
    pub(crate) fn dropped(&mut self, space: u16, key: u64, before: &[Value]) {
        self.at(space, key).history.retain(|value| !before.contains(value));
    }

    /// A namespace was cleared and that was answered.
    pub(crate) fn cleared(&mut self, space: u16) {
        self.keys.retain(|(it, _), _| *it != space);
    }

    /// Clearing has begun: nothing must be found any more.
    pub(crate) fn clearing(&mut self, space: u16) {
        for (_, state) in self.keys.iter_mut().filter(|((it, _), _)| *it == space) {
            state.must = None;
        }
    }

    /// Everything written so far is on stable media.
    pub(crate) fn settled(&mut self) {
        for state in self.keys.values_mut() {
            match state.now {
                Now::This(value) => {
                    state.history = vec![value];
                    state.must = (!state.doubtful).then_some(value);
                }
                Now::Nothing => {
                    state.history.clear();
                    state.must = None;
                }
                Now::Any | Now::Absent | Now::Putting(_) => {}
            }
        }
    }

    /// The process ended.
    pub(crate) fn crashed(&mut self) {
        for state in self.keys.values_mut() {
            state.now = Now::Any;
        }
    }

    /// Something was evicted, or the drive lied: nothing must be found.
    pub(crate) fn forget_must(&mut self) {
        self.doubts += 1;
        for state in self.keys.values_mut() {
            (state.must, state.doubtful) = (None, true);
        }
    }

    /// Permitted results of a get that begins now.
    pub(crate) fn expect(&mut self, space: u16, key: u64) -> Expected {
        let doubts = self.doubts;
        let State { now, history, .. } = self.at(space, key);
        Expected { now: *now, history: history.clone(), doubts }
    }

    /// A get that expected this was a miss. `whole`: the store has recovered all records.
    pub(crate) fn missed(&mut self, space: u16, key: u64, expected: Now, whole: bool) {
        let state = self.at(space, key);
        if whole && state.now == expected {
            assert!(state.must.is_none(), "key {key} is missing: {state:?}");
            if state.now == Now::Any {
                state.now = Now::Absent;
            }
        }
    }

    /// A get that expected this returned bytes with a wrong check.
    pub(crate) fn corrupt(&mut self, space: u16, key: u64, expected: Now) {
        let state = self.at(space, key);
        assert!(expected == Now::Any && state.must.is_none(), "key {key} is spoilt: {state:?}");
    }

    /// A get that expected this returned these bytes.
    pub(crate) fn got(&mut self, space: u16, key: u64, expected: &Expected, bytes: &[u8]) {
        // A block that was evicted while it was read is read nevertheless.
        let lasting = self.doubts == expected.doubts;
        let state = self.at(space, key);
        let is_it = |value: &&Value| value.length as usize == bytes.len() && value.bytes() == bytes;
        state.doubtful &= !lasting || state.now != expected.now;
        match expected.now {
            Now::Nothing | Now::Absent => panic!("key {key} came back: {state:?}"),
            Now::Putting(value) | Now::This(value) => {
                assert!(is_it(&&value), "key {key} has other bytes: {state:?}");
            }
            Now::Any => {
                // Short values may be equal: the one that must be there is it then.
                let must = state.must.as_ref().filter(is_it);
                let found = must.or_else(|| expected.history.iter().find(is_it));
                let Some(&value) = found else { panic!("key {key}: wrong bytes: {state:?}") };
                if state.now == Now::Any {
                    let old = state.must.is_some_and(|must| must != value);
                    assert!(!old, "key {key}: not the last: {state:?}");
                    state.now = Now::This(value);
                }
            }
        }
    }

    /// A put was answered with "present": the key has some value.
    pub(crate) fn present(&mut self, space: u16, key: u64) {
        let state = self.at(space, key);
        let gone = matches!(state.now, Now::Nothing | Now::Absent);
        assert!(!gone, "key {key} is reported as present: {state:?}");
        state.doubtful = false;
    }

    /// A durable put was answered: what was there at its begin is durable. `is_it`: whether a value
    /// has the check of the answer.
    pub(crate) fn confirmed(
        &mut self,
        (space, key): (u16, u64),
        there: Now,
        is_it: impl Fn(Value) -> bool,
    ) {
        let state = self.at(space, key);
        if state.now != there || state.doubtful {
            return;
        }
        match there {
            Now::This(value) => assert!(is_it(value), "key {key} has another check: {state:?}"),
            // Recovery has found it: what it is is known now.
            Now::Any => {
                let found = state.history.iter().copied().find(|value| is_it(*value));
                let value = found.unwrap_or_else(|| panic!("key {key} came back: {state:?}"));
                state.now = Now::This(value);
            }
            Now::Nothing | Now::Absent | Now::Putting(_) => return,
        }
        let Now::This(value) = state.now else { return };
        state.must = Some(value);
    }

    /// All keys ever used.
    pub(crate) fn keys(&self) -> Vec<(u16, u64)> {
        self.keys.keys().copied().collect()
    }

    /// The drive's faults may have spoilt anything.
    pub(crate) fn anything_goes(&mut self) {
        for state in self.keys.values_mut() {
            (state.now, state.must) = (Now::Any, None);
        }
    }
}
