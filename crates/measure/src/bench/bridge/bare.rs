//! A program that redirects frames and does nothing else, between two devices of no bridge.

use std::os::fd::AsFd as _;

use anyhow::Context as _;
use bpf::tcx::{self, Hook};
use bpf::{Link, Program};
use lab::traffic::{FrameGenerator, FrameSink, Stations};
use lab::{End, Lab, LinkOptions};
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use xsk::Device;

use super::net::Flow;

include!(concat!(env!("OUT_DIR"), "/bare.skel.rs"));

/// Two hosts with one between them, which has the program.
pub(super) struct Bare {
    generator: FrameGenerator,
    sink: FrameSink,
    _link: Link,
}

impl Bare {
    pub(super) fn build(lab: &Lab) -> anyhow::Result<Bare> {
        let [from, between, to] = [lab.host("from")?, lab.host("between")?, lab.host("to")?];
        let near = lab.link(&between, &from, LinkOptions::default())?;
        let far = lab.link(&between, &to, LinkOptions::default())?;
        let End { host, device, .. } = &near.a;
        let attach = || -> anyhow::Result<Link> {
            let [from, to] = [Device::find(device)?, Device::find(&far.a.device)?];
            let program = load(to.index()).context("the bare program")?;
            Ok(tcx::attach(program.as_fd(), from.index(), Hook::Ingress)?)
        };
        let link = host.run(attach)??;
        let (from, to) = (Stations::from(near.b.mac), Stations::from(far.b.mac));
        let generator = FrameGenerator::new(host, device, from, to)?;
        Ok(Bare { generator, sink: FrameSink::attach(&far.b)?, _link: link })
    }

    /// Its frames, made on these CPUs.
    pub(super) fn flow(&self, cpus: Vec<Option<usize>>) -> Flow<'_> {
        Flow { generator: &self.generator, sink: &self.sink, cpus }
    }
}

fn load(to: u32) -> Result<Program, bpf::Error> {
    bpf::load(|storage| {
        let mut open = skel::BareSkelBuilder::default().open(storage)?;
        if let Some(fixed) = &mut open.maps.rodata_data {
            fixed.to = to;
        }
        let skel = open.load()?;
        Ok(Program::of(&skel.progs.bare_redirect)?)
    })
}
