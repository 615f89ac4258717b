//! Rules that stop what a bridge forwards, and programs that keep the CPUs busy meanwhile.

use std::time::Instant;

use crate::{Bridge, Host, Process, Result};

/// Programs that do nothing but take CPU time; they end when this is dropped.
#[derive(Debug)]
pub struct Spinners {
    _programs: Vec<Process>,
}

impl Spinners {
    /// Starts so many.
    ///
    /// # Errors
    /// As [`Command::spawn`](crate::Command::spawn).
    pub fn start(count: usize) -> Result<Self> {
        let here = Host::here()?;
        let spin = |_| here.command("sh").args(["-c", "while :; do :; done"]).spawn();
        Ok(Self { _programs: (0..count).map(spin).collect::<Result<_>>()? })
    }
}

/// A rule of a bridge's host that stops what is forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A chain of nft's bridge family that drops.
    NftBridge,
    /// A chain of nft's on the egress of the second port that drops.
    NftEgress,
    /// The sysctl that hands frames to iptables, which drops them already.
    BridgeCalls,
}

impl Rule {
    /// Every rule.
    pub const ALL: [Self; 3] = [Self::NftBridge, Self::NftEgress, Self::BridgeCalls];

    /// Its name in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::NftBridge => "nft bridge drop",
            Self::NftEgress => "nft egress drop",
            Self::BridgeCalls => "bridge-nf-call sysctl",
        }
    }

    /// Has everything ready for the rule, without any effect.
    ///
    /// # Errors
    /// [`ErrorKind::Missing`](crate::ErrorKind::Missing) without nft or iptables.
    pub fn prepare(self, bridge: &Bridge) -> Result<()> {
        match self {
            Self::BridgeCalls => {
                bridge.own.host.command("iptables").args(["-P", "FORWARD", "DROP"]).run().map(drop)
            }
            Self::NftBridge | Self::NftEgress => Ok(()),
        }
    }

    /// Puts it into effect, and returns when it was.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn set(self, bridge: &Bridge) -> Result<Instant> {
        let host = &bridge.own.host;
        let hook = match self {
            Self::BridgeCalls => {
                host.set_sysctl("net.bridge.bridge-nf-call-iptables", "1")?;
                return Ok(Instant::now());
            }
            Self::NftBridge => "hook forward".to_owned(),
            Self::NftEgress => format!("hook egress device {}", bridge.ports[1]),
        };
        let family = self.family();
        let chain = format!("chain c {{ type filter {hook} priority 0; policy drop; }}");
        host.command("nft").arg(format!("table {family} stop {{\n{chain}\n}}\n")).run()?;
        Ok(Instant::now())
    }

    /// Takes it away.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn clear(self, bridge: &Bridge) -> Result<()> {
        let host = &bridge.own.host;
        match self {
            Self::BridgeCalls => host.set_sysctl("net.bridge.bridge-nf-call-iptables", "0"),
            _ => {
                host.command("nft").args(["delete", "table", self.family(), "stop"]).run().map(drop)
            }
        }
    }

    fn family(self) -> &'static str {
        if self == Self::NftBridge { "bridge" } else { "netdev" }
    }
}
