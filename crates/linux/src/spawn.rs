//! Making processes in new namespaces: `clone3(2)`, `fork(2)`, `setns(2)`.
