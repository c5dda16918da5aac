//! Control requests about one Clef: what is known of it, and chunks of Lua that run in it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use torpor_lua::Value;

use super::value::{text, to_json};
use crate::host::{Exported, Host, HostError, Waiting};
use crate::key::Key;
use crate::note::Usage;

/// Lists the globals of a program.
const GLOBALS: &str = include_str!("globals.lua");
/// Global variables that every program has.
const STANDARD: &str = "\
    _G _VERSION assert collectgarbage error getmetatable ipairs load next pairs pcall print rawequal rawget rawlen rawset require select \
    setmetatable tonumber tostring type wait xpcall alarm call fetch kv now send sleep base64 coroutine crypto io json math os string table utf8";

/// An alarm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlarmView {
    /// Its function.
    pub name: String,
    /// When it is due, in ms since 1970.
    pub due_ms: u64,
}

/// A global variable of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Global {
    /// Its name.
    pub name: String,
    /// The type of its value, as Lua names it.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its value in some words; long ones are cut.
    pub value: String,
}

/// A value that others read without waking the Clef.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Put {
    /// Its name.
    pub name: String,
    /// It.
    pub value: Json,
}

/// What is known of a Clef.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClefView {
    /// Its key.
    pub key: Key,
    /// It has memory.
    pub awake: bool,
    /// Bytes that its program uses; null if it is asleep.
    pub memory_bytes: Option<u64>,
    /// Bytes of its records in the log.
    pub stored_bytes: u64,
    /// What each of its tasks waits for.
    pub tasks: Vec<Waiting>,
    /// Its alarms, the next one first.
    pub alarms: Vec<AlarmView>,
    /// Connections.
    pub connections: u64,
    /// What it has put into `kv`.
    pub values: Vec<Put>,
    /// What it has used.
    pub usage: Usage,
    /// The global variables of its program, by name.
    pub globals: Vec<Global>,
    /// Global variables that are not listed, since there are too many.
    pub globals_left_out: u64,
    /// Why the global variables are not listed.
    pub globals_error: Option<String>,
}

/// What a chunk has done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ran {
    /// Lines that it has printed.
    pub printed: Vec<String>,
    /// What it has returned, as `tostring` has it.
    pub values: Vec<String>,
}

/// All about a Clef, which is awake afterwards if it was before.
pub(super) fn inspect(host: &mut Host, key: &Key) -> Result<ClefView, HostError> {
    let seen = host.see(&key.0)?;
    let (globals, globals_left_out, globals_error) = match globals(host, key) {
        Ok((globals, left_out)) => (globals, left_out, None),
        Err(error) => (Vec::new(), 0, Some(torpor_api::error::causes(&error))),
    };
    if seen.is_awake {
        host.wake_one(&key.0)?;
    }
    let mut alarms: Vec<AlarmView> = seen.alarms.into_iter().map(|(name, due_ms)| AlarmView { name, due_ms }).collect();
    alarms.sort_by_key(|alarm| alarm.due_ms);
    let put = |(name, value): (Vec<u8>, Value)| Put { name: text(&name), value: to_json(&value) };
    Ok(ClefView {
        key: key.clone(),
        awake: seen.is_awake,
        memory_bytes: seen.memory_bytes.map(|bytes| bytes as u64),
        stored_bytes: seen.stored_bytes,
        tasks: seen.tasks,
        alarms,
        connections: seen.connections as u64,
        values: seen.values.into_iter().map(put).collect(),
        usage: seen.usage,
        globals,
        globals_left_out,
        globals_error,
    })
}

fn globals(host: &mut Host, key: &Key) -> Result<(Vec<Global>, u64), HostError> {
    let chunk = format!("return (function(...) {GLOBALS}\nend)({})", quoted(STANDARD.as_bytes()));
    let (values, _) = host.look(&key.0, &chunk)?;
    let mut globals = Vec::new();
    if let Some(Value::Table(found)) = values.first() {
        for (_, one) in found {
            let Value::Table(fields) = one else { continue };
            let field = |place: i64| {
                let found = fields.iter().find(|(key, _)| *key == Value::Integer(place));
                text(found.and_then(|(_, value)| value.bytes()).unwrap_or_default())
            };
            globals.push(Global { name: field(1), kind: field(2), value: field(3) });
        }
    }
    globals.sort_by(|a, b| a.name.cmp(&b.name));
    let left_out = values.get(1).and_then(Value::number).unwrap_or(0.0) as u64;
    Ok((globals, left_out))
}

/// Runs a line in a Clef: an expression, or else statements.
pub(super) fn run(host: &mut Host, key: &Key, line: &str, keeps: bool) -> Result<Ran, HostError> {
    let was_awake = host.see(&key.0)?.is_awake;
    // Values stay in the Clef, which has words for all of them.
    let chunk = format!(
        "local line, name = {}, '=(repl)' \
         local chunk = load('return ' .. line, name) \
         if not chunk then local wrong chunk, wrong = load(line, name) if not chunk then error(wrong, 0) end end \
         local values = table.pack(chunk()) \
         for place = 1, values.n do values[place] = tostring(values[place]) end \
         return table.unpack(values, 1, values.n)",
        quoted(line.as_bytes())
    );
    let ran = if keeps { host.change(&key.0, &chunk) } else { host.look(&key.0, &chunk) };
    if was_awake {
        host.wake_one(&key.0)?;
    }
    let (values, printed) = ran?;
    Ok(Ran { printed, values: values.iter().map(|value| text(value.bytes().unwrap_or_default())).collect() })
}

