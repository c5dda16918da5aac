//! How long it takes from warm to running.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use torpor_engine::{NoFaults, RestoreStep, ResumeRequest, Timings, resume};

use super::app::App;
use super::hibernate::connect;

pub const TESTS: &[super::Test] = &[("measure_resuming_lighttpd", lighttpd)];

fn lighttpd() {
    const ROUNDS: usize = 60;
    let mut app = App::of_server("lighttpd");
    drop(connect(&app, 80));
    let (mut all, mut first_bytes) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let asleep = app.doze();
        let warm = app.hibernate(&asleep, &NoFaults).result.unwrap();
        let given = app.given();
        let mut stream = app.within(|| TcpStream::connect(("127.0.0.1", 80))).unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let begun = Instant::now();
        let (result, timings) = app.with_target(&NoFaults, |target| {
            let (given, give_up) = (Box::new(move || Ok(given)), Box::new(|| {}));
            resume(target, ResumeRequest { home: &app.home, image: &warm.image, given, give_up, lazy: None })
        });
        stream.read_exact(&mut [0]).unwrap();
        first_bytes.push(begun.elapsed().as_micros() as u64);
        app.memories = result.unwrap().memories;
        all.push(timings);
    }
    // Others may use the processors meanwhile: the tenth tells what it takes by itself.
    let spread = |mut values: Vec<u64>| {
        values.sort_unstable();
        format!("{:6} {:6}", values[values.len() / 2], values[values.len() / 10])
    };
    eprintln!("microseconds: median, tenth of {ROUNDS}");
    for step in RestoreStep::ALL {
        let of = |timings: &Timings<RestoreStep>| timings.steps().iter().find(|(at, _)| *at == step).map(|(_, us)| *us);
        let times: Vec<u64> = all.iter().filter_map(of).collect();
        // Some are only of homes that were made anew.
        if !times.is_empty() {
            eprintln!("{:10} {}", step.name(), spread(times));
        }
    }
    eprintln!("resumed    {}", spread(all.iter().map(Timings::total_us).collect()));
    eprintln!("first byte {}", spread(first_bytes));
}
