//! What a query is answered with. Pure.

use std::net::IpAddr;

use simple_dns::rdata::{A, AAAA, RData};
use simple_dns::{CLASS, OPCODE, Packet, PacketFlag, QCLASS, QTYPE, RCODE, ResourceRecord, TYPE};

use super::directory::Directory;
use crate::config::NetworkConfig;

/// How long whoever asked may keep an answer, in seconds: an app's address stays, but apps are removed.
const TTL: u32 = 10;

/// What becomes of a query.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// This is sent back.
    Reply(Vec<u8>),
    /// The real name server is asked.
    Forward,
    /// Nothing is sent back: it is no query.
    Ignore,
}

/// What app `asker` gets for `query`. `search`: domains that its resolver may put behind a name.
pub(super) fn answer(
    query: &[u8],
    asker: u32,
    directory: &Directory,
    config: &NetworkConfig,
    (search, v6): (&[String], bool),
) -> Answer {
    let forward = || if directory.may_ask_outside(asker) { Answer::Forward } else { refuse(query) };
    let Ok(packet) = Packet::parse(query) else { return forward() };
    if packet.has_flags(PacketFlag::RESPONSE) {
        return Answer::Ignore;
    }
    let [question] = packet.questions.as_slice() else { return forward() };
    let internet = matches!(question.qclass, QCLASS::CLASS(CLASS::IN) | QCLASS::ANY);
    if packet.opcode() != OPCODE::StandardQuery || !internet {
        return forward();
    }
    let name = question.qname.to_string().to_ascii_lowercase();
    let Some(found) = find(&name, asker, directory, search) else { return forward() };
    let Ok(addresses) = config.addresses(found) else { return forward() };
    let mut reply = reply_to(&packet);
    let wanted = |ip: &IpAddr| match question.qtype {
        QTYPE::TYPE(TYPE::A) => ip.is_ipv4(),
        QTYPE::TYPE(TYPE::AAAA) => ip.is_ipv6() && v6,
        QTYPE::ANY => ip.is_ipv4() || v6,
        // It has no other records; that is no error.
        _ => false,
    };
    for ip in addresses.ips().iter().filter(|ip| wanted(ip)) {
        let data = match ip {
            IpAddr::V4(ip) => RData::A(A { address: (*ip).into() }),
            IpAddr::V6(ip) => RData::AAAA(AAAA { address: (*ip).into() }),
        };
        reply.answers.push(ResourceRecord::new(question.qname.clone(), CLASS::IN, TTL, data));
    }
    written(&reply)
}

fn find(name: &str, asker: u32, directory: &Directory, search: &[String]) -> Option<u32> {
    let bare = search
        .iter()
        .filter(|domain| !domain.is_empty())
        .find_map(|domain| name.strip_suffix(domain.as_str()).and_then(|rest| rest.strip_suffix('.')));
    [Some(name), bare].into_iter().flatten().find_map(|name| match name.split_once('.') {
        None => directory.find(asker, name, None),
        Some((name, network)) => directory.find(asker, name, Some(network)),
    })
}

/// For an app without leave for the outside, all other names do not exist. `Refused` would be more exact, but musl's resolver
/// passes such an answer over and waits 5 s for a better one, and glibc's does not go on with the next search domain.
fn refuse(query: &[u8]) -> Answer {
    let Ok(query) = Packet::parse(query) else { return Answer::Ignore };
    if query.has_flags(PacketFlag::RESPONSE) {
        return Answer::Ignore;
    }
    let mut reply = reply_to(&query);
    reply.remove_flags(PacketFlag::AUTHORITATIVE_ANSWER);
    *reply.rcode_mut() = if query.opcode() == OPCODE::StandardQuery { RCODE::NameError } else { RCODE::Refused };
    written(&reply)
}

fn reply_to<'a>(query: &Packet<'a>) -> Packet<'a> {
    let mut reply = Packet::new_reply(query.id());
    *reply.opcode_mut() = query.opcode();
    reply.set_flags(PacketFlag::AUTHORITATIVE_ANSWER | PacketFlag::RECURSION_AVAILABLE);
    if query.has_flags(PacketFlag::RECURSION_DESIRED) {
        reply.set_flags(PacketFlag::RECURSION_DESIRED);
    }
    reply.questions.clone_from(&query.questions);
    reply
}

