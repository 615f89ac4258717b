//! Source ports in such an order that flows go to the receiver's queues in turn, whatever else varies.
//!
//! The hash that chooses a queue is the XOR of the hashes of its parts. So all flows that have the same
//! low bits in the hash of all but the source port, here their class, need one order of ports, and
//! there is one for each class: as many as the receiver's table has entries, or fewer. A packet costs the
//! class, byte by byte, and one look at the order. An order has every port once, so there are as
//! many flows as without it.

use std::net::IpAddr;
use std::path::Path;

use serde_json::json;

use super::flows::Order;
use super::rss::{self, Part, Rss};
use super::template::{DPORT, Recipe, SOURCE, SPORT, TARGET};
use crate::exit::usage;
use crate::packets::job::Report;
use crate::packets::values::Ports;

/// The ports that are used where none are given: enough for each entry of a large table, and below those
/// that Linux gives to sockets (net.ipv4.ip_local_port_range), whose answers `search` and `--latency`
/// would take from this host.
pub(super) const PORTS: Ports = Ports { first: 16384, last: 32767 };

/// The most ports of all orders: 64 MiB.
const MOST: usize = 1 << 25;

/// The order of source ports for each class.
#[derive(Debug)]
pub(super) struct Turns {
    fixed: u16,
    varying: Vec<Varying>,
    /// For each class the digits of ports; nothing for one that no flow has.
    orders: Vec<Box<[u16]>>,
    /// How many flows each queue is due to get.
    due: Vec<(u32, f64)>,
    entries: usize,
}

/// A part of the hash that varies beside the source port.
#[derive(Debug)]
struct Varying {
    digit: usize,
    first: u64,
    /// What each value of a byte adds to the class; the last byte is the first here. The others do not
    /// vary.
    bytes: Vec<[u16; 256]>,
}

impl Varying {
    #[inline]
    fn class(&self, value: u64) -> u16 {
        let bytes = value.to_le_bytes();
        self.bytes.iter().zip(bytes).fold(0, |class, (of, byte)| class ^ of[usize::from(byte)])
    }
}

impl Turns {
    /// The orders for what a recipe makes.
    pub(super) fn new(path: &Path, rss: &Rss, recipe: &Recipe) -> anyhow::Result<Turns> {
        if recipe.order == Order::Random && recipe.limit.is_none() {
            return Err(usage(format!(
                "--rss {}, --order random: flows are drawn from all that there can be, in no order \
                 (expected --flows N, from which they are drawn then, or --order counting)",
                path.display()
            )));
        }
        let address = rss::width(recipe.source.first);
        rss.check(path, address)?;
        let entries = rss.table.len();
        let class = |hash: u32| (hash & (entries as u32 - 1)) as u16;
        let number = |address: IpAddr| match address {
            IpAddr::V4(four) => u128::from(four.to_bits()),
            IpAddr::V6(six) => six.to_bits(),
        };
        let (source, target) = (recipe.source, recipe.target);
        let ports = recipe.target_ports;
        let (mut fixed, mut varying) = (0, Vec::new());
        for (part, digit, width, first, count) in [
            (Part::Source, SOURCE, address, number(source.first), source.count),
            (Part::Target, TARGET, address, number(target.first), target.count),
            (Part::TargetPort, DPORT, 2, ports.first.into(), ports.len()),
        ] {
            // Of an IPv6 address the second half varies alone.
            let ends = [first as u64, first as u64 + (count - 1)];
            let changing = (64 - (ends[0] ^ ends[1]).leading_zeros()).div_ceil(8) as usize;
            let all = first.to_be_bytes();
            let (fix, vary) = all[16 - width..].split_at(width - changing);
            let fix = [fix, &vec![0; vary.len()]].concat();
            fixed ^= class(rss.hash(part, &fix, address));
            let of = |at: usize, byte: u8| {
                let mut bytes = vec![0; at + 1];
                bytes[0] = byte;
                class(rss.hash(part, &bytes, address))
            };
            let of = |at| std::array::from_fn(|byte| of(at, byte as u8));
            let bytes: Vec<_> = (0..changing).map(of).collect();
            if !bytes.is_empty() {
                varying.push(Varying { digit, first: first as u64, bytes });
            }
        }
        let (orders, due) = (Vec::new(), Vec::new());
        let mut turns = Turns { fixed, varying, orders, due, entries };
        let of = |port: u16| class(rss.hash(Part::SourcePort, &port.to_be_bytes(), address));
        let ports = recipe.source_ports;
        let ports: Vec<u16> = (ports.first..=ports.last).map(of).collect();
        turns.arrange(&rss.table, &ports, recipe)?;
        turns.warn(recipe.source_ports);
        Ok(turns)
    }

