//! Which images of sleeping apps are believed to lie in the page cache, and what leaves it when they are too many.
//!
//! Writing an image leaves it in the page cache, where waking finds it at once. A thousand images would keep there what
//! sleeping has given back, so only those of the apps that fell asleep last stay, up to a bound. Those of warm apps are the first
//! to go, and have but a quarter of it: their apps have slept for long. The others are read from the disk. It is a belief: the kernel may have dropped any of them by itself, and a wake is right either way.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use torpor_store::Image;

/// How deep an app sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Depth {
    Warm,
    Dozing,
}

/// When an app fell asleep, those of warm ones first; the last part tells those of one moment apart.
type Place = (Depth, SystemTime, u64);

/// The part of the bound that images of warm apps may have.
const WARM_PART: u64 = 4;

/// The pure part: who is in, how much that is, who has to go.
#[derive(Debug)]
struct Cached<I> {
    bound_bytes: u64,
    total_bytes: u64,
    /// Of the total, those of warm apps.
    warm_bytes: u64,
    entered: u64,
    /// Those that leave first, first.
    images: BTreeMap<Place, (I, u64)>,
}

impl<I> Cached<I> {
    const fn new(bound_bytes: u64) -> Self {
        Self { bound_bytes, total_bytes: 0, warm_bytes: 0, entered: 0, images: BTreeMap::new() }
    }

    /// Enters the image of an app that fell asleep at `since`. Gives its place, and what is to leave the cache now: those
    /// that sleep longest, or an image that is larger than the bound all by itself.
    fn enter(&mut self, depth: Depth, since: SystemTime, image: I, bytes: u64) -> (Place, Vec<I>) {
        self.entered += 1;
        let place = (depth, since, self.entered);
        let warm_bound_bytes = self.bound_bytes / WARM_PART;
        if bytes > if depth == Depth::Warm { warm_bound_bytes } else { self.bound_bytes } {
            return (place, vec![image]);
        }
        self.images.insert(place, (image, bytes));
        self.count(place, bytes.cast_signed());
        let mut leaving = Vec::new();
        while self.total_bytes > self.bound_bytes || self.warm_bytes > warm_bound_bytes {
            let Some((place, (image, bytes))) = self.images.pop_first() else { break };
            self.count(place, -bytes.cast_signed());
            leaving.push(image);
        }
        (place, leaving)
    }

    /// Counts an image in, or out.
    fn count(&mut self, (depth, ..): Place, bytes: i64) {
        self.total_bytes = self.total_bytes.saturating_add_signed(bytes);
        if depth == Depth::Warm {
            self.warm_bytes = self.warm_bytes.saturating_add_signed(bytes);
        }
    }

    /// Forgets an image; one that has left the cache already is not known any more.
    fn leave(&mut self, place: Place) {
        if let Some((_, bytes)) = self.images.remove(&place) {
            self.count(place, -bytes.cast_signed());
        }
    }
}

/// The images of all apps of a worker. The lock is held for moments, never over I/O.
#[derive(Clone, Debug)]
pub(crate) struct CachedImages(Arc<Mutex<Cached<Image>>>);

/// An app sleeps: its image counts until this is dropped.
#[derive(Debug)]
pub(crate) struct CachedImage {
    all: CachedImages,
    place: Place,
}

