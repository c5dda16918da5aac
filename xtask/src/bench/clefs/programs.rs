//! The programs in Lua, and states that run them.

use std::sync::Arc;

use torpor_lua::{State, Step, Value, Windows};

use crate::error::Error;

/// A program. Its function `message` takes a number, and answers with one.
#[derive(Debug)]
pub(super) struct Program {
    /// Its name in results.
    pub(super) name: &'static str,
    pub(super) text: &'static str,
}

pub(super) const PAPER: Program = Program { name: "paper", text: include_str!("paper.lua") };
pub(super) const EMPTY: Program = Program { name: "empty", text: "function message(n) return n end" };
pub(super) const TEN_MEGABYTES: Program = Program {
    name: "10mb",
    text: "
        records = {}
        while collectgarbage('count') < 10 * 1024 do
          for _ = 1, 1000 do records[#records + 1] = { #records, tostring(#records) } end
        end
        function message(n)
          records[n % #records + 1][1] = n
          return n
        end",
};
pub(super) const COUNTER: Program = Program { name: "counter", text: include_str!("counter.lua") };

/// Bytes of memory of a state at most.
const MOST_BYTES: usize = 64 << 20;
const SEED: u64 = 20;

impl Program {
    /// A state in which it has run.
    pub(super) fn started(&self, windows: &Arc<Windows>, window: u32, arguments: &[Value]) -> Result<State, Error> {
        let mut state = State::new(windows, window, MOST_BYTES, SEED)?;
        match state.run(self.name, self.text, arguments).1 {
            Step::Ended(_) => Ok(state),
            step => Err(wrong(self.name, &step)),
        }
    }
}

/// Windows for so many states.
pub(super) fn reserved(count: u32) -> Result<Arc<Windows>, Error> {
    let windows = Windows::reserve(0, count).map_err(Error::file("reserve", "windows of addresses"))?;
    if !windows.tells_writes() {
        eprintln!("the kernel does not tell what was written to: every snapshot is a full one");
    }
    Ok(Arc::new(windows))
}

/// A message to a state, and its answer.
pub(super) fn message(state: &mut State, number: usize) -> Result<i64, Error> {
    match state.call("message", &[Value::Integer(number as i64)]).1 {
        Step::Ended(values) if matches!(values[..], [Value::Integer(_)]) => {
            let [Value::Integer(answer)] = values[..] else { return Err(wrong("message", &Step::Ended(values))) };
            Ok(answer)
        }
        step => Err(wrong("message", &step)),
    }
}

fn wrong(name: &str, step: &Step) -> Error {
    torpor_testkit::Error::answer(name, "an end, with a number if it is of a message", format!("{step:?}")).into()
}