    /// Sets the orders, and how many flows go where. `ports` has what each port adds to the class.
    fn arrange(&mut self, table: &[u32], ports: &[u16], recipe: &Recipe) -> anyhow::Result<()> {
        let mut queues = table.to_vec();
        queues.sort_unstable();
        queues.dedup();
        let place = |queue| queues.binary_search(queue).expect("all are there");
        let places: Vec<usize> = table.iter().map(place).collect();
        let counts = recipe.counts();
        let rounds = recipe.limit.map(|limit| limit / counts[SPORT]);
        let rest = recipe.limit.map_or(0, |limit| (limit % counts[SPORT]) as usize);
        let (classes, last) = self.classes(&counts, rounds);
        let is_used = |class: usize| classes[class] > 0.0 || (rest > 0 && last == Some(class));
        let used = (0..table.len()).filter(|class| is_used(*class)).count();
        if used * ports.len() > MOST {
            let most = MOST / used;
            return Err(usage(format!(
                "--sport {}: {} ports are too many with --rss, whose table has {} entries (expected \
                 at most {most})",
                recipe.source_ports,
                ports.len(),
                table.len()
            )));
        }
        let mut due = vec![0.0; queues.len()];
        for class in 0..table.len() {
            if !is_used(class) {
                self.orders.push(Box::default());
                continue;
            }
            let place = |port: u16| places[class ^ usize::from(ports[usize::from(port)])];
            let order = in_turn(ports.len(), queues.len(), place);
            order.iter().for_each(|port| due[place(*port)] += classes[class]);
            let rest = if last == Some(class) { &order[..rest] } else { &[] };
            rest.iter().for_each(|port| due[place(*port)] += 1.0);
            self.orders.push(order);
        }
        self.due = queues.into_iter().zip(due).collect();
        Ok(())
    }

    /// How often each class is in the first rounds through the source ports, and which one is next; none
    /// where these are all rounds that there are.
    fn classes(&self, counts: &[u64], rounds: Option<u64>) -> (Vec<f64>, Option<usize>) {
        let part = |digit| self.varying.iter().find(|part| part.digit == digit);
        let (mut digits, mut left) = (Vec::new(), rounds.unwrap_or_default());
        for (digit, count) in
            counts.iter().copied().enumerate().filter(|(digit, _)| *digit != SPORT)
        {
            digits.push((part(digit), count, left % count));
            left /= count;
        }
        let mut all = vec![0.0; self.entries];
        all[usize::from(self.fixed)] = 1.0;
        if rounds.is_none() || left > 0 {
            for (part, count, _) in digits {
                all = with(&all, part, 0, count);
            }
            return (all, None);
        }
        // What digits above add, where they have the values of the round that is next.
        let class = |(part, _, at): &(Option<&Varying>, u64, u64)| {
            part.map_or(0, |part| part.class(part.first + at))
        };
        let mut above = digits.iter().fold(0, |above, digit| above ^ class(digit));
        let last = self.fixed ^ above;
        let mut first = vec![0.0; self.entries];
        for digit in digits {
            above ^= class(&digit);
            let (part, count, at) = digit;
            let below = with(&all, part, 0, at);
            for (class, many) in below.into_iter().enumerate() {
                first[class ^ usize::from(above)] += many;
            }
            all = with(&all, part, 0, count);
        }
        (first, Some(last.into()))
    }

    /// Replaces the digit of the source port, which says which one it is in turn, by that of the port.
    #[inline]
    pub(super) fn take(&self, digits: &mut [u64]) {
        let varying = self.varying.iter();
        let class = varying
            .fold(self.fixed, |class, part| class ^ part.class(part.first + digits[part.digit]));
        if let Some(port) = self.orders[usize::from(class)].get(digits[SPORT] as usize) {
            digits[SPORT] = u64::from(*port);
        }
    }

