//! Options of sockets: those of the list in `torpor_linux`, with the capability that a program needs for each.

use torpor_image::tree::SocketOption;
use torpor_linux::socket::{Needs, Plain, REQUEST_BYTES};

use super::{Vetting, capability};

const SOCKET: i32 = 1;
const SEND_BUFFER: i32 = 7;
const RECEIVE_BUFFER: i32 = 8;
const PRIORITY: i32 = 12;
/// The highest priority that needs no capability.
const HIGHEST_PRIORITY: u32 = 6;
const FILTER: i32 = 26;
/// `BPF_MAXINSNS` instructions of 8 bytes.
const FILTER_BYTES: usize = 4096 * 8;
const MULTICAST_JOIN: i32 = 42;
const IP: i32 = 0;
const IPV6: i32 = 41;
const TCP: i32 = 6;
const CONGESTION: i32 = 13;
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
        if (level, name) == (SOCKET, FILTER) {
            let whole = value.len().is_multiple_of(8) && value.len() <= FILTER_BYTES;
            self.sure(whole, || "a filter of a socket".to_owned());
            return true;
        }
        if name == MULTICAST_JOIN && (level == IP || level == IPV6) {
            self.sure(value.len() == REQUEST_BYTES, || "a multicast group".to_owned());
            return true;
        }
        let Some(known) = Plain::find(level, name).filter(|_| value.len() <= VALUE_BYTES) else {
            self.refuse(format!("option {level} {name} of a socket"));
            return true;
        };
        let machine = &self.bounds.machine;
        match (level, name) {
            (SOCKET, SEND_BUFFER | RECEIVE_BUFFER) => {
                let most = if name == SEND_BUFFER { machine.send_buffer_bytes } else { machine.receive_buffer_bytes };
                if word(value).is_none_or(|bytes| bytes > most) {
                    *value = most.to_ne_bytes().to_vec();
                    self.lowered(format!("a buffer of a socket has {most} bytes"));
                }
                return true;
            }
            (SOCKET, PRIORITY) if word(value).is_some_and(|priority| priority <= HIGHEST_PRIORITY) => return true,
            (TCP, CONGESTION) => {
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
