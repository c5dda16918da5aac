//! What an app's specification says of its life, for the state machine.

use torpor_api::spec::{self, AppSpec};
use torpor_lifecycle::{Policy, RestartPolicy, Share, WakeBlocked};

/// The policy of an app.
pub(crate) fn policy(spec: &AppSpec) -> Policy {
    Policy {
        sleep: spec.idle.sleep,
        idle_after: spec.idle.after.0,
        warm_after: spec.idle.warm_after.span().map(|span| span.0),
        min_awake: spec.idle.min_awake.0,
        cpu_limit: Share::from_percent(spec.idle.cpu_percent),
        with_connections: spec.idle.with_connections,
        restart: match spec.restart {
            spec::Restart::No => RestartPolicy::No,
            spec::Restart::OnFailure => RestartPolicy::OnFailure,
            spec::Restart::Always => RestartPolicy::Always,
        },
        wake_blocked: match spec.idle.wake_blocked {
            spec::WakeBlocked::Wait => WakeBlocked::Wait,
            spec::WakeBlocked::Restart => WakeBlocked::Restart,
        },
    }
}
