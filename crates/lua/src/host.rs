//! What programs ask at once of their host, while they run (`c/requests.c`).

use std::cell::{Cell, RefCell};
use std::ptr::{self, NonNull};

use crate::ffi::{RawStep, RawValue};
use crate::value::{self, Value};

/// Answers what a program asks while it runs.
pub trait Host {
    /// Answers a request: the name of an operation, and its arguments. An error is raised where the program asked.
    ///
    /// # Errors
    /// In words.
    fn ask(&mut self, request: Vec<Value>) -> Result<Vec<Value>, String>;
}

/// Offers only `print`, which writes lines to standard output.
#[derive(Clone, Copy, Debug)]
pub struct NoHost;

impl Host for NoHost {
    fn ask(&mut self, request: Vec<Value>) -> Result<Vec<Value>, String> {
        match request.as_slice() {
            [Value::String(operation), Value::String(line)] if operation == b"print" => {
                println!("{}", String::from_utf8_lossy(line));
                Ok(Vec::new())
            }
            _ => Err("its host does not offer this".to_owned()),
        }
    }
}

/// `struct torpor_reply`.
#[repr(C)]
pub(crate) struct RawReply {
    is_error: i64,
    values: *const RawValue,
    count: usize,
}

thread_local! {
    /// Who answers the program that runs in this thread.
    static HOST: Cell<Option<NonNull<dyn Host>>> = const { Cell::new(None) };
    /// Replies that C still reads, which point into their values.
    static REPLIES: RefCell<Vec<(Vec<Value>, Vec<RawValue>)>> = const { RefCell::new(Vec::new()) };
}

/// Has a host answer what is asked while something runs.
pub(crate) fn while_answered_by<T>(host: &mut dyn Host, run: impl FnOnce() -> T) -> T {
    let host = NonNull::from(host);
    // SAFETY: only the lifetime changes; it is forgotten before the reference ends.
    let host = unsafe { std::mem::transmute::<NonNull<dyn Host + '_>, NonNull<dyn Host + 'static>>(host) };
    let before = HOST.replace(Some(host));
    let result = run();
    HOST.set(before);
    result
}

/// See `c/requests.c`.
///
/// # Safety
/// C asks, with values that are on the stack of a state that runs in this thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn torpor_ask(request: *const RawStep, reply: *mut RawReply) {
    // SAFETY: the step is C's, and its values are on the stack until it is answered.
    let request = unsafe { value::all_of(&*request) };
    let answer = match (request, HOST.get()) {
        (None, _) => Err("it gives too many values, or tables in too many tables".to_owned()),
        (_, None) => Err("it has no host".to_owned()),
        // SAFETY: `while_answered_by` holds it, and nobody else uses it meanwhile: a host does not run programs while it answers.
        (Some(request), Some(mut host)) => unsafe { host.as_mut() }.ask(request),
    };
    let is_error = i64::from(answer.is_err());
    let values = answer.unwrap_or_else(|error| vec![error.as_str().into()]);
    let mut raw = Vec::new();
    values.iter().for_each(|value| value.add_raw(&mut raw));
    let found = RawReply { is_error, values: raw.as_ptr(), count: values.len() };
    REPLIES.with_borrow_mut(|replies| replies.push((values, raw)));
    // SAFETY: C has room for it.
    unsafe { ptr::write(reply, found) };
}

/// See `c/requests.c`.
#[unsafe(no_mangle)]
extern "C" fn torpor_replied() {
    REPLIES.with_borrow_mut(|replies| drop(replies.pop()));
}
