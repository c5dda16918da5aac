//! Running `nft`: one script is one transaction of the kernel.
//!
//! Scripts go through the program rather than through raw netlink, because rules (unlike elements) compile to an
//! expression byte code that differs between kernel versions, and compiling it is what `nft` is for. Text rather than JSON,
//! because it is what people read in the manual, and half as long. A call takes about 3 ms. What is read often (packet
//! counts) does not come this way; see [`crate::sets`].

use std::ffi::OsString;
use std::io;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use crate::error::NetworkError;

const TIMEOUT: Duration = Duration::from_secs(20);
const MAX_MESSAGE_BYTES: u64 = 16 << 10;
const MAX_MESSAGE_LINES: usize = 4;
/// Where distributions put `nft`; a service's PATH often lacks it.
const SYSTEM_PATH: &str = "/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin";

/// Applies `script` in one transaction. `what` says what it does, for the error.
pub(crate) async fn apply(table: &str, what: &str, script: &str) -> Result<(), NetworkError> {
    if script.is_empty() {
        return Ok(());
    }
    tracing::trace!(table, what, bytes = script.len(), "nft transaction");
    run(table, what, &["-f", "-"], script).await.map(|_| ())
}

/// Has the kernel check `script` without applying it.
pub(crate) async fn check(table: &str, what: &str, script: &str) -> Result<(), NetworkError> {
    run(table, what, &["-c", "-f", "-"], script).await.map(|_| ())
}

/// What `nft --version` says.
pub(crate) async fn version() -> Result<String, NetworkError> {
    run("", "tell its version", &["--version"], "").await.map(|text| text.trim().to_owned())
}

/// The tables of the family inet, one a line.
pub(crate) async fn tables() -> Result<String, NetworkError> {
    run("", "list tables", &["list", "tables", "inet"], "").await
}

/// Where `nft` is looked for.
pub(crate) fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":");
    path.push(SYSTEM_PATH);
    path
}

async fn run(table: &str, what: &str, arguments: &[&str], input: &str) -> Result<String, NetworkError> {
    let mut child = Command::new("nft")
        .args(arguments)
        .env("PATH", search_path())
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => NetworkError::NftMissing,
            _ => NetworkError::NftRun(error),
        })?;
    let (Some(mut stdin), Some(stdout), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(NetworkError::NftRun(io::Error::other("its pipes are missing")));
    };
    let talk = async {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let write = async {
            // A script that nft stops reading is one that it complains about: its message says more than EPIPE.
            match stdin.write_all(input.as_bytes()).await {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
                _ => {
                    drop(stdin);
                    Ok(())
                }
            }
        };
        let (mut stdout, mut stderr) = (stdout.take(MAX_MESSAGE_BYTES), stderr.take(MAX_MESSAGE_BYTES));
        tokio::try_join!(write, stdout.read_to_end(&mut out), stderr.read_to_end(&mut err))?;
        Ok::<_, io::Error>((child.wait().await?, out, err))
    };
    let (status, out, err) = tokio::time::timeout(TIMEOUT, talk)
        .await
        .map_err(|_| NetworkError::NftTimeout { seconds: TIMEOUT.as_secs() })?
        .map_err(NetworkError::NftRun)?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&out).into_owned());
    }
    let message = String::from_utf8_lossy(&err);
    let lines: Vec<&str> = message.lines().filter(|line| !line.trim_matches([' ', '^', '~']).is_empty()).collect();
    let message = match lines.as_slice() {
        [] => status.to_string(),
        lines => lines[..lines.len().min(MAX_MESSAGE_LINES)].join("; "),
    };
    Err(NetworkError::Nft { what: what.to_owned(), table: table.to_owned(), message })
}
