//! What each page says, and its tables.

use super::table::{Column, Lines, Table};

/// A page.
pub(super) struct About {
    /// Of the result and of the page's file.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) text: &'static str,
    pub(super) tables: &'static [Table],
    /// What a reader must know to judge the numbers.
    pub(super) notes: &'static str,
}

const FIRST_BYTE: &[Column] = &[
    ("never slept", "never-slept", "running", None),
    ("dozing", "torpor", "dozing", None),
    ("warm", "torpor", "warm", None),
    ("after a reboot", "torpor", "rebooted", None),
    ("CRIU", "criu", "image", None),
    ("CRIU, lazy pages", "criu-lazy", "image", None),
    ("runc + CRIU", "runc+criu", "image", None),
    ("cold start", "cold-start", "stopped", None),
];
const WAKE: &[Column] = &[
    ("dozing", "torpor", "dozing", None),
    ("warm", "torpor", "warm", None),
    ("after a reboot", "torpor", "rebooted", None),
    ("dozing, image read from disk", "torpor", "dozing", Some("wake_uncached")),
    ("warm, image read from disk", "torpor", "warm", Some("wake_uncached")),
];
const FALLING_ASLEEP: &[Column] = &[
    ("frozen, going to doze", "torpor", "dozing", Some("capture_frozen")),
    ("from dozing to warm", "torpor", "warm", Some("hibernate")),
];
const GOING_WARM: &[Column] = &[("resident memory, daemon and app", "torpor", "warm", None)];
const MEMORY: &[Column] = &[
    ("awake", "torpor", "dozing", Some("private_before")),
    ("dozing", "torpor", "dozing", Some("private_asleep")),
    ("warm", "torpor", "warm", Some("private_asleep")),
    ("image, dozing", "torpor", "dozing", Some("image_asleep")),
    ("image, warm", "torpor", "warm", Some("image_asleep")),
];
const TREES: &[Column] = &[
    ("Torpor", "torpor", "image", None),
    ("CRIU", "criu", "image", None),
    ("runc + CRIU", "runc+criu", "image", None),
];
const DURABLE: &[Column] = &[
    TREES[0],
    TREES[1],
    TREES[2],
    ("plain copy", "copy", "image", Some("copy")),
    ("plain copy, direct I/O", "copy", "image", Some("direct")),
];
const NOISY: &[Column] = &[
    ("dozing, alone", "alone", "dozing", None),
    ("dozing, beside writers", "beside-writers", "dozing", None),
    ("warm, alone", "alone", "warm", None),
    ("warm, beside writers", "beside-writers", "warm", None),
];
const NEVER_SLEPT: Column = ("never slept", "never-slept", "running", None);
const SETS: &[Column] = &[
    NEVER_SLEPT,
    ("learned set", "learned", "dozing", None),
    ("settled set", "settled", "dozing", None),
    ("reactive", "reactive", "dozing", None),
    ("full", "full", "dozing", None),
];
const COMPARED: &[Column] = &[
    ("never slept (in memory)", "never-slept", "running", None),
    ("learned set", "learned", "dozing", None),
    ("settled set", "settled", "dozing", None),
    ("reactive (plain faults)", "reactive", "dozing", None),
    ("full read", "full", "dozing", None),
    ("CRIU, lazy pages", "criu-lazy", "image", None),
    ("CRIU", "criu", "image", None),
];
const PREDICTED: &[Column] = &[
    ("learned, expected", "learned", "dozing", Some("expected")),
    ("learned, missed", "learned", "dozing", Some("misses")),
    ("settled, expected", "settled", "dozing", Some("expected")),
    ("settled, missed", "settled", "dozing", Some("misses")),
    ("reactive, missed", "reactive", "dozing", Some("misses")),
];
/// The policies of working sets.
const POLICIES: &[Column] = &[
    ("last", "last", "dozing", None),
    ("1 of 2", "1 of 2", "dozing", None),
    ("2 of 4", "2 of 4", "dozing", None),
    ("union", "union", "dozing", None),
    ("present", "present", "dozing", None),
    ("none", "none", "dozing", None),
    ("all", "all", "dozing", None),
    NEVER_SLEPT,
];
/// What is measured of them.
const POLICY_LINES: &[(&str, &str, f64)] = &[
    ("from the request to the first byte of the answer, ms", "first_byte_policy", 1000.0),
    ("of which sampled wakes, ms", "first_byte_policy_sampled", 1000.0),
    ("the wake itself, ms", "first_byte_policy_wake", 1000.0),
    ("pages that came before the program ran", "expected", 1.0),
    ("pages that it touched while they were missing", "misses", 1.0),
    ("expected pages that it touched (sampled wakes)", "used", 1.0),
    ("expected pages that it did not touch (sampled wakes)", "unused", 1.0),
];
/// Of sampled wakes and the others.
const LEARNING: &[Column] = &[
    ("all wakes, µs", "torpor", "dozing", Some("learning_all")),
    ("those that are not sampled, µs", "torpor", "dozing", Some("learning_others")),
    ("sampled wakes", "torpor", "dozing", Some("learning_sampled")),
    ("cost, %", "torpor", "dozing", Some("learning_cost")),
];
/// The throughput while memory comes back.
const LOADED: &[Column] = &[NEVER_SLEPT, ("woken from dozing", "torpor", "dozing", None)];
const LOADED_LINES: &[(&str, &str, f64)] = &[
    ("up to 0.25 s", "rate_250ms", 1000.0),
    ("0.25 to 0.5 s", "rate_500ms", 1000.0),
    ("0.5 to 1 s", "rate_1s", 1000.0),
    ("1 to 2 s", "rate_2s", 1000.0),
    ("2 to 3 s", "rate_3s", 1000.0),
];
const DOZING: &[Column] = &[("dozing", "torpor", "dozing", None)];
const WARM: &[Column] = &[("warm", "torpor", "warm", None)];
const SANDBOX: &[Column] =
    &[("in the sandbox", "torpor", "running", None), ("plain process", "plain", "running", None)];