    fn warn(&self, ports: Ports) {
        let none: Vec<_> = self.due.iter().filter(|(_, flows)| *flows == 0.0).collect();
        if !none.is_empty() {
            let none: Vec<String> = none.iter().map(|(queue, _)| queue.to_string()).collect();
            let (all, none) = (self.due.len(), none.join(", "));
            tracing::warn!(
                "--rss: of the receiver's {all} queues, these get no flow: {none} (--sport {ports}, or \
                 --flows, has too few)"
            );
        }
    }

    /// Says how many flows each queue is due to get.
    pub(super) fn add_to(&self, report: &mut Report) {
        report.lines.push(format!("flows by the receiver's queue: {}", self.words()));
        let due = self.due.iter();
        let due = due.map(|(queue, flows)| json!({"queue": queue, "flows": *flows as u64}));
        report.fields["rss"] = json!({"by_queue": due.collect::<Vec<_>>()});
    }

    /// The same in words.
    pub(super) fn words(&self) -> String {
        /// More would not be read.
        const MOST: usize = 8;
        let run = |run: &[(u32, f64)]| match run {
            [first, .., last] => format!("queues {}-{}: {} each", first.0, last.0, first.1),
            [one] => format!("queue {}: {}", one.0, one.1),
            [] => String::new(),
        };
        let is_run = |one: &(u32, f64), next: &(u32, f64)| one.1 == next.1 && one.0 + 1 == next.0;
        let runs: Vec<String> = self.due.chunk_by(is_run).map(run).collect();
        if runs.len() <= MOST {
            return runs.join(", ");
        }
        let flows = || self.due.iter().map(|(_, flows)| *flows);
        let (least, most) = (flows().fold(f64::MAX, f64::min), flows().fold(0.0, f64::max));
        format!("{} queues: {least} to {most} each", self.due.len())
    }
}

/// Numbers below `ports` in an order in which their places change from one to the next, as far as there
/// are any of each place.
fn in_turn(ports: usize, places: usize, place: impl Fn(u16) -> usize) -> Box<[u16]> {
    let mut of = vec![Vec::new(); places];
    for port in 0..ports {
        // There are at most 2^16.
        of[place(port as u16)].push(port as u16);
    }
    let mut order = Vec::with_capacity(ports);
    for turn in 0..of.iter().map(Vec::len).max().unwrap_or_default() {
        order.extend(of.iter().filter_map(|ports| ports.get(turn)));
    }
    order.into()
}

