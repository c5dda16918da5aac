//! Named networks for tests: a name server outside, the machine's `resolv.conf`, apps with names.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::sync::Arc;

use nix::sched::{CloneFlags, unshare};
use simple_dns::rdata::{A, RData};
use simple_dns::{CLASS, Name, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, ResourceRecord, TYPE};
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
        socket.send_to(&reply(&buffer[..length]), from).unwrap();
    }
}

/// What this name server replies to a query.
pub fn reply(query: &[u8]) -> Vec<u8> {
    let query = Packet::parse(query).unwrap();
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
    reply.build_bytes_vec().unwrap()
}

/// The bytes of a query for an address.
pub fn query(id: u16, name: &str) -> Vec<u8> {
    let mut query = Packet::new_query(id);
    query.questions.push(Question::new(Name::new(name).unwrap(), TYPE::A.into(), QCLASS::CLASS(CLASS::IN), false));
    query.build_bytes_vec().unwrap()
}

/// Sends a query by TCP.
pub fn send_by_tcp(stream: &mut TcpStream, query: &[u8]) {
    stream.write_all(&(query.len() as u16).to_be_bytes()).unwrap();
    stream.write_all(query).unwrap();
}

/// The reply to a query by TCP; nothing where the connection has been closed.
pub fn receive_by_tcp(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut length = [0; 2];
    stream.read_exact(&mut length).ok()?;
    let mut reply = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut reply).ok()?;
    Some(reply)
}

pub fn joins(names: &[&str]) -> AppNetwork {
    AppNetwork { join: names.iter().map(|name| (*name).to_owned()).collect(), ..AppNetwork::default() }
}

pub async fn named(network: &Network, directory: &Directory, index: u32, name: &str, wants: &AppNetwork) -> Arc<Space> {
    let member = Member { name: name.to_owned(), join: wants.join.clone(), outgoing: wants.outgoing };
    directory.insert(index, member);
    Arc::new(app(network, index, wants).await)
}
