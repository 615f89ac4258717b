//! The loan table against a model that is too slow and too simple to be wrong.

use std::collections::{BTreeMap, BTreeSet};

use cachelane_frames::{
    Accounting, AreaOptions, FrameArea, FramePool, LoanTable, PoolOptions, TokenRefused,
};
use proptest::prelude::*;

const FRAMES: u32 = 24;

fn pool() -> FramePool {
    let area = FrameArea::new(
        &AreaOptions::default()
            .frames(FRAMES)
            .frame_size(64)
            .huge_pages(cachelane_frames::HugePages::Never),
    );
    let area = area.expect("24 frames");
    FramePool::new(area, &PoolOptions::default().fatal(true)).expect("a pool")
}

#[derive(Clone, Debug)]
enum Step {
    Join(u8, u32),
    Lend(u8),
    Share(u64),
    /// The loan at this place of all that there are, given back by whoever has it.
    Return(usize),
    /// Any token, by any borrower.
    Forge(u32, u8),
    /// A token that was returned before, by whoever had it.
    Again(usize),
    Release(u8),
    Switch,
}

fn step() -> impl Strategy<Value = Step> {
    let borrower = 0_u8..4;
    prop_oneof![
        1 => (borrower.clone(), 1_u32..10).prop_map(|(who, quota)| Step::Join(who, quota)),
        6 => borrower.clone().prop_map(Step::Lend),
        2 => (0_u64..16).prop_map(Step::Share),
        6 => any::<usize>().prop_map(Step::Return),
        2 => (prop_oneof![0..FRAMES * 2, any::<u32>()], borrower.clone())
            .prop_map(|(token, who)| Step::Forge(token, who)),
        2 => any::<usize>().prop_map(Step::Again),
        1 => borrower.prop_map(Step::Release),
        1 => Just(Step::Switch),
    ]
}

/// Who has what: by borrower, its quota and its tokens with the number of the lending.
#[derive(Default)]
struct Model {
    borrowers: BTreeMap<u8, (u32, BTreeMap<u32, u32>)>,
    /// By lending, who has it.
    lendings: BTreeMap<u32, BTreeSet<u8>>,
    last: u32,
    returned: Vec<(u32, u8)>,
}

impl Model {
    fn lend(&mut self, token: u32, to: &[u8]) {
        self.last += 1;
        for who in to {
            let (_, tokens) = self.borrowers.get_mut(who).expect("it joined");
            assert_eq!(tokens.insert(token, self.last), None, "two loans with one token");
        }
        self.lendings.insert(self.last, to.iter().copied().collect());
    }

    /// Whether the token is out to it, and then whether the frame is free after its return.
    fn give_back(&mut self, token: u32, from: u8) -> Option<bool> {
        let (_, tokens) = self.borrowers.get_mut(&from)?;
        let lending = tokens.remove(&token)?;
        self.returned.push((token, from));
        Some(self.ends(lending, from))
    }

    fn ends(&mut self, lending: u32, from: u8) -> bool {
        let who = self.lendings.get_mut(&lending).expect("it is out");
        assert!(who.remove(&from));
        if who.is_empty() {
            self.lendings.remove(&lending);
        }
        !self.lendings.contains_key(&lending)
    }