/// A Clef's state, and the same program in a process.
const SNAPSHOTS: &[Column] = &[
    ("Clef, what has changed", "torpor", "image", None),
    ("Clef, everything", "torpor-full", "image", None),
    ("`torpor checkpoint`", "checkpoint", "image", None),
    CRIU,
];
const RESTORES: &[Column] =
    &[("Clef", "torpor", "image", None), ("`torpor restore`", "checkpoint", "image", None), CRIU];
const CRIU: Column = ("CRIU", "criu", "image", None);
const FILES: &[Column] = &[("Clef", "torpor", "image", None), ("copy of the file", "copy", "image", None)];
const REPLIES: &[Column] =
    &[("Clef, in its process", "torpor", "durable", None), ("redis, by its socket", "redis", "durable", None)];
/// From a message to its answer on disk, and what that consists of.
const REPLY_LINES: &[(&str, &str, f64)] = &[
    ("alone", "durable_reply", 1.0),
    ("· message and answer", "durable_reply_call", 1.0),
    ("· what has changed", "durable_reply_changes", 1.0),
    ("· into the log", "durable_reply_put", 1.0),
    ("· to the disk", "durable_reply_commit", 1.0),
    ("each of 64", "durable_reply_64", 1.0),
    ("· message and answer", "durable_reply_64_call", 1.0),
    ("· what has changed", "durable_reply_64_changes", 1.0),
    ("· into the log", "durable_reply_64_put", 1.0),
    ("· to the disk, a share of 64", "durable_reply_64_commit", 1.0),
];
const COUNTERS: &[Column] = &[
    ("Clefs, durable", "torpor", "durable", None),
    ("Clefs, in memory", "torpor", "memory", None),
    ("Node.js, in memory", "node", "memory", None),
    ("redis, durable", "redis", "durable", None),
    ("redis, in memory", "redis", "memory", None),
];
const COUNTER_LINES: &[(&str, &str, f64)] = &[
    ("one client, µs to the answer", "http_awake", 1.0),
    ("64 clients, thousand answers per second", "http_awake_rate", 1000.0),
];
/// Of Clefs that sleep, and of idle ones.
const CLEFS: &[Column] = &[("asleep", "torpor", "asleep", None), ("awake and idle", "torpor", "running", None)];
const CLEF_LINES: &[(&str, &str, f64)] = &[
    ("a request to one that sleeps, µs to the answer", "http_asleep", 1.0),
    ("memory of each that sleeps, bytes", "sleeping_bytes", 1.0),
    ("so many sleep", "sleeping_keys", 1.0),
    ("opening their store, ms", "open", 1.0),
    ("memory of each that is idle, bytes", "idle_bytes", 1.0),
    ("idle ones in a GiB", "idle_per_gib", 1.0),
];

const fn programs(heading: &'static str, metric: &'static str, per: f64, columns: &'static [Column]) -> Table {
    Table { heading, lines: Lines::Programs(metric, per), columns }
}

const fn metrics(
    heading: &'static str,
    metrics: &'static [(&'static str, &'static str, f64)],
    columns: &'static [Column],
) -> Table {
    Table { heading, lines: Lines::Metrics(None, metrics), columns }
}

