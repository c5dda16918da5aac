//! Named networks for tests: a name server outside, the machine's `resolv.conf`, apps with names.

use std::net::UdpSocket;
use std::sync::Arc;

use nix::sched::{CloneFlags, unshare};
use simple_dns::rdata::{A, RData};
use simple_dns::{CLASS, Packet, PacketFlag, QTYPE, RCODE, ResourceRecord, TYPE};
use torpor_network::names::{Directory, Member};
use torpor_network::{AppNetwork, Network};

use super::{Machine, Space, app, sh};

/// The machine's resolver has this file, in the test's own mount namespace.
pub fn resolv_conf(machine: &Machine, text: &str) {
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let file = machine.run_dir.path().join("resolv.conf");
    std::fs::write(&file, text).unwrap();
    sh("mount --make-rprivate /");
    sh(&format!("mount --bind {} $(readlink -f /etc/resolv.conf)", file.display()));
}

/// A name server that knows `example.test` only.
pub fn name_server(space: &Space, address: &str) {
    let socket = space.udp(&format!("{address}:53"));
    socket.set_read_timeout(None).unwrap();
    std::thread::spawn(move || serve(&socket));
}

pub fn serve(socket: &UdpSocket) {
    let mut buffer = [0; 4096];
    loop {
        let (length, from) = socket.recv_from(&mut buffer).unwrap();
        let query = Packet::parse(&buffer[..length]).unwrap();
        let question = query.questions[0].clone();
        let mut reply = Packet::new_reply(query.id());
        reply.set_flags(PacketFlag::RECURSION_AVAILABLE | PacketFlag::RECURSION_DESIRED);
        if question.qname.to_string() != "example.test" {
            *reply.rcode_mut() = RCODE::NameError;
        } else if [QTYPE::from(TYPE::A), QTYPE::ANY].contains(&question.qtype) {
            let data = RData::A(A { address: u32::from_be_bytes([203, 0, 113, 7]) });
            reply.answers.push(ResourceRecord::new(question.qname.clone(), CLASS::IN, 60, data));
        }
        reply.questions.push(question);
        socket.send_to(&reply.build_bytes_vec().unwrap(), from).unwrap();
    }
}

pub fn joins(names: &[&str]) -> AppNetwork {
    AppNetwork { join: names.iter().map(|name| (*name).to_owned()).collect(), ..AppNetwork::default() }
}

pub async fn named(network: &Network, directory: &Directory, index: u32, name: &str, wants: &AppNetwork) -> Arc<Space> {
    let member = Member { name: name.to_owned(), join: wants.join.clone(), outgoing: wants.outgoing };
    directory.insert(index, member);
    Arc::new(app(network, index, wants).await)
}