/// A string of Lua.
fn quoted(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("\\{byte:03}")).collect();
    format!("\"{digits}\"")
}

/// A copy as text.
pub(super) fn export(host: &mut Host, key: &Key) -> Result<String, HostError> {
    Ok(BASE64.encode(host.export(&key.0)?.to_bytes()?))
}

/// Makes a Clef of such a copy.
pub(super) fn import(host: &mut Host, key: &Key, copy: &str) -> Result<(), HostError> {
    let bytes = BASE64.decode(copy).map_err(|_| HostError::NotACopy)?;
    host.import(&key.0, &Exported::from_bytes(&bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::{Class, Code, Durability, Limits};

    #[test]
    fn a_clef_is_looked_into_and_stays_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let open = |main: &str| {
            let limits = Limits { memory_bytes: 4 << 20, ..Limits::default() };
            let class =
                Class { name: "room".to_owned(), code: Code::from(main), limits, durability: Durability::Reply };
            Host::open(class, folder.path()).unwrap()
        };
        let key = |name: &str| Key(name.as_bytes().to_vec());
        let mut host = open("");
        assert!(matches!(inspect(&mut host, &key("a")), Err(HostError::None)));
        let call = |host: &mut Host, key: &str| {
            let (key, function) = (key.as_bytes().to_vec(), "set".to_owned());
            host.take(crate::message::Incoming::Call { key, function, arguments: Vec::new(), call: 1 });
            host.turn().unwrap();
        };
        call(&mut host, "empty");
        assert_eq!(inspect(&mut host, &key("empty")).unwrap().globals, Vec::new(), "all of these are standard");
        let main = "n, f, list, s, long = 1, 2.5, {1, 'a', {}, {1}, 5}, 'é\\n\"', ('x'):rep(61) _G[7] = {a = {}}
            setmetatable(list, {__tostring = function() error('called') end, __len = function() error('called') end})
            function set() kv.put('k', {1}) alarm(100, 'set') end";
        host.reload(Code::from(main));
        call(&mut host, "a");
        let view = inspect(&mut host, &key("a")).unwrap();
        let shown: Vec<(&str, &str)> =
            view.globals.iter().map(|global| (global.name.as_str(), global.value.as_str())).collect();
        let long = format!("\"{}\"… 61 bytes", "x".repeat(60));
        let expected = [
            ("[7]", "{a = {}} 1 entry"),
            ("f", "2.5"),
            ("list", "{1, \"a\", {}, {…}, …} 5 entries"),
            ("long", long.as_str()),
            ("n", "1"),
            ("s", "\"é\\n\\\"\""),
            ("set", "function"),
        ];
        assert_eq!(shown, expected, "{:?}", view.globals_error);
        assert_eq!((view.alarms.len(), &view.values[0].value), (1, &serde_json::json!([1])));
        assert!(view.awake && inspect(&mut host, &key("a")).unwrap().awake && view.usage.steps == 1);

        let mut ran = |line: &str, keeps| run(&mut host, &key("a"), line, keeps).map_err(|error| error.to_string());
        let says = |values: &[&str], printed: &[&str]| {
            let owned = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
            Ok(Ran { values: owned(values), printed: owned(printed) })
        };
        assert_eq!(ran("n, nil", false), says(&["1", "nil"], &[]));
        assert_eq!(ran("n = n + 1 print(n)", false), says(&[], &["2"]));
        assert_eq!(ran("n", false), says(&["1"], &[]), "nothing is kept");
        assert_eq!(ran("n = n + 1", true), says(&[], &[]));
        assert_eq!(ran("n", false), says(&["2"], &[]));
        assert!(ran("n = 3 error('no')", true).is_err_and(|error| error.contains("(repl):1: no")));
        assert_eq!(ran("n", false), says(&["3"], &[]), "what comes before an error stays");
        assert!(ran("n +", false).is_err_and(|error| error.starts_with("(repl):1:")));
        assert!(ran("sleep(1)", true).is_err());
        assert!(matches!(run(&mut host, &key("none"), "1", true), Err(HostError::None)));
        assert!(!host.wake_one(b"a").unwrap() && host.wake_one(b"none").is_err());

        let copy = export(&mut host, &key("a")).unwrap();
        import(&mut host, &key("b"), &copy).unwrap();
        assert!(matches!(import(&mut host, &key("b"), &copy), Err(HostError::Exists)));
        for (wrong, at) in [(&copy[4..], "c"), (&copy[..copy.len() - 4], "c"), ("!", "c"), ("", "c")] {
            assert!(matches!(import(&mut host, &key(at), wrong), Err(HostError::NotACopy)));
        }
        let used = host.stats().used_since_host_start;
        assert!(used.steps == 2 && used.stored_bytes > 4096, "{used:?}");
    }
}