fn written(reply: &Packet<'_>) -> Answer {
    reply.build_bytes_vec_compressed().map_or(Answer::Ignore, Answer::Reply)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use simple_dns::{Name, Question};

    use super::super::directory::Member;
    use super::*;

    fn directory() -> Directory {
        let directory = Directory::default();
        for (index, name, network, outgoing) in
            [(1, "web", "back", true), (2, "db", "back", false), (3, "x", "else", true)]
        {
            directory.insert(index, Member { name: name.to_owned(), join: vec![network.to_owned()], outgoing });
        }
        directory
    }

    fn ask(asker: u32, name: &str, kind: QTYPE, v6: bool) -> Answer {
        let mut query = Packet::new_query(7);
        query.set_flags(PacketFlag::RECURSION_DESIRED);
        query.questions.push(Question::new(Name::new(name).unwrap(), kind, QCLASS::CLASS(CLASS::IN), false));
        let query = query.build_bytes_vec().unwrap();
        let config = NetworkConfig::new("/run/x");
        answer(&query, asker, &directory(), &config, (&["corp.example".to_owned()], v6))
    }

    fn addresses(answer: &Answer) -> Vec<IpAddr> {
        let Answer::Reply(bytes) = answer else { panic!("{answer:?}") };
        let reply = Packet::parse(bytes).unwrap();
        assert!(reply.id() == 7 && reply.has_flags(PacketFlag::RESPONSE | PacketFlag::RECURSION_DESIRED));
        assert_eq!((reply.rcode(), reply.questions.len()), (RCODE::NoError, 1));
        let address = |record: &ResourceRecord<'_>| match &record.rdata {
            RData::A(a) => IpAddr::V4(a.address.into()),
            RData::AAAA(a) => IpAddr::V6(a.address.into()),
            other => panic!("{other:?}"),
        };
        reply.answers.iter().map(address).collect()
    }

    #[test]
    fn an_app_of_the_askers_network_is_answered() {
        let (a, aaaa): (QTYPE, QTYPE) = (TYPE::A.into(), TYPE::AAAA.into());
        let v4: Vec<IpAddr> = vec!["10.213.0.2".parse().unwrap()];
        let v6: Vec<IpAddr> = vec!["fd74:6f72:706f::2".parse().unwrap()];
        for name in ["db", "DB", "db.back", "db.corp.example", "db.back.corp.example"] {
            assert_eq!(addresses(&ask(1, name, a, true)), v4, "{name}");
            assert_eq!(addresses(&ask(1, name, aaaa, true)), v6, "{name}");
            assert_eq!(addresses(&ask(1, name, aaaa, false)), [] as [IpAddr; 0], "no error, but no address: {name}");
        }
        assert_eq!(addresses(&ask(1, "db", TYPE::MX.into(), true)), [] as [IpAddr; 0]);
        for name in ["x", "x.else", "db.else", "db.example", "nobody", "example.com", "db.back.back"] {
            assert_eq!(ask(1, name, a, true), Answer::Forward, "{name}");
        }
    }

    #[test]
    fn for_who_may_not_reach_the_outside_nothing_else_exists() {
        let Answer::Reply(bytes) = ask(2, "example.com", TYPE::A.into(), true) else { panic!() };
        assert_eq!(Packet::parse(&bytes).unwrap().rcode(), RCODE::NameError);
        assert_eq!(addresses(&ask(2, "web", TYPE::A.into(), true)).len(), 1);
    }

    /// What `dig` sends: EDNS with a cookie and a client subnet (RFC 7873, 7871), and an option that nobody knows.
    #[test]
    fn extensions_of_a_query_do_not_matter() {
        let question = b"\x02dB\x04bACk\0\0\x01\0\x01";
        let options = b"\0\x0a\0\x08cookie!!\0\x08\0\x05\0\x01\x08\0\x0a\xff\xee\0\x01x";
        for version in [0, 1] {
            let mut query = b"\0\x07\x01\x20\0\x01\0\0\0\0\0\x01".to_vec();
            query.extend_from_slice(question);
            query.extend_from_slice(&[0, 0, 41, 0x10, 0, 0, version, 0x80, 0, 0, options.len() as u8]);
            query.extend_from_slice(options);
            let config = NetworkConfig::new("/run/x");
            let answer = answer(&query, 1, &directory(), &config, (&[], true));
            assert_eq!(addresses(&answer), ["10.213.0.2".parse::<IpAddr>().unwrap()]);
            let Answer::Reply(reply) = answer else { panic!() };
            assert_eq!(&reply[12..12 + question.len()], question, "in the letters of the query");
        }
    }

    proptest! {
        #[test]
        fn nothing_that_an_app_sends_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600), asker in 0..4_u32) {
            let config = NetworkConfig::new("/run/x");
            answer(&bytes, asker, &directory(), &config, (&["corp.example".to_owned()], true));
        }
    }
}
