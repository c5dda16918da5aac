-- What is wanted of each app. What is (states, processes) belongs to the worker and is not here.
CREATE TABLE apps (
    id       TEXT    PRIMARY KEY,
    slot     INTEGER NOT NULL UNIQUE CHECK (slot BETWEEN 1 AND 65000),
    name     TEXT    NOT NULL UNIQUE,
    -- creating, removing: the work was not finished; the next start of the hub takes the app away.
    phase    TEXT    NOT NULL CHECK (phase IN ('creating', 'ready', 'removing')),
    desired  TEXT    NOT NULL CHECK (desired IN ('up', 'down')),
    pinned   INTEGER NOT NULL CHECK (pinned IN (0, 1)),
    created  TEXT    NOT NULL,
    spec     TEXT    NOT NULL,
    resolved TEXT    NOT NULL
) STRICT;

-- Published ports, for the check that two apps do not publish the same. No address: all of them.
CREATE TABLE ports (
    app_id   TEXT    NOT NULL REFERENCES apps (id) ON DELETE CASCADE,
    protocol TEXT    NOT NULL CHECK (protocol IN ('tcp', 'udp')),
    port     INTEGER NOT NULL CHECK (port BETWEEN 1 AND 65535),
    address  TEXT
) STRICT;
CREATE INDEX ports_by_number ON ports (protocol, port);
CREATE INDEX ports_by_app ON ports (app_id);

-- The last events; AUTOINCREMENT never gives a number twice, even after old rows are gone.
CREATE TABLE events (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    at      TEXT    NOT NULL,
    app     TEXT    NOT NULL,
    kind    TEXT    NOT NULL,
    message TEXT    NOT NULL,
    fields  TEXT    NOT NULL
) STRICT;
CREATE INDEX events_by_app ON events (app, seq);
