//! An app that is put to sleep and woken by requests, and what its wakes report.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::bench::client::{Protocol, first_byte};
use crate::bench::daemon::{Daemon, free_port};
use crate::bench::machine::drop_from_cache;
use crate::bench::program::Program;
use crate::bench::samples::Samples;
use crate::error::Error;

/// Limit for a wake to be over after its first answer.
const OVER_WITHIN: Duration = Duration::from_secs(30);
/// Pause between looks at whether it is.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// Level of sleep.
pub(super) const DOZING: &str = "dozing";

/// See the module.
pub(super) struct Sleeper<'a> {
    name: &'a str,
    id: String,
    address: SocketAddr,
    /// Whether its wakes are lazy, so that they show what the program touched.
    is_lazy: bool,
    /// Wakes that it has learned from.
    wakes: u64,
}

/// What a wake was like.
pub(super) struct Woken {
    /// Microseconds from the request to the first byte of the answer.
    pub(super) us: f64,
    /// Microseconds of the wake itself.
    wake_us: f64,
    /// `working_set` of `torpor stats`, if the wake was lazy.
    set: Value,
}

/// Counts of a working set, in pages.
const COUNTS: [&str; 4] = ["expected", "misses", "used", "unused"];

impl<'a> Sleeper<'a> {
    /// Starts the app `name` of `program`, whose files are in the image of the same name, with this `working_set`.
    pub(super) fn start(
        daemon: &mut Daemon,
        name: &'a str,
        program: &Program,
        working_set: &str,
    ) -> Result<Self, Error> {
        let port = free_port()?;
        let settings = ["-p", &format!("{port}:{}", program.port()), "--no-sleep", "--working-set", working_set];
        let mut settings: Vec<String> = settings.map(str::to_owned).into();
        settings.extend(program.servers.user.iter().flat_map(|user| ["-u".to_owned(), (*user).to_owned()]));
        daemon.run_app(name, program.name, &settings, &program.servers.command)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        program.warm_up(address)?;
        let inspected = daemon.json(&["inspect", name])?;
        let id = inspected["status"]["id"].as_str().unwrap_or_default().to_owned();
        Ok(Self { name, id, address, is_lazy: working_set != "all", wakes: 0 })
    }

    /// Starts its program from the beginning, so that it forgets what it has learned.
    pub(super) fn restart(&mut self, daemon: &Daemon, program: &Program) -> Result<(), Error> {
        daemon.call(&["restart", self.name])?;
        self.wakes = 0;
        program.warm_up(self.address)
    }

    /// Where it is reached.
    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Puts it to sleep.
    pub(super) fn sleep(&self, daemon: &Daemon) -> Result<(), Error> {
        daemon.sleep(self.name, DOZING)
    }

    /// Sends a request without putting it to sleep first. Returns microseconds to the first byte.
    pub(super) fn ask(&self, request: Protocol) -> Result<f64, Error> {
        first_byte(self.address, request)
    }

    /// Puts it to sleep, sends the request after `gap`, and waits until its memory is back. `cached`: the image is in the page cache.
    pub(super) fn wake(
        &mut self,
        daemon: &Daemon,
        request: Protocol,
        gap: Duration,
        cached: bool,
    ) -> Result<Woken, Error> {
        self.sleep(daemon)?;
        if !cached {
            daemon.images(&self.id)?.iter().try_for_each(|image| drop_from_cache(image))?;
        }
        std::thread::sleep(gap);
        let us = first_byte(self.address, request)?;
        let set = if self.is_lazy { self.learned(daemon)? } else { Value::Null };
        let explained = daemon.json(&["explain", self.name])?;
        let wake_us = crate::bench::wake::phases(&explained["wakes"][0]).values().sum();
        Ok(Woken { us, wake_us, set })
    }

    /// Puts it to sleep and wakes it at once, so that it learns from the request.
    pub(super) fn train(&mut self, daemon: &Daemon, request: Protocol) -> Result<(), Error> {
        self.wake(daemon, request, Duration::ZERO, true).map(drop)
    }

    /// What the last wake has shown, when it is over; null where it shows nothing, since all memory came first.
    fn learned(&mut self, daemon: &Daemon) -> Result<Value, Error> {
        let begun = Instant::now();
        loop {
            let mut stats = daemon.json(&["stats", self.name])?;
            let of_app = if stats.is_array() { &mut stats[0] } else { &mut stats };
            let set = of_app["working_set"].take();
            let is_full = set["full"].as_array().is_some_and(|causes| !causes.is_empty());
            match set["wakes"].as_u64() {
                Some(wakes) if wakes > self.wakes => {
                    self.wakes = wakes;
                    return Ok(set);
                }
                _ if is_full => return Ok(Value::Null),
                _ if begun.elapsed() > OVER_WITHIN => {
                    let (what, seconds) = (format!("{} learns from a wake", self.name), OVER_WITHIN.as_secs());
                    return Err(torpor_testkit::Error::Deadline { what, seconds, last: set.to_string() }.into());
                }
                _ => std::thread::sleep(LOOK_AGAIN),
            }
        }
    }
}

impl Woken {
    /// Whether the set was staged, to see which of its pages are touched.
    pub(super) fn is_sampled(&self) -> bool {
        !self.set["used"].is_null()
    }

    /// Adds the times and counts of a wake to those of `subject`. The time to the first byte is `metric`.
    pub(super) fn add(&self, samples: &mut Samples, program: &str, subject: &'static str, metric: &str) {
        samples.add(program, subject, DOZING, metric, "us", self.us);
        samples.add(program, subject, DOZING, format!("{metric}_wake"), "us", self.wake_us);
        for count in COUNTS {
            if let Some(pages) = self.set[count].as_f64() {
                samples.add(program, subject, DOZING, count, "pages", pages);
            }
        }
        if self.is_sampled() {
            samples.add(program, subject, DOZING, format!("{metric}_sampled"), "us", self.us);
        }
    }

    /// Adds only the time to the first byte.
    pub(super) fn add_time(&self, samples: &mut Samples, program: &str, subject: &'static str, metric: &str) {
        samples.add(program, subject, DOZING, metric, "us", self.us);
    }
}