    fn room(&self, who: u8) -> u32 {
        self.borrowers.get(&who).map_or(0, |(quota, tokens)| quota - tokens.len() as u32)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_freed_twice_or_lost_whatever_comes_back(
        steps in prop::collection::vec(step(), 1..200),
        ledgers in any::<bool>(),
    ) {
        let pool = pool();
        let mut cache = pool.cache(0).expect("a cache");
        let accounting = if ledgers { Accounting::Ledgers } else { Accounting::Counters };
        let mut table = LoanTable::new(&pool, accounting);
        let mut model = Model::default();
        for step in steps {
            run(&step, &mut table, &mut model, &mut cache);
            prop_assert_eq!(table.on_loan() as usize, model.lendings.len());
            for who in 0..4 {
                prop_assert_eq!(table.room(who), model.room(who));
            }
        }
        drop(table);
        drop(cache);
        pool.close().expect("every frame came back");
    }
}

fn run(
    step: &Step,
    table: &mut LoanTable,
    model: &mut Model,
    cache: &mut cachelane_frames::LaneCache,
) {
    match *step {
        Step::Join(who, quota) => {
            if let std::collections::btree_map::Entry::Vacant(entry) = model.borrowers.entry(who) {
                entry.insert((quota, BTreeMap::new()));
                table.join(who, quota);
            }
        }
        Step::Lend(who) => {
            let Some(frame) = cache.get() else { return };
            match table.lend(frame, who) {
                Ok(token) => {
                    assert!(model.room(who) > 0);
                    model.lend(token, &[who]);
                }
                Err(frame) => {
                    assert_eq!(model.room(who), 0);
                    cache.put(frame);
                }
            }
        }
        Step::Share(to) => {
            let Some(frame) = cache.get() else { return };
            let who: Vec<u8> = (0..4).filter(|at| to & 1 << at != 0).collect();
            match table.share(frame, to) {
                Ok(token) => {
                    assert!(who.iter().all(|who| model.room(*who) > 0));
                    model.lend(token, &who);
                }
                Err(frame) => {
                    let ledgers = table.accounting() == Accounting::Ledgers;
                    let full = who.iter().any(|who| model.room(*who) == 0);
                    assert!(ledgers || who.is_empty() || full);
                    cache.put(frame);
                }
            }
        }
        Step::Return(at) => {
            let all: Vec<(u32, u8)> = model
                .borrowers
                .iter()
                .flat_map(|(who, (_, tokens))| tokens.keys().map(|token| (*token, *who)))
                .collect();
            if let Some(&(token, who)) = all.get(at % all.len().max(1)) {
                give_back(token, who, table, model, cache);
            }
        }
        Step::Forge(token, who) => give_back(token, who, table, model, cache),
        Step::Again(at) => {
            if let Some(&(token, who)) = model.returned.get(at % model.returned.len().max(1)) {
                give_back(token, who, table, model, cache);
            }
        }
        Step::Release(who) => {
            let (_, tokens) = model.borrowers.remove(&who).unwrap_or_default();
            let free = tokens.values().filter(|lending| model.ends(**lending, who)).count();
            let mut freed = Vec::new();
            let out = table.release(who, |frame| freed.push(frame));
            assert_eq!((out as usize, freed.len()), (tokens.len(), free));
            cache.put_bulk(&mut freed);
        }
        Step::Switch => {
            let other = match table.accounting() {
                Accounting::Counters => Accounting::Ledgers,
                Accounting::Ledgers => Accounting::Counters,
            };
            let before = table.accounting();
            let switched = table.set_accounting(other);
            match model.lendings.len() as u32 {
                0 => assert_eq!((switched, table.accounting()), (Ok(()), other)),
                out => assert_eq!((switched, table.accounting()), (Err(out), before)),
            }
        }
    }
}

fn give_back(
    token: u32,
    from: u8,
    table: &mut LoanTable,
    model: &mut Model,
    cache: &mut cachelane_frames::LaneCache,
) {
    match (table.give_back(token, from), model.give_back(token, from)) {
        (Ok(frame), Some(free)) => {
            assert_eq!(frame.is_some(), free);
            frame.into_iter().for_each(|frame| cache.put(frame));
        }
        (Err(_), None) => (),
        (table, model) => panic!("token {token:#x} of {from}: {table:?}, the model says {model:?}"),
    }
}

/// Tokens of several kinds at once: each is judged as it is alone, and what is counted adds up.
#[test]
fn many_at_a_time_are_many_single_ones() {
    for accounting in [Accounting::Counters, Accounting::Ledgers] {
        let pool = pool();
        let mut cache = pool.cache(0).expect("a cache");
        let mut table = LoanTable::new(&pool, accounting);
        table.join(0, 8);
        table.join(1, 8);
        let frames: Vec<_> = (0..6).map(|_| cache.get().expect("a frame")).collect();
        let mut tokens = Vec::new();
        table.lend_many(frames.into_iter(), 0, |token| tokens.push(token));
        assert_eq!((tokens.len(), table.out(0), table.room(0), table.on_loan()), (6, 6, 2, 6));
        let other = table.lend(cache.get().expect("a frame"), 1).expect("room");
        let mut expected = vec![TokenRefused::NotOut, TokenRefused::OutOfRange];
        let mut given = vec![tokens[0], tokens[0], u32::MAX, tokens[1], tokens[5]];
        let mut free = 3;
        if accounting == Accounting::Counters {
            given.push(other);
            expected.push(TokenRefused::NotItsOwn);
            // One that another has too is returned, and not free.
            let shared = table.share(cache.get().expect("a frame"), 0b11).expect("room");
            given.extend([shared, tokens[2]]);
            free += 1;
        }
        let (mut freed, mut refused) = (Vec::new(), Vec::new());
        let free_one = |frame| freed.push(frame);
        table.give_back_many(given.into_iter(), 0, free_one, |why| refused.push(why));
        assert_eq!((refused, freed.len()), (expected, free), "{accounting:?}");
        assert_eq!(table.out(0), 6 - free as u32);
        assert_eq!(table.on_loan(), table.out(0) + table.out(1), "no frame is with two now");
        cache.put_bulk(&mut freed);
        drop(table);
        drop(cache);
        pool.close().expect("nothing is lost");
    }
}

#[test]
#[should_panic(expected = "9 loans, and room for 8")]
fn more_than_a_quota_at_a_time_is_refused_as_a_whole() {
    let pool = pool();
    let mut cache = pool.cache(0).expect("a cache");
    let mut table = LoanTable::new(&pool, Accounting::Counters);
    table.join(0, 8);
    let frames: Vec<_> = (0..9).map(|_| cache.get().expect("a frame")).collect();
    table.lend_many(frames.into_iter(), 0, |_| ());
}

#[test]
fn a_refused_token_says_why() {
    for accounting in [Accounting::Counters, Accounting::Ledgers] {
        let pool = pool();
        let mut cache = pool.cache(0).expect("a cache");
        let mut table = LoanTable::new(&pool, accounting);
        table.join(0, 4);
        table.join(1, 4);
        let token = table.lend(cache.get().expect("a frame"), 0).expect("room");

        let others = match accounting {
            Accounting::Counters => TokenRefused::NotItsOwn,
            // A ledger knows its own lines only.
            Accounting::Ledgers => TokenRefused::NotOut,
        };
        assert_eq!(table.give_back(token, 1), Err(others), "{accounting:?}");
        assert_eq!(table.give_back(60_000, 0), Err(TokenRefused::OutOfRange), "{accounting:?}");
        cache.put(table.give_back(token, 0).expect("its own").expect("free"));
        assert_eq!(table.give_back(token, 0), Err(TokenRefused::NotOut), "{accounting:?}");
        assert_eq!(
            table.give_back(token, 9),
            Err(match accounting {
                Accounting::Counters => TokenRefused::NotOut,
                Accounting::Ledgers => TokenRefused::OutOfRange,
            })
        );
    }
}

#[test]
fn a_token_of_a_ledger_is_not_good_for_the_next_loan_of_its_line() {
    let pool = pool();
    let mut cache = pool.cache(0).expect("a cache");
    let mut table = LoanTable::new(&pool, Accounting::Ledgers);
    table.join(0, 1);
    let old = table.lend(cache.get().expect("a frame"), 0).expect("room");
    cache.put(table.give_back(old, 0).expect("its own").expect("free"));
    // As often as lines tell uses apart, and then once more round.
    for _ in 0..(1 << 15) - 1 {
        let new = table.lend(cache.get().expect("a frame"), 0).expect("room");
        assert_eq!(table.give_back(old, 0), Err(TokenRefused::NotOut));
        cache.put(table.give_back(new, 0).expect("its own").expect("free"));
    }
    let new = table.lend(cache.get().expect("a frame"), 0).expect("room");
    assert_eq!(new, old, "a token comes round after 32768 loans of one line");
}

/// Whoever may join and leave as often as it likes makes the lender look for what it had.
#[test]
fn one_loan_is_taken_back_without_a_look_at_all_frames() {
    const FRAMES: u32 = 1 << 20;
    let area = FrameArea::new(
        &AreaOptions::default()
            .frames(FRAMES)
            .frame_size(64)
            .huge_pages(cachelane_frames::HugePages::Never),
    );
    let area = area.expect("frames");
    let pool = FramePool::new(area, &PoolOptions::default()).expect("a pool");
    let mut cache = pool.cache(0).expect("a cache");
    let mut table = LoanTable::new(&pool, Accounting::Counters);
    // The last of all frames: what is looked through from the start ends there.
    let mut all: Vec<_> = std::iter::from_fn(|| cache.get()).collect();
    all.sort_by_key(|frame| pool.area().bytes(frame).as_ptr());
    let mut last = all.pop();
    cache.put_bulk(&mut all);

    let shortest = |mut work: Box<dyn FnMut() + '_>| {
        let times = (0..20).map(|_| {
            let start = std::time::Instant::now();
            work();
            start.elapsed()
        });
        times.min().expect("twenty")
    };
    let release = shortest(Box::new(|| {
        table.join(0, 1);
        table.lend(last.take().expect("the last"), 0).expect("room");
        assert_eq!(table.release(0, |frame| last = Some(frame)), 1);
    }));
    let holders = vec![1_u64; FRAMES as usize];
    let look = shortest(Box::new(|| {
        assert!(!std::hint::black_box(&holders).iter().any(|who| who & 2 != 0));
    }));
    assert!(release * 10 < look, "{release:?} for one loan, {look:?} for a look at all frames");
    cache.put(last.expect("it came back"));
    drop((table, cache));
    pool.close().expect("every frame came back");
}
