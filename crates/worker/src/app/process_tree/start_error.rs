//! Why an app could not be started.

use std::io;
use std::path::PathBuf;

use torpor_api::ErrorKind;
use torpor_network::NetworkError;
use torpor_sandbox::SandboxError;

use crate::app::workload::StartFault;
use crate::disk::DiskError;

/// Why an app could not be started. Nothing is left of it then.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// Nothing to run.
    #[error("it has no command, and its image names none")]
    NoCommand,
    /// A volume does not exist.
    #[error("volume {}", .0.display())]
    Volume(PathBuf, #[source] io::Error),
    /// Its files.
    #[error("its files in {}", .0.display())]
    Files(PathBuf, #[source] io::Error),
    /// Its disk limit.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Its user.
    #[error(transparent)]
    User(torpor_rootfs::Error),
    /// Its layers.
    #[error(transparent)]
    Layers(torpor_rootfs::Error),
    /// Its output.
    #[error("pipes for its output")]
    Pipe(#[source] io::Error),
    /// Its sandbox.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// Its end could not be watched for.
    #[error("watching its processes")]
    Watch(#[source] io::Error),
    /// Its network.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// What others reach of it could not be made again.
    #[error(transparent)]
    Stored(Box<torpor_engine::BootImageError>),
}

impl StartError {
    /// Whose fault it was.
    pub(super) fn fault(&self) -> StartFault {
        let exit_status = match self {
            Self::Sandbox(error) => error.exit_status(),
            _ => None,
        };
        StartFault { kind: self.kind(), exit_status }
    }

    fn kind(&self) -> ErrorKind {
        match self {
            Self::Sandbox(error) if error.exit_status().is_some() => ErrorKind::Invalid,
            Self::NoCommand | Self::Volume(..) | Self::User(_) => ErrorKind::Invalid,
            Self::Disk(DiskError::Over { .. } | DiskError::TooDeep(_)) => ErrorKind::Conflict,
            Self::Network(NetworkError::Published { .. } | NetworkError::Bound { .. }) => ErrorKind::Conflict,
            _ => ErrorKind::Internal,
        }
    }
}
