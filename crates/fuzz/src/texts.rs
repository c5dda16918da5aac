//! Texts that the kernel and the machine show: processes, open files, mounts, sockets, cgroups.

use torpor_network::names::ResolvConf;

/// Each parser reads the text: which one it is for shows in the file that it was read from, which anything might hold.
pub(crate) fn texts(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    torpor_engine::read_texts(&text);
    torpor_sandbox::read_texts(&text);
    torpor_worker::read_texts(&text);
    torpor_linux::meminfo::Memory::parse(&text);
    let conf = ResolvConf::parse(&text);
    let _ = [false, true].map(|names| conf.for_app(names));
}
