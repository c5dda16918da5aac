//! Telling of connections that apps may not begin because they have as many as one app may have.
//!
//! The kernel drops the packets and counts them for each app ([`torpor_network::Network::refused`]). The counts are read every
//! [`LOOK`], for nothing tells of a change; what has grown becomes an event, one for each app in [`PAUSE`]. It ends with the worker: its
//! successor begins with the counts that it finds.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use torpor_api::error::chain;
use torpor_api::events::CONNECTIONS_REFUSED;

use crate::shared::Shared;

/// Between two looks at the counts.
const LOOK: Duration = Duration::from_secs(5);
/// Between two events of one app.
const PAUSE: Duration = Duration::from_secs(60);

/// What was told of each app: its count then, and when.
#[derive(Debug, Default)]
struct Told(HashMap<u32, (u64, Option<Instant>)>);

impl Told {
    /// By how much each count has grown that is to be told of now.
    fn grown(&mut self, counts: &HashMap<u32, u64>, now: Instant) -> Vec<(u32, u64)> {
        self.0.retain(|index, _| counts.contains_key(index));
        let mut grown = Vec::new();
        for (&index, &count) in counts {
            let (before, at) = self.0.entry(index).or_default();
            // Another app with this index, or the table was written anew.
            *before = (*before).min(count);
            if count > *before && at.is_none_or(|at| now.duration_since(at) >= PAUSE) {
                grown.push((index, count - *before));
                (*before, *at) = (count, Some(now));
            }
        }
        grown
    }
}

/// Tells of refused connections as long as the worker lives.
pub(crate) async fn manage(shared: Arc<Shared>) {
    let Some(limit) = shared.network.connection_limit() else { return };
    let mut told = Told::default();
    if let Ok(counts) = shared.network.refused() {
        told.0 = counts.into_iter().map(|(index, count)| (index, (count, None))).collect();
    }
    loop {
        tokio::time::sleep(LOOK).await;
        let counts = match shared.network.refused() {
            Ok(counts) => counts,
            // A table that is gone is written anew by who looks after it.
            Err(error) => {
                tracing::debug!(error = %chain(&error), "reading the counts of refused connections");
                continue;
            }
        };
        for (index, packets) in told.grown(&counts, Instant::now()) {
            let Some(name) = shared.directory.name(index) else { continue };
            let fields = BTreeMap::from([("packets".to_owned(), packets.into()), ("limit".to_owned(), limit.into())]);
            shared.services.events.emit(&name, CONNECTIONS_REFUSED, words(packets, limit), fields);
        }
    }
}

/// What `torpor explain` says of an app that could not begin connections since it was attached to the network.
pub(crate) fn told(shared: &Shared, index: u32) -> Option<String> {
    let limit = shared.network.connection_limit()?;
    let packets = shared.refused_packets(index).filter(|packets| *packets > 0)?;
    Some(words(packets, limit))
}

fn words(packets: u64, limit: u32) -> String {
    let packets = if packets == 1 { "1 packet".to_owned() } else { format!("{packets} packets") };
    format!(
        "{packets} of new connections dropped: it had {limit}, as many as the machine tracks for one app \
         (`[network] connections_per_app`); one that is closed or unanswered counts until the kernel forgets it"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_told_of_once_in_a_pause() {
        let (mut told, start) = (Told::default(), Instant::now());
        let mut look = |count: u64, after: Duration| told.grown(&HashMap::from([(7, count)]), start + after);
        assert_eq!(look(0, Duration::ZERO), []);
        assert_eq!(look(3, LOOK), [(7, 3)]);
        assert_eq!(look(3, LOOK * 2), []);
        assert_eq!(look(9, LOOK * 3), [], "too soon");
        assert_eq!(look(10, LOOK + PAUSE), [(7, 7)], "all of it later");
        assert_eq!(look(4, LOOK + PAUSE * 2), [], "another app");
        assert_eq!(look(6, LOOK * 2 + PAUSE * 2), [(7, 2)]);
        assert_eq!(told.grown(&HashMap::new(), start), []);
        assert!(told.0.is_empty());
    }
}
