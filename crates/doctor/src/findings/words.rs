//! How findings put things.

use crate::Said;

/// A number of things: `1 queue`, `2 queues`.
pub(super) fn count(number: usize, thing: &str) -> String {
    match number {
        1 => format!("1 {thing}"),
        _ => format!("{number} {thing}s"),
    }
}

/// Names in a row, the first of them where they are many.
pub(super) fn list<T: ToString>(names: impl IntoIterator<Item = T>) -> String {
    const MOST: usize = 8;
    let mut names: Vec<String> = names.into_iter().map(|name| name.to_string()).collect();
    let more = names.len().saturating_sub(MOST);
    names.truncate(MOST);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    names.join(", ") + &more
}

/// The trial that writes one and the other into a file.
pub(super) fn trial_of_file(path: &str, a: &str, b: &str) -> String {
    // A comma would end an arm.
    match a.contains(',') || b.contains(',') || a.is_empty() || b.is_empty() {
        true => trial_of_commands(&format!("echo {a} > {path}"), &format!("echo {b} > {path}")),
        false => format!("cachelane trial file:{path} --arms {a},{b}"),
    }
}

/// The trial that runs one and the other command.
pub(super) fn trial_of_commands(a: &str, b: &str) -> String {
    format!("cachelane trial --a '{a}' --b '{b}'")
}

/// The trial of what takes effect at once on all that flows, which makes it shorter.
pub(super) fn at_once(trial: &str) -> String {
    format!("{trial} --reach at-once")
}

/// The trial of a setting.
pub(super) fn trial_of_sysctl(name: &str, arms: &str) -> String {
    format!("cachelane trial sysctl:{name} --arms {arms}")
}

/// The command that shows that a finding is gone, for what has no knob to flip.
pub(super) fn again(id: &str) -> String {
    format!("cachelane doctor --only {id}")
}

/// The CPUs of a device's queue that the kernel spreads packets over, as its file takes them.
pub(super) fn rps_file(device: &str, queue: u32) -> String {
    format!("/sys/class/net/{device}/queues/rx-{queue}/rps_cpus")
}

/// What a mechanism said, of what.
pub(super) fn quote(of: &str, said: &Said) -> String {
    format!("{of}: {} [{}]", said.text, said.id)
}

/// What the mechanism says helps, or this.
pub(super) fn remedy(said: &Said, otherwise: &str) -> String {
    said.remedy.clone().unwrap_or_else(|| otherwise.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_with_commas_become_commands() {
        assert_eq!(trial_of_file("/f", "0", "3"), "cachelane trial file:/f --arms 0,3");
        let expected = "cachelane trial --a 'echo 0 > /f' --b 'echo 1,00000000 > /f'";
        assert_eq!(trial_of_file("/f", "0", "1,00000000"), expected);
    }

    #[test]
    fn long_rows_are_cut() {
        assert_eq!(list(1..4), "1, 2, 3");
        assert_eq!(list(0..1000), "0, 1, 2, 3, 4, 5, 6, 7 and 992 more");
    }
}