impl CachedImages {
    /// With at most so many bytes in the cache; 0 keeps none.
    pub(crate) fn new(bound_bytes: u64) -> Self {
        Self(Arc::new(Mutex::new(Cached::new(bound_bytes))))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Cached<Image>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters the image of an app that fell asleep at `since`; what is too much leaves the cache in the background.
    pub(crate) fn enter(&self, depth: Depth, since: SystemTime, image: &Image, bytes: u64) -> CachedImage {
        let (place, leaving) = self.lock().enter(depth, since, image.clone(), bytes);
        if !leaving.is_empty() {
            tokio::task::spawn_blocking(move || leaving.iter().for_each(uncache));
        }
        CachedImage { all: self.clone(), place }
    }
}

impl Drop for CachedImage {
    fn drop(&mut self) {
        self.all.lock().leave(self.place);
    }
}

/// Drops an image's pages from the page cache.
fn uncache(image: &Image) {
    let path = image.path().display();
    match image.uncache() {
        // Its app has woken meanwhile.
        Ok(false) => {}
        Ok(true) => tracing::debug!(image = %path, "dropped from the page cache"),
        Err(error) => tracing::warn!(image = %path, %error, "dropping an image from the page cache"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(second: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(second)
    }

    /// Enters image `name` of `bytes`; what leaves.
    fn enter(
        cached: &mut Cached<&'static str>,
        second: u64,
        name: &'static str,
        bytes: u64,
    ) -> (Place, Vec<&'static str>) {
        enter_at(cached, Depth::Dozing, second, name, bytes)
    }

    fn enter_at(
        cached: &mut Cached<&'static str>,
        depth: Depth,
        second: u64,
        name: &'static str,
        bytes: u64,
    ) -> (Place, Vec<&'static str>) {
        let (place, leaving) = cached.enter(depth, at(second), name, bytes);
        assert!(cached.total_bytes <= cached.bound_bytes);
        assert_eq!(cached.total_bytes, cached.images.values().map(|(_, bytes)| bytes).sum::<u64>());
        (place, leaving)
    }

    #[test]
    fn those_that_sleep_longest_leave_first() {
        let mut cached = Cached::new(100);
        assert!(enter(&mut cached, 1, "a", 40).1.is_empty());
        assert!(enter(&mut cached, 2, "b", 40).1.is_empty());
        assert!(enter(&mut cached, 3, "c", 20).1.is_empty(), "the bound itself is not too much");
        assert_eq!(enter(&mut cached, 4, "d", 1).1, ["a"]);
        assert_eq!(enter(&mut cached, 5, "e", 90).1, ["b", "c"]);
        assert_eq!(cached.total_bytes, 91);
    }

    #[test]
    fn those_of_warm_apps_leave_before_others_and_have_a_part() {
        let mut cached = Cached::new(100);
        assert!(enter_at(&mut cached, Depth::Warm, 5, "a", 15).1.is_empty());
        assert!(enter(&mut cached, 1, "b", 60).1.is_empty());
        assert_eq!(enter_at(&mut cached, Depth::Warm, 6, "c", 15).1, ["a"]);
        assert_eq!(enter_at(&mut cached, Depth::Warm, 6, "large", 26).1, ["large"]);
        assert_eq!(enter(&mut cached, 2, "d", 30).1, ["c"]);
        let (e, leaving) = enter_at(&mut cached, Depth::Warm, 7, "e", 10);
        assert!(leaving.is_empty());
        assert_eq!((cached.total_bytes, cached.warm_bytes), (100, 10));
        cached.leave(e);
        assert_eq!((cached.total_bytes, cached.warm_bytes), (90, 0));
    }

    #[test]
    fn one_that_has_woken_does_not_count() {
        let mut cached = Cached::new(100);
        let (a, _) = enter(&mut cached, 1, "a", 60);
        cached.leave(a);
        assert!(enter(&mut cached, 2, "b", 60).1.is_empty());
        let (c, leaving) = enter(&mut cached, 3, "c", 60);
        assert_eq!(leaving, ["b"]);
        cached.leave(c);
        cached.leave(c);
        assert_eq!((cached.total_bytes, cached.images.len()), (0, 0));
    }

    #[test]
    fn the_time_of_falling_asleep_counts_not_that_of_entering() {
        // As after a takeover, where apps are found in any order.
        let mut cached = Cached::new(100);
        assert!(enter(&mut cached, 7, "late", 60).1.is_empty());
        assert_eq!(enter(&mut cached, 3, "early", 60).1, ["early"]);
        assert!(enter(&mut cached, 3, "small", 40).1.is_empty());
        assert_eq!(enter(&mut cached, 7, "same moment", 40).1, ["small"]);
    }

    #[test]
    fn a_large_image_does_not_drive_the_others_out() {
        let mut cached = Cached::new(100);
        assert!(enter(&mut cached, 1, "a", 100).1.is_empty());
        let (large, leaving) = enter(&mut cached, 2, "large", 101);
        assert_eq!(leaving, ["large"]);
        cached.leave(large);
        assert_eq!(cached.total_bytes, 100);
        let mut none = Cached::new(0);
        assert_eq!(enter(&mut none, 1, "a", 1).1, ["a"]);
    }
}