/// Parts of the memory of a sleeping app.
const PARTS: &[(&str, &str, f64)] = &[
    ("anonymous memory of apps and worker", "part_anonymous", 1.0),
    ("kernel slabs", "part_Slab", 1.0),
    ("kernel stacks", "part_KernelStack", 1.0),
    ("page tables", "part_PageTables", 1.0),
    ("per-CPU memory", "part_Percpu", 1.0),
    ("shared memory", "part_Shmem", 1.0),
    ("images in the page cache", "memory_cached_images", 1.0),
    ("everything", "memory", 1.0),
];
/// What else is measured with many apps.
const DENSE: &[(&str, &str, f64)] = &[
    ("number of apps", "apps", 1.0),
    ("create an app and put it to sleep, ms", "create_and_sleep", 1.0),
    ("from a request to the first byte of the answer, ms", "first_byte", 1000.0),
    ("CPU time of the daemon while all sleep, % of one core", "worker_cpu", 1.0),
    ("open descriptors of the daemon for each app", "worker_descriptors", 1.0),
    ("from the start of the daemon after a reboot until all are back, ms", "up_after_reboot", 1.0),
];
const IMAGES: &str = "Images in the page cache are limited for all apps together (`[memory] cached_images`), so their share decreases with the \
                      number of apps.";

