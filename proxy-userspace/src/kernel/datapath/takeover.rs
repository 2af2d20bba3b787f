//! From an earlier generation of maps and programs to this one: the steps of a handover that
//! are about programs. Those about rows are in `handover`.

use super::{Datapath, Options, discard};
use crate::kernel::{
    KernelError, KernelMaps, attach,
    generations::Generations,
    handover::{self, HandedOver, Handover},
    object::Capacities,
    pins::Pins,
    xdp,
};

impl Datapath {
    /// Loads the programs once more, with new maps of these capacities, beside those in service.
    /// [`Datapath::inherit`] comes next.
    ///
    /// # Errors
    /// When the kernel refuses a map or a program.
    pub fn load_next(&self, capacities: Capacities) -> impl FnOnce() -> Result<Self, KernelError> + use<> {
        let options = Options { capacities, ..self.options.clone() };
        let unused = self.unused;
        move || Ok(Self { unused, ..Self::load_new(&Generations::below(&options.bpffs), options)? })
    }

    /// Copies the rows of the generation in service. Where that is unused, [`Datapath::replace`] comes next.
    ///
    /// # Errors
    /// When a row cannot be read or written; then this generation is gone again.
    pub fn inherit(&mut self) -> Result<(), KernelError> {
        let generations = Generations::below(&self.options.bpffs);
        let inherited = generations.current().and_then(|current| {
            let snapshot = current.map(|current| handover::copy_tables(&current, &self.pins)).transpose()?;
            if self.unused {
                return Ok(());
            }
            self.take_over_from(&generations, snapshot.unwrap_or_default())
        });
        inherited.inspect_err(|_| discard(&self.pins))
    }

    /// True until edges are followed for the first time, if there was no generation before. One that comes
    /// after it has no connections to take over.
    pub fn is_unused(&self) -> bool {
        self.unused
    }

    /// Puts this generation into service instead of an unused one. The caller attaches the socket hooks,
    /// then removes the other.
    ///
    /// # Errors
    /// When the pins cannot be changed.
    pub fn replace(&self) -> Result<(), KernelError> {
        Generations::below(&self.options.bpffs).switch(&self.pins)
    }

    /// Removes the pins, once another generation has taken its place.
    pub fn remove(self) {
        discard(&self.pins);
    }

    pub(super) fn take_over_from(
        &mut self,
        generations: &Generations,
        snapshot: handover::Snapshot,
    ) -> Result<(), KernelError> {
        let mut outgoing = generations.all()?;
        outgoing.retain(|pins| *pins != self.pins);
        if !outgoing.is_empty() {
            let names = |pins: &Pins| pins.generation().directory();
            let (from, to): (Vec<_>, _) = (outgoing.iter().map(names).collect(), names(&self.pins));
            tracing::info!(?from, to, "taking over from an earlier generation of maps and programs");
            self.handover = Some(Handover::new(generations.clone(), outgoing, snapshot));
        }
        Ok(())
    }

    /// Programs of an earlier generation are in service, and this one must not be attached before
    /// [`Datapath::begin_handover`].
    pub fn is_taking_over(&self) -> bool {
        self.handover.is_some()
    }

    /// Prepares both generations for being attached together. `maps` are this one's, and hold what
    /// is wanted. Next come [`Datapath::follow`] and the socket hooks.
    ///
    /// # Errors
    /// When a map cannot be read or written; then everything is as before.
    pub fn begin_handover(&mut self, maps: &mut KernelMaps) -> Result<(), KernelError> {
        let Some(mut handover) = self.handover.take() else { return Ok(()) };
        let begun = handover.begin(&self.pins, maps);
        self.handover = Some(handover);
        begun.inspect_err(|_| self.abort_handover())
    }

    /// Takes the connections over and removes the earlier generations. This one's programs are
    /// attached. XDP programs are still the earlier ones: [`Datapath::follow_xdp`] comes next.
    ///
    /// # Errors
    /// When an edge of the earlier programs has refused these: then everything is as before. Or
    /// when a map cannot be read or written: then the next agent goes on from there.
    pub fn finish_handover(&mut self, maps: &mut KernelMaps) -> Result<HandedOver, KernelError> {
        let Some(handover) = &self.handover else { return Ok(HandedOver::default()) };
        let served = |ifindex: &u32| {
            let links = |pins: &Pins| pins.links().unwrap_or_default();
            let mut pins = handover.outgoing().iter().flat_map(links);
            !self.is_tcx() || pins.any(|pin| attach::ifindex_of_pin(&pin) == Some(*ifindex))
        };
        if let Some(ifindex) = self.refused.iter().find(|ifindex| served(ifindex)) {
            let what = format!("interface {ifindex}");
            let source = "it has refused the programs; the log says why".into();
            self.abort_handover();
            return Err(KernelError::Handover { what, source });
        }
        let handed_over = handover.take_over(&self.pins, maps)?;
        for from in handover.outgoing() {
            xdp::adopt_pins(from, &self.pins)
                .map_err(|source| KernelError::System { what: "pin the XDP links anew".into(), source })?;
            attach::retire_filters(from, &self.attached);
        }
        handover.retire()?;
        self.handover = None;
        Ok(handed_over)
    }

    /// Ends this generation, if it has not taken over yet; the earlier ones go on.
    pub fn abort_handover(&mut self) {
        let Some(handover) = self.handover.take() else { return };
        attach::retire_filters(&self.pins, &self.attached);
        if let Err(error) = handover.undo() {
            tracing::warn!(%error, "the earlier programs go on with half of their source ports");
        }
        self.attached.clear();
        discard(&self.pins);
    }
}
