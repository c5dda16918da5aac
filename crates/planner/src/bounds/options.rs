//! Options of sockets: those of the list in `torpor_linux`, with the capability that a program needs for each.

use torpor_image::tree::SocketOption;
use torpor_linux::socket::{Needs, Plain, REQUEST_BYTES};
use torpor_linux::uapi::socket::{
    IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, MCAST_JOIN_GROUP, SO_ATTACH_FILTER, SO_PRIORITY, SO_RCVBUF, SO_SNDBUF,
    SOL_SOCKET, TCP_CONGESTION,
};

use super::{Vetting, capability};

/// The highest priority that needs no capability.
const HIGHEST_PRIORITY: u32 = 6;
/// `BPF_MAXINSNS` instructions of 8 bytes.
const FILTER_BYTES: usize = 4096 * 8;
const VALUE_BYTES: usize = 256;

fn word(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_ne_bytes)
}

impl Vetting<'_> {
    pub(super) fn options(&mut self, options: &mut Vec<SocketOption>) {
        let allowed = options.extract_if(.., |option| !self.option(option)).collect::<Vec<_>>();
        for SocketOption { level, name, .. } in allowed {
            self.lowered(format!("option {level} {name} of a socket is as of a new one"));
        }
    }

    /// Lowers an option; `false`: it is taken away.
    fn option(&mut self, option: &mut SocketOption) -> bool {
        let SocketOption { level, name, value } = option;
        let (level, name) = (*level, *name);
        if (level, name) == (SOL_SOCKET, SO_ATTACH_FILTER) {
            let whole = value.len().is_multiple_of(8) && value.len() <= FILTER_BYTES;
            self.sure(whole, || "a filter of a socket".to_owned());
            return true;
        }
        if name == MCAST_JOIN_GROUP && (level == IPPROTO_IP || level == IPPROTO_IPV6) {
            self.sure(value.len() == REQUEST_BYTES, || "a multicast group".to_owned());
            return true;
        }
        let Some(known) = Plain::find(level, name).filter(|_| value.len() <= VALUE_BYTES) else {
            self.refuse(format!("option {level} {name} of a socket"));
            return true;
        };
        let machine = &self.bounds.machine;
        match (level, name) {
            (SOL_SOCKET, SO_SNDBUF | SO_RCVBUF) => {
                let most = if name == SO_SNDBUF { machine.send_buffer_bytes } else { machine.receive_buffer_bytes };
                if word(value).is_none_or(|bytes| bytes > most) {
                    *value = most.to_ne_bytes().to_vec();
                    self.lowered(format!("a buffer of a socket has {most} bytes"));
                }
                return true;
            }
            (SOL_SOCKET, SO_PRIORITY) if word(value).is_some_and(|priority| priority <= HIGHEST_PRIORITY) => {
                return true;
            }
            (IPPROTO_TCP, TCP_CONGESTION) => {
                let chosen = value.split(|byte| *byte == 0).next().unwrap_or_default();
                if machine.congestion.iter().any(|name| name.as_bytes() == chosen) {
                    return true;
                }
            }
            _ => {}
        }
        match known.needs {
            Needs::Nothing => true,
            Needs::Network => self.bounds.has(capability::NET_ADMIN) || self.bounds.has(capability::NET_RAW),
            Needs::NetworkAdministration => self.bounds.has(capability::NET_ADMIN),
            Needs::Broadcast => self.bounds.has(capability::NET_BROADCAST),
            Needs::Machine => self.bounds.has_on_machine(capability::NET_ADMIN),
        }
    }
}