pub(super) const ABOUT: [About; 8] = [
    About {
        name: "wake",
        title: "Time to the first byte",
        text: "A client opens a connection to a sleeping app, sends a request, and measures the time until the first byte of the answer. \
               The machine is idle for the same time before each request, for all subjects. *Never slept* is the same app, kept awake. \
               *After a reboot* is an app that was warm when the machine was restarted. The peers run the same program and restore it \
               with the same state; their time includes the restore command. *CRIU, lazy pages* is `criu restore --lazy-pages`, which lets \
               the program run before its memory is back; `criu lazy-pages` already listens when the time begins. *Cold start* starts the \
               program from the beginning with the files that it has written but without what is only in its memory: redis without its \
               data.\n\n\
               lighttpd, python, go, node and java serve a small page. redis holds 1 kB, 80 MB or 1 GB in keys of 1 kB each; the request is \
               `GET` of one of them. clamd has 600,000 synthetic signatures and scans 1 kB. postgresql has a table of 10,000 rows; the client \
               connects, and the time ends with the first byte of the answer to a query of one row. jupyter has a kernel that holds 100 MB: \
               *jupyter* is an HTTP request to the server, *jupyter-cell* a new WebSocket to the kernel and a cell, until its result.",
        tables: &[
            programs("Time to the first byte, ms", "first_byte", 1000.0, FIRST_BYTE),
            programs("The wake itself: from the event to the first instruction, ms", "wake", 1000.0, WAKE),
            programs("Falling asleep, ms", "capture_frozen", 1000.0, FALLING_ASLEEP),
            programs(
                "Memory that going from dozing to warm takes for a moment, kB",
                "hibernate_memory",
                1.0,
                GOING_WARM,
            ),
            programs("Private memory and size of the image, kB", "private_asleep", 1.0, MEMORY),
        ],
        notes: "A program that falls asleep is frozen while its memory is copied and synced to disk; a packet ends that at once. Virtual \
                machines return free memory to their host and get it back slowly, so a wake that needs many free pages can take \
                noticeably longer there. PostgreSQL runs as its own user in Torpor and as root in the peers, because CRIU needs \
                CAP_SYS_RESOURCE for the processes of other users. Jupyter's connections to its kernel are restored by the peers with \
                `--tcp-established`.",
    },
    About {
        name: "paging",
        title: "Working sets",
        text: "Wakes from dozing with a [working set](../guide/sleeping.md#working-sets) that is right, partly wrong, empty, or the whole \
               memory. The experiments are those of Picocenter (section 6.4, figures 7 and 8) and FaaSnap. Their program is Picocenter's \
               strawman, which holds 64 MB of random bytes. Each request names a working set, whose pages are scattered over the memory; \
               the program reads a word of each page, checks it, and answers. Times are from the request to the answer.\n\n\
               *Learned set* is the policy `1 of 2` after two wakes with the same request: the pages of the set come before the program \
               runs, the others while it runs. *Settled set* is the same after sixteen wakes. *Reactive* is the policy `none`: every page comes \
               when it is touched, or in the background. *Full* is `all`: the program runs when its whole memory is back. *Never slept* is \
               the same program, kept awake.",
        tables: &[
            programs(
                "Time to the answer by size of the working set, ms (Picocenter, figure 7)",
                "first_byte",
                1000.0,
                SETS,
            ),
            programs("The same with the image read from disk, ms", "first_byte_uncached", 1000.0, SETS),
            programs(
                "Time to the answer by prediction error, ms (Picocenter, figure 8)",
                "first_byte_errors",
                1000.0,
                SETS,
            ),
            programs("Pages of the sets", "misses", 1.0, PREDICTED),
            Table {
                heading: "Ways to bring memory back, with a working set of 4 MB, ms (FaaSnap)",
                lines: Lines::Program("4 MB", "first_byte", 1000.0),
                columns: COMPARED,
            },
            Table {
                heading: "Policies, with redis, 80 MB of data and changing keys",
                lines: Lines::Metrics(Some("redis-80mb"), POLICY_LINES),
                columns: POLICIES,
            },
            Table {
                heading: "Policies, with clamd, 370 MB and changing texts",
                lines: Lines::Metrics(Some("clamd"), POLICY_LINES),
                columns: POLICIES,
            },
            programs("What it costs to learn sets: means over many wakes", "learning_all", 1.0, LEARNING),
            metrics(
                "Thousand requests per second of redis with 80 MB under full load, by time since the first connection",
                LOADED_LINES,
                LOADED,
            ),
        ],
        notes: "A fault brings the block of eight pages around the touched one. While a wake is recorded, to learn from it, each page comes alone, so \
                sets are exact. One wake in 32 is *sampled*, and more where sets are wrong: pages of an eighth of the set are read, but each is \
                placed only when the program touches it, so that pages leave the set which are not touched. Sampled wakes are part of \
                all times, and are usually the slowest ones. Where waiting for missed pages took longer than reading all memory, the wakes that follow read all of it \
                first. *Expected* pages came before the program ran; *missed* ones came because the program touched them. Pages that the \
                background brought in time are neither.\n\n\
                With a prediction error of 10 %, a tenth of the pages that the request touches are not in the set, and as many pages of the set \
                are not touched. Before each of these wakes, the program starts from the beginning and learns the set from two wakes \
                without errors.\n\n\
                FaaSnap compares a working set that is read completely before the program runs (REAP) with a loading set that is read while \
                it runs. Torpor has no switch between the two: up to 32 MiB of a set come before the program runs, the rest of the memory \
                while it runs. All sets on this page are smaller than that. So *learned set* and *settled set* block the program until \
                the set is there, with concurrent paging of everything else; a loading set that is itself read concurrently is not \
                measured. The time of CRIU includes the restore command; the daemon that serves its lazy pages is started before.\n\n\
                With redis, each wake is one connection that asks for ten keys in one go. Few keys are frequent and most are rare (Zipf's \
                law); all policies get the same keys. Sixteen wakes come before those that are measured. clamd scans 16 kB of noise, one of 1,000 texts by the \
                same law, with half as many wakes.",
    },
    About {
        name: "trees",
        title: "Checkpoint and restore of process trees",
        text: "`torpor checkpoint` and `torpor restore` of plain process trees, beside CRIU, and beside runc + CRIU with the same tree in \
               a container. `10x64x1` is a tree of 10 processes with 64 threads each and 1 MB of memory in all. *Durable* includes the \
               time to sync the image. The image of `torpor checkpoint` is always synced; those of the peers are not, so the benchmark \
               syncs them. Images are restored from the page cache. A *plain copy* reads the memory of the tree, writes it to a file and \
               syncs the file.",
        tables: &[
            programs("Checkpoint, ms", "checkpoint", 1.0, TREES),
            programs("Checkpoint, durable, ms", "durable", 1.0, DURABLE),
            programs("Restore, ms", "restore", 1.0, TREES),
            programs("From the start of the restore to the answer of every thread, ms", "all_answer", 1.0, TREES),
            programs("Size of the image, kB", "image", 1.0, TREES),
        ],
        notes: "",
    },
    About {
        name: "density",
        title: "Memory of many dozing apps",
        text: "The memory of the machine that each further dozing lighttpd takes, everything counted, and the CPU time of the daemon while \
               all of them sleep.",
        tables: &[metrics("Memory of each app, kB", PARTS, DOZING), metrics("Times and counts", DENSE, DOZING)],
        notes: IMAGES,
    },
    About {
        name: "density-warm",
        title: "Memory of many warm apps",
        text: "The memory of the machine that each further warm lighttpd takes, everything counted, the CPU time of the daemon while all of \
               them sleep, and the time until the daemon serves all of them after a reboot. The apps that are woken for the \
               time to the first byte run when the machine goes down, so they start from the beginning.",
        tables: &[metrics("Memory of each app, kB", PARTS, WARM), metrics("Times and counts", DENSE, WARM)],
        notes: IMAGES,
    },
    About {
        name: "noisy",
        title: "Wakes beside apps that write without end",
        text: "The time to the first byte of a sleeping lighttpd, first alone, and then beside apps that write to their standard output and \
               standard error as fast as they can. Torpor limits the rate at which it keeps output (`[logs] rate`) and drops the rest.",
        tables: &[
            programs("Time to the first byte, ms", "first_byte", 1000.0, NOISY),
            programs("The wake itself: from the event to the first instruction, ms", "wake", 1000.0, NOISY),
        ],
        notes: "",
    },
    About {
        name: "cost",
        title: "Cost of the sandbox",
        text: "What a program that is awake pays for its sandbox (namespaces, system-call filter, overlay file system, veth pair and nftables), \
               beside the same program as a plain process. A *system call* is a cheap one (`getppid`); *open, read, close* is of a small \
               part of a file; a *UDP round trip* is between a client on the same machine and the program.",
        tables: &[
            metrics(
                "Sandbox / plain process",
                &[
                    ("computing", "computing_ratio", 1.0),
                    ("system call", "system_call_ratio", 1.0),
                    ("open, read, close", "open_read_close_ratio", 1.0),
                    ("UDP round trip", "udp_ping_ratio", 1.0),
                ],
                &[("ratio", "torpor", "running", None)],
            ),
            metrics(
                "Times",
                &[
                    ("computing (20 million steps), ms", "computing", 1e6),
                    ("system call, ns", "system_call", 1.0),
                    ("open, read, close, ns", "open_read_close", 1.0),
                    ("UDP round trip, µs", "udp_ping", 1.0),
                ],
                SANDBOX,
            ),
        ],
        notes: "",
    },
    About {
        name: "clefs",
        title: "Clefs",
        text: "The experiments of Alto with [Clefs](../guide/clefs.md), and what else decides whether a Clef may sleep: how long its state takes \
               to be stored and restored, when an answer is durable, and how many find room.\n\n\
               *paper* is Alto's program, a string of 10 kB and 10,000 functions with a captured value each; *10mb* has small tables \
               of 10 MB in all. A snapshot of a Clef is a copy in memory, of the pages that the last message has changed, or of everything; its restore \
               is from memory, too, and ends with the answer to a first message. `torpor checkpoint` and CRIU capture the process of Debian's \
               `lua5.4` with the same program, to a disk. *connections* is a server with 100 clients, which stay connected.",
        tables: &[
            programs("Snapshot, µs (Alto, figure 2)", "snapshot", 1.0, SNAPSHOTS),
            programs("Restore with a first message, µs (Alto, figure 3)", "restore_first_message", 1.0, RESTORES),
            programs("Pages of a snapshot", "snapshot_pages", 1.0, SNAPSHOTS),
            programs(
                "A state with an open file in memory, out to the disk and back in, µs (Alto, figure 4)",
                "out_and_in",
                1.0,
                FILES,
            ),
            Table {
                heading: "From a message to its answer, with the state on disk, µs",
                lines: Lines::Metrics(Some("counter"), REPLY_LINES),
                columns: REPLIES,
            },
            Table {
                heading: "A counter for each of 1,000 users",
                lines: Lines::Metrics(Some("counter"), COUNTER_LINES),
                columns: COUNTERS,
            },
            metrics("Many Clefs", CLEF_LINES, CLEFS),
        ],
        notes: "The time of a snapshot does not include the message before it, whose writes are slower because they are watched: that is in the \
                time of the durable answer. `torpor checkpoint` syncs its image, CRIU does not; times of both include their \
                commands. CRIU locks connections with nftables, as Torpor does.\n\n\
                Counters of Clefs and of Node.js answer HTTP, redis its own protocol; the client is the same, on the same CPUs as the server, with one request at \
                a time on each connection. *Durable* counters are on disk before they are told: redis with `appendfsync always`, \
                Clefs by default. *In memory*: redis with `appendfsync no`, Clefs with `--durability none`, and Node.js, which \
                loses its counters when it ends. A request to a Clef that sleeps wakes it, puts another one to sleep, and is answered when \
                its state is on disk.\n\n\
                Memory of idle Clefs is that of the process with its page tables, after an empty program has answered once and was stored. That \
                of sleeping ones is all that a store keeps in memory; what it stores for each is smaller here than a state, and not in \
                memory.",
    },
];
