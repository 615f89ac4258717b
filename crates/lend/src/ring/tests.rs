use super::*;

const LAYOUT: Layout = Layout { channels: 2, slots: 32 };

fn out() -> Arc<Memory> {
    Arc::new(Memory::ours(c"test-out", LAYOUT.out_len()).unwrap().0)
}

/// The memory back, as the lender has it and as the borrower has it.
fn back() -> (Arc<Memory>, Arc<Memory>) {
    let fd = Memory::for_other(c"test-back", LAYOUT.back_len()).unwrap();
    let theirs = Memory::of_other(&fd, LAYOUT.back_len(), true).unwrap();
    let ours = Memory::theirs(&fd, LAYOUT.back_len()).unwrap();
    (Arc::new(ours), Arc::new(theirs))
}

#[test]
fn loans_arrive_in_order_once_they_are_published_also_across_the_wrap() {
    for start in [0, u32::MAX - 40] {
        let memory = out();
        let mut others = LoanWriter::new(&memory, LAYOUT, 0);
        let mut writer = LoanWriter::new(&memory, LAYOUT, 1);
        let mut reader = LoanReader::new(&memory, LAYOUT, 1);
        (writer.next, writer.published, reader.next) = (start, start, start);
        writer.ring.producer().store(start, Ordering::Relaxed);
        let mut sent = 0_u32;
        for batch in (1..=32).chain([32, 1, 31]) {
            for at in 0..batch {
                writer.push(Loan {
                    addr: u64::from(sent + at) << 32,
                    token: sent + at,
                    ..Loan::default()
                });
            }
            others.push(Loan::default());
            others.publish();
            assert_eq!(reader.ready(), Ok(0), "not published");
            assert!(writer.publish() && !writer.publish());
            assert_eq!(reader.ready(), Ok(batch));
            for at in 0..batch {
                let loan = reader.peek(0);
                reader.advance(1);
                assert_eq!((loan.addr, loan.token), (u64::from(sent + at) << 32, sent + at));
            }
            sent += batch;
        }
        assert!(!reader.is_closed());
        writer.count_dropped(3);
        writer.count_dropped(4);
        assert_eq!(why(&memory), Ending::Unsaid);
        writer.close(Ending::Evicted);
        assert!(reader.is_closed());
        // The first reason stands.
        writer.close(Ending::Lender);
        assert_eq!(why(&memory), Ending::Evicted);
        assert_eq!(reader.dropped(), 7);
    }
}

#[test]
fn tokens_come_back_in_order_also_across_the_wrap() {
    for start in [0, u32::MAX - 40] {
        let (ours, theirs) = back();
        let mut writer = TokenWriter::new(&theirs, LAYOUT, 1);
        let mut reader = TokenReader::new(&ours, LAYOUT, 1);
        (writer.next, reader.next) = (start, start);
        writer.publish();
        let mut sent = 0_u32;
        for batch in (0..=32).chain([32, 1, 31]) {
            (0..batch).for_each(|at| writer.push(sent + at));
            writer.publish();
            let taken: Vec<u32> = reader.take().unwrap().collect();
            assert_eq!(taken, (sent..sent + batch).collect::<Vec<_>>());
            sent += batch;
        }
    }
}

#[test]
fn an_index_that_jumps_or_goes_back_is_seen_and_nothing_is_taken() {
    let (ours, theirs) = back();
    let mut writer = TokenWriter::new(&theirs, LAYOUT, 0);
    let mut reader = TokenReader::new(&ours, LAYOUT, 0);
    for _ in 0..5 {
        writer.push(1);
    }
    writer.publish();
    assert_eq!(reader.take().map(Iterator::count), Ok(5));
    for to in [4, 5 + 33, u32::MAX, 5 + (1 << 31)] {
        theirs.word(LAYOUT.back_channel(0)).store(to, Ordering::Relaxed);
        let taken = reader.take().map(Iterator::count);
        assert_eq!(taken, Err(OutOfStep { from: 5, to }));
    }
    theirs.word(LAYOUT.back_channel(0)).store(5 + 32, Ordering::Relaxed);
    let taken = reader.take().map(Iterator::count);
    assert_eq!(taken, Ok(32), "as many as slots is what an honest one may have");
}
