//! What a machine lets programs without privileges have, from `/proc/sys`.

/// Bounds that the kernel sets programs without privileges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineLimits {
    /// Bytes of a pipe (`fs.pipe-max-size`).
    pub pipe_bytes: u32,
    /// Bytes that a program can set as a socket's send buffer, as `SO_SNDBUF` shows them.
    pub send_buffer_bytes: u32,
    /// The same of `SO_RCVBUF`.
    pub receive_buffer_bytes: u32,
    /// Bytes of a System V message queue (`kernel.msgmnb`).
    pub message_queue_bytes: u64,
    /// Algorithms for congestion control that every program may choose.
    pub congestion: Vec<String>,
}

/// Linux's own values, where a file is missing.
impl Default for MachineLimits {
    fn default() -> Self {
        Self {
            pipe_bytes: 1 << 20,
            send_buffer_bytes: 2 * 212_992,
            receive_buffer_bytes: 2 * 212_992,
            message_queue_bytes: 16_384,
            congestion: vec!["reno".to_owned(), "cubic".to_owned()],
        }
    }
}

impl MachineLimits {
    /// From the files under `/proc/sys`, which `text` reads by their names there. A file that is missing has Linux's default.
    pub fn of(text: impl Fn(&str) -> Option<String>) -> Self {
        let usual = Self::default();
        let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
        // The third number is what the kernel itself goes up to.
        let highest = |name: &str| text(name)?.split_ascii_whitespace().nth(2)?.parse::<u64>().ok();
        // A program sets half of what it reads.
        let buffer = |names: [&str; 2], tcp: &str, usual: u32| {
            let set = names.iter().filter_map(|name| number(name)).max().map(|bytes| bytes.saturating_mul(2));
            let most = [set, highest(tcp)].into_iter().flatten().max();
            most.map_or(usual, |bytes| u32::try_from(bytes).unwrap_or(i32::MAX as u32).min(i32::MAX as u32))
        };
        Self {
            pipe_bytes: number("fs/pipe-max-size").and_then(|bytes| bytes.try_into().ok()).unwrap_or(usual.pipe_bytes),
            send_buffer_bytes: buffer(
                ["net/core/wmem_max", "net/core/wmem_default"],
                "net/ipv4/tcp_wmem",
                usual.send_buffer_bytes,
            ),
            receive_buffer_bytes: buffer(
                ["net/core/rmem_max", "net/core/rmem_default"],
                "net/ipv4/tcp_rmem",
                usual.receive_buffer_bytes,
            ),
            message_queue_bytes: number("kernel/msgmnb").unwrap_or(usual.message_queue_bytes),
            congestion: text("net/ipv4/tcp_allowed_congestion_control")
                .map_or(usual.congestion, |names| names.split_ascii_whitespace().map(str::to_owned).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_limits() {
        let found = MachineLimits::of(|name| std::fs::read_to_string(format!("/proc/sys/{name}")).ok());
        assert!(found.pipe_bytes >= 4096 && found.send_buffer_bytes >= 4608 && found.receive_buffer_bytes >= 2304);
        assert!(found.congestion.iter().any(|name| name == "reno"), "{found:?}");
    }
}
