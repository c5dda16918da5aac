//! Whether this process lives, as packets see it: a mark on those of apps between two priorities of `prerouting`.

use std::io;

use crate::config::NetworkConfig;
use crate::expression::{Meta, Rule};
use crate::owned::{Chain, Hook, OwnedTable};

/// The bit of the mark. Only packets of our apps have it, from before our table's first chain to before routing.
pub(crate) const LIVE: u32 = 0x8000_0000;

/// Earlier than every chain of ours.
const FIRST: i32 = -310;
/// Later than every one that translates addresses, and before routing.
const LAST: i32 = -80;

/// Held as long as queries are to come to us.
#[derive(Debug)]
pub(crate) struct Live(OwnedTable);

impl Live {
    pub(crate) fn new(config: &NetworkConfig) -> io::Result<Self> {
        let mut table = OwnedTable::new(format!("{}_names", config.instance), None)?;
        let rule = || Rule::new().interface(Meta::InputName, true, &config.interface_prefix());
        let chain = |name, priority, rule| Chain { name, hook: Hook::Prerouting, priority, rules: vec![rule] };
        table.write(&[
            chain("live", FIRST, rule().set_mark_bits(LIVE)),
            chain("live_end", LAST, rule().clear_mark_bits(LIVE)),
        ])?;
        Ok(Self(table))
    }

    /// From now on queries go past us.
    pub(crate) fn end(mut self) -> io::Result<()> {
        self.0.remove()
    }
}