/// How often each class is there, if it was so often before and a part has each value from `from` on,
/// so many of them.
fn with(before: &[f64], part: Option<&Varying>, from: u64, count: u64) -> Vec<f64> {
    let Some(part) = part else {
        return before.iter().map(|many| many * count as f64).collect();
    };
    let (mut at, mut left) = (part.first + from, count);
    let mut all = vec![0.0; before.len()];
    while left > 0 {
        // The largest block of values in which all of its bits take both values.
        let bits = at.trailing_zeros().min(left.ilog2());
        let xor = |of: &[f64], class: u16| -> Vec<f64> {
            (0..of.len()).map(|to| of[to ^ usize::from(class)]).collect()
        };
        let mut block = xor(before, part.class(at));
        for bit in 0..bits {
            let other = xor(&block, part.class(1 << bit));
            block.iter_mut().zip(other).for_each(|(many, other)| *many += other);
        }
        all.iter_mut().zip(block).for_each(|(all, many)| *all += many);
        // The last block of all may end at 2^64.
        (at, left) = (at.wrapping_add(1 << bits), left - (1 << bits));
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use super::super::rss::tests::{KEY, rss};
    use super::super::template::{self, Kind, Pattern, Template};
    use super::*;

    /// A packet's queue, bit by bit as Microsoft's "RSS hashing functions" has it, from what is in it.
    fn queue(packet: &[u8], table: &[u32], symmetric: bool) -> u32 {
        let net = (12..).step_by(4).find(|at| !matches!(packet[*at], 0x81 | 0x88)).expect("IP") + 2;
        let (addresses, ports) = match packet[net] >> 4 {
            4 => (&packet[net + 12..net + 20], &packet[net + 20..net + 24]),
            _ => (&packet[net + 8..net + 40], &packet[net + 40..net + 44]),
        };
        let halves = |bytes: &[u8]| {
            let (first, second) = bytes.split_at(bytes.len() / 2);
            let xor = || first.iter().zip(second).map(|(one, other)| one ^ other);
            if symmetric { xor().chain(xor()).collect() } else { bytes.to_vec() }
        };
        let mut key: Vec<bool> = KEY
            .split(':')
            .map(|byte| u8::from_str_radix(byte, 16).expect("a byte"))
            .flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1 == 1))
            .collect();
        let mut hash: u32 = 0;
        for byte in [halves(addresses), halves(ports)].concat() {
            for bit in (0..8).rev() {
                if byte >> bit & 1 == 1 {
                    hash ^= key[..32].iter().fold(0, |all, bit| all << 1 | u32::from(*bit));
                }
                key.remove(0);
            }
        }
        table[hash as usize % table.len()]
    }

    fn recipe(source: &str, target: &str) -> Recipe {
        Recipe {
            target_mac: "02:00:00:00:00:02-02:00:00:00:00:03".parse().unwrap(),
            tags: "7-8".parse().unwrap(),
            source_ports: "1000-1099".parse().unwrap(),
            target_ports: "53-55".parse().unwrap(),
            pattern: Pattern::Zeros,
            ..template::tests::recipe(source, target)
        }
    }

    fn made(table: &[u32], symmetric: bool, recipe: Recipe) -> (Recipe, Arc<Turns>) {
        let rss = rss(table, if symmetric { "on" } else { "off" });
        let turns = Turns::new(Path::new("x"), &rss, &recipe).expect("turns");
        let turns = Arc::new(turns);
        (Recipe { turns: Some(Arc::clone(&turns)), ..recipe }, turns)
    }

    /// So many packets.
    fn packets(recipe: &Recipe, many: usize) -> Vec<Vec<u8>> {
        let template = Template::new(recipe).expect("packets");
        let (mut flows, mut frame) = (template.flows(), template.bytes().to_vec());
        let packet = |number| {
            let len = template.stamp(&mut frame, number as u64, flows.next(), None);
            frame[..len].to_vec()
        };
        (0..many).map(packet).collect()
    }

    /// In each round through the source ports, the next queue is always one of those that had the fewest
    /// flows, among those that any port is left for.
    fn check_turns(queues: &[u32], round: usize) {
        for round in queues.chunks(round) {
            let mut left: BTreeMap<u32, usize> = BTreeMap::new();
            round.iter().for_each(|queue| *left.entry(*queue).or_default() += 1);
            let mut had: BTreeMap<u32, usize> = left.keys().map(|queue| (*queue, 0)).collect();
            for queue in round {
                let fewest = had.iter().filter(|(queue, _)| left[queue] > 0).map(|(_, had)| *had);
                assert_eq!(Some(had[queue]), fewest.min(), "{round:?}");
                *had.get_mut(queue).expect("it is there") += 1;
                *left.get_mut(queue).expect("it is there") -= 1;
            }
        }
    }

    fn tally(queues: &[u32], all: &[u32]) -> Vec<(u32, f64)> {
        let all: BTreeSet<u32> = all.iter().copied().collect();
        let of = |queue| queues.iter().filter(|other| **other == queue).count() as f64;
        all.into_iter().map(|queue| (queue, of(queue))).collect()
    }

    fn tables() -> Vec<Vec<u32>> {
        let each = |entries: u32, queues: u32| (0..entries).map(|at| at % queues).collect();
        // As `ethtool -X eth1 weight 6 2` and `start 3 equal 5` set them; and blocks, as drivers have them.
        let weights = (0..128).map(|at| u32::from(at >= 96)).collect();
        let blocks = (0..128).map(|at| at / 16).collect();
        vec![
            each(128, 8),
            each(128, 6),
            each(512, 63),
            weights,
            (0..64).map(|at| 3 + at % 5).collect(),
            blocks,
            vec![0; 128],
            each(2048, 40),
        ]
    }

    #[test]
    fn flows_go_to_queues_in_turn_and_are_the_same_ones() {
        let ends = [("10.0.0.250-10.0.1.5", "10.1.0.0/30"), ("fd00::fffe-fd00::1:5", "fd00::/126")];
        for (source, target) in ends {
            for (number, table) in tables().iter().enumerate() {
                let kind = [Kind::Udp, Kind::TcpSyn][number % 2];
                let symmetric = number % 3 == 2;
                let plain = Recipe { kind, ..recipe(source, target) };
                let (steered, turns) = made(table, symmetric, plain.clone());
                let all = Template::new(&plain).expect("packets").flows().count() as usize;
                let sent = packets(&steered, all);
                let queues: Vec<u32> =
                    sent.iter().map(|packet| queue(packet, table, symmetric)).collect();
                check_turns(&queues, 100);
                assert_eq!(turns.due, tally(&queues, table), "{source} {number}");
                let sent: BTreeSet<_> = sent.into_iter().collect();
                assert_eq!(sent, packets(&plain, all).into_iter().collect(), "{source} {number}");
            }
        }
    }

    #[test]
    fn the_first_flows_are_the_even_ones() {
        let plain = recipe("10.0.0.250-10.0.1.5", "10.1.0.0/30");
        for (table, limit) in tables().iter().zip([1, 8, 100, 163, 1000, 2400, 14_399, 14_400]) {
            for order in [Order::Counting, Order::Random] {
                let plain = Recipe { limit: Some(limit), order, ..plain.clone() };
                let (steered, turns) = made(table, false, plain);
                // Enough for each that is drawn to come.
                let draws = if order == Order::Random { 15 } else { 1 };
                let sent: BTreeSet<_> =
                    packets(&steered, draws * limit as usize).into_iter().collect();
                assert_eq!(sent.len() as u64, limit, "{order:?}");
                let queues: Vec<u32> =
                    sent.iter().map(|packet| queue(packet, table, false)).collect();
                assert_eq!(turns.due, tally(&queues, table), "{limit} {order:?}");
            }
        }
        let (_, turns) =
            made(&tables()[0], false, Recipe { limit: Some(8), ..recipe("10.0.0.1", "10.0.0.2") });
        assert_eq!(turns.words(), "queues 0-7: 1 each");
    }

    #[test]
    fn flows_that_are_drawn_from_all_have_no_turns() {
        let drawn = Recipe { order: Order::Random, ..recipe("10.0.0.1", "10.1.0.0/31") };
        let refused = Turns::new(Path::new("x"), &rss(&[0, 1], "off"), &drawn).unwrap_err();
        assert!(refused.to_string().contains("expected --flows N"), "{refused}");
    }

    #[test]
    fn more_flows_than_can_be_counted_one_by_one_are_counted() {
        let all = Recipe {
            source_ports: PORTS,
            target_ports: "0-65535".parse().unwrap(),
            source_mac: "02:00:00:00:00:00-02:00:ff:ff:ff:ff".parse().unwrap(),
            tags: "0-4094,0-4094".parse().unwrap(),
            ..recipe("::ffff:ffff:0:0-::ffff:ffff:ffff:ffff", "0::/96")
        };
        let (_, turns) = made(&tables()[0], false, all.clone());
        let flows = 2_f64.powi(14 + 16 + 32 + 1 + 32 + 32) * 4095.0 * 4095.0;
        assert_eq!(turns.due, (0..8).map(|queue| (queue, flows / 8.0)).collect::<Vec<_>>());
        let (_, some) = made(&tables()[0], false, Recipe { limit: Some(u64::MAX), ..all });
        let sum: f64 = some.due.iter().map(|(_, flows)| flows).sum();
        assert_eq!(sum, u64::MAX as f64);
    }

    #[test]
    fn orders_that_need_too_much_memory_are_refused() {
        let table: Vec<u32> = (0..2048).map(|at| at % 40).collect();
        let many =
            Recipe { source_ports: "0-65535".parse().unwrap(), ..recipe("10.0.0.0/8", "10.0.0.1") };
        let rss = rss(&table, "off");
        let refused = Turns::new(Path::new("x"), &rss, &many).unwrap_err().to_string();
        assert!(
            refused.contains("--sport 0-65535") && refused.contains("at most 16384"),
            "{refused}"
        );
        assert!(Turns::new(Path::new("x"), &rss, &Recipe { source_ports: PORTS, ..many }).is_ok());
    }

    #[test]
    fn words_put_queues_together() {
        let words = |due: Vec<(u32, f64)>| {
            let (varying, orders) = (Vec::new(), Vec::new());
            Turns { fixed: 0, varying, orders, due, entries: 1 }.words()
        };
        assert_eq!(
            words(vec![(0, 2.0), (1, 2.0), (3, 2.0), (4, 1.0)]),
            "queues 0-1: 2 each, queue 3: 2, queue 4: 1"
        );
        let many = (0..40).map(|queue| (queue, f64::from(3 + queue % 2))).collect();
        assert_eq!(words(many), "40 queues: 3 to 4 each");
    }
}
