//! Programs that are run to their end, and what they say.
#![allow(dead_code, reason = "not every test uses all of it")]

use std::sync::Arc;

use torpor_lua::{State, Step, Value, Windows};

/// A state, in a window that only one test may use, since all of them run in one process.
pub(crate) struct Program {
    pub(crate) state: State,
}

impl Program {
    pub(crate) fn new(window: u32) -> Self {
        Self::with_memory(window, 32 << 20)
    }

    pub(crate) fn with_memory(window: u32, most_bytes: usize) -> Self {
        let windows = Arc::new(Windows::reserve(window, 1).unwrap());
        Self { state: State::new(&windows, window, most_bytes, 1).unwrap() }
    }

    /// What a program returns, as text; after `!` its error.
    pub(crate) fn call(&mut self, program: &str, arguments: &[Value]) -> String {
        match self.state.run("=program", program, arguments).1 {
            Step::Ended(values) => match values.as_slice() {
                [Value::String(bytes)] => String::from_utf8_lossy(bytes).into_owned(),
                other => format!("{other:?}"),
            },
            Step::Failed(error) => format!("!{error}"),
            Step::Waits(_) => panic!("it waits: {program}"),
        }
    }
}

/// Makes a text of values: of tables their lists.
const SHOW: &str = "
    local function show(v)
      if type(v) ~= 'table' then return tostring(v) end
      local all = {}
      for i, x in ipairs(v) do all[i] = show(x) end
      return '{' .. table.concat(all, ',') .. '}'
    end
    local function show_all(ok, ...)
      if not ok then return '!' .. tostring((...)) end
      local all = table.pack(...)
      for i = 1, all.n do all[i] = show(all[i]) end
      return table.concat(all, ' ')
    end
    return show_all(pcall(function() return ";

/// Each expression gives its text, or where that begins with `!`, raises an error that ends with it.
pub(crate) fn says(window: u32, table: &[(&str, &str)]) {
    let mut program = Program::new(window);
    let mut wrong = Vec::new();
    for (expression, expected) in table {
        let found = program.call(&format!("{SHOW}{expression} end))"), &[]);
        let is_right = match (expected.strip_prefix('!'), found.strip_prefix('!')) {
            (Some(expected), Some(found)) => found.contains(expected),
            _ => found == *expected,
        };
        if !is_right {
            wrong.push(format!("{expression}\n  gives    {found}\n  and not  {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
