//! Steering by the lanes that the kernel shows.

use lab::testing::comes_true;
use rustix::process::Signal;

use crate::common::steer::{Exchange, Steered};
use crate::machine::{Offline, own_machine};

#[test]
#[ignore = "needs a machine of its own: scripts/kernels/test lanes"]
fn root_a_record_is_written_only_when_the_consumer_leaves_its_lane() {
    let test = "root_a_record_is_written_only_when_the_consumer_leaves_its_lane";
    let Some(_own) = own_machine(test) else { return };
    let steered = Steered::new("lanesteer");
    let running = steered.start(&[]);
    let (from, to) = (steered.link.a.v4.into(), steered.link.b.v4.into());
    let exchange = Exchange::start(&steered.link, from, to, 2);
    let counter = |name: &str| steered.counter(&running, name);
    assert_eq!(counter("targets"), 8);
    assert!(comes_true(|| counter("steered") > 200));
    for (cpu, same_lane) in [(3, true), (2, true), (5, false), (4, true), (7, false), (2, false)] {
        let written = counter("written");
        exchange.consume_on(cpu);
        exchange.goes_on(200);
        match same_lane {
            true => assert_eq!(counter("written"), written, "to CPU {cpu}, inside its lane"),
            false => assert!(counter("written") > written, "to CPU {cpu}, in another lane"),
        }
        let steered_then = counter("steered");
        assert!(comes_true(|| counter("steered") >= steered_then + 100), "to CPU {cpu}");
    }
    assert!(counter("same_lane") > 0);
    exchange.end();
    assert!(running.end(Signal::TERM).status.success());
}

#[test]
#[ignore = "needs a machine of its own: scripts/kernels/test lanes"]
fn root_a_cpu_that_goes_under_traffic_is_no_target_until_it_is_back() {
    let test = "root_a_cpu_that_goes_under_traffic_is_no_target_until_it_is_back";
    let Some(_own) = own_machine(test) else { return };
    let steered = Steered::new("lanegone");
    let running = steered.start(&[]);
    let (from, to) = (steered.link.a.v4.into(), steered.link.b.v4.into());
    let exchange = Exchange::start(&steered.link, from, to, 5);
    let counter = |name: &str| steered.counter(&running, name);
    for _ in 0..2 {
        exchange.consume_on(5);
        let before = counter("steered");
        assert!(comes_true(|| counter("steered") > before + 200));
        let offline = Offline::new(5);
        assert!(comes_true(|| counter("targets") == 7), "it is noticed");
        // The kernel has moved the consumer.
        exchange.goes_on(200);
        exchange.consume_on(6);
        let before = counter("steered");
        assert!(comes_true(|| counter("steered") > before + 200), "to another lane");
        drop(offline);
        assert!(comes_true(|| counter("targets") == 8), "it is back");
    }
    exchange.end();
    assert!(running.end(Signal::TERM).status.success());
}
