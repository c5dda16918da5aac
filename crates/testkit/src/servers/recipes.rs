//! What is in each program's tarball.

use std::path::Path;
use std::process::Command;

use super::cache::{cached, key};
use super::debian::{self, Extract, Tree};
use super::tarball::{self, Overlay, skeleton};
use super::{Check, Program, Transport};
use crate::client::clamav;
use crate::error::{Error, run};

/// Changes whenever the way of extracting does, so that old tarballs are not taken for new ones.
const RECIPES_VERSION: &[u8] = b"1";

pub(super) const HTTP: u16 = 8000;
pub(super) const CLAMD: &str = "/usr/sbin/clamd --config-file=/etc/servers/clamd.conf";
pub(super) const CLAMD_CONF: &str = include_str!("../../servers/clamd.conf");
pub(super) const CLAMD_PORT: u16 = 3310;
const PAGE: &str = "<!doctype html><title>torpor</title><p>awake\n";

/// A program from the tree, before it is extracted.
pub(super) struct Recipe {
    program: Program,
    packages: &'static [&'static str],
    data: &'static [&'static str],
    without: &'static [&'static str],
    overlays: Vec<Overlay>,
}

fn words(command: &str) -> Vec<String> {
    command.split_whitespace().map(str::to_owned).collect()
}

pub(super) fn recipe(name: &'static str, command: &str, port: u16, check: Check) -> Recipe {
    let program = Program {
        name,
        tarball: std::path::PathBuf::new(),
        command: words(command),
        user: None,
        ports: vec![(port, Transport::Tcp)],
        check,
    };
    Recipe {
        program,
        packages: &[],
        data: &[],
        without: &[],
        overlays: vec![Overlay::directory("/etc/servers", 0o755)],
    }
}

impl Recipe {
    pub(super) fn packages(mut self, packages: &'static [&'static str]) -> Self {
        self.packages = packages;
        self
    }

    fn data(mut self, data: &'static [&'static str]) -> Self {
        self.data = data;
        self
    }

    pub(super) fn without(mut self, without: &'static [&'static str]) -> Self {
        self.without = without;
        self
    }

    pub(super) fn file(mut self, path: &str, content: impl Into<Vec<u8>>) -> Self {
        self.overlays.push(Overlay::file(path, content));
        self
    }

    fn directory(mut self, path: &str, mode: u32) -> Self {
        self.overlays.push(Overlay::directory(path, mode));
        self
    }

    fn user(mut self, user: &'static str) -> Self {
        self.program.user = Some(user);
        self
    }

    fn ports(mut self, ports: &[(u16, Transport)]) -> Self {
        self.program.ports = ports.to_vec();
        self
    }

    pub(super) fn extract(mut self, tree: &Tree) -> Result<Program, Error> {
        let mut parts: Vec<Vec<u8>> = vec![RECIPES_VERSION.to_vec(), tree.name().into_bytes()];
        for list in [self.packages, self.data, self.without] {
            parts.push(list.join("\n").into_bytes());
        }
        for overlay in &self.overlays {
            parts.push(format!("{} {:o}", overlay.path, overlay.mode).into_bytes());
            parts.push(overlay.content.clone().unwrap_or_default());
        }
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let extract =
            Extract { packages: self.packages, data: self.data, without: self.without, overlays: &self.overlays };
        let name = self.program.name;
        self.program.tarball = cached(name, &key(&parts), ".tar", |out| tree.extract(&extract, out))?;
        Ok(self.program)
    }
}

/// Servers from packages.
fn servers(tree: &Tree) -> Result<Vec<Recipe>, Error> {
    let postgres = tree.find("/bin/postgres")?;
    let version = postgres.split('/').nth_back(2).unwrap_or_default();
    let postgres =
        format!("{postgres} -D /var/lib/postgresql/{version}/main -c config_file=/etc/servers/postgresql.conf");
    let mariadb = "/usr/sbin/mariadbd --no-defaults --user=mysql --datadir=/var/lib/mysql --skip-grant-tables \
                   --bind-address=0.0.0.0 --port=3306 --socket=/tmp/mysqld.sock --pid-file=/tmp/mysqld.pid \
                   --performance-schema=off --innodb-log-file-size=4M --innodb-buffer-pool-size=16M \
                   --wait-timeout=86400";
    let redis = "/usr/bin/redis-server /etc/servers/redis.conf";
    Ok(vec![
        recipe("lighttpd", "/usr/sbin/lighttpd -D -f /etc/servers/lighttpd.conf", 80, Check::LighttpdStatus)
            .packages(&["lighttpd"])
            .file("/etc/servers/lighttpd.conf", include_str!("../../servers/lighttpd.conf"))
            .file("/var/www/html/index.html", PAGE),
        recipe("nginx", "/usr/sbin/nginx -c /etc/servers/nginx.conf", 80, Check::NginxStatus)
            .packages(&["nginx"])
            .file("/etc/servers/nginx.conf", include_str!("../../servers/nginx.conf"))
            .file("/var/www/html/index.html", PAGE),
        recipe("bind", "/usr/sbin/named -g -u bind -c /etc/servers/named.conf", 53, Check::DnsCookie)
            .packages(&["bind9"])
            .ports(&[(53, Transport::Udp), (53, Transport::Tcp)])
            .file("/etc/servers/named.conf", include_str!("../../servers/named.conf"))
            .file("/etc/servers/servers.test.zone", include_str!("../../servers/servers.test.zone")),
        recipe("postfix", "/usr/sbin/postfix -c /etc/servers start-fg", 25, Check::SmtpSession)
            .packages(&["postfix", "diffutils", "findutils", "grep", "mawk", "sed"])
            .data(&["/var/spool/postfix", "/var/lib/postfix"])
            .file("/etc/servers/main.cf", include_str!("../../servers/main.cf"))
            .file("/etc/servers/master.cf", include_str!("../../servers/master.cf"))
            .directory("/srv/mail/open", 0o777)
            .directory("/srv/mail/shut", 0o755),
        recipe("clamav", CLAMD, CLAMD_PORT, Check::ClamSession)
            .packages(&["clamav-daemon"])
            .file("/etc/servers/clamd.conf", CLAMD_CONF)
            .file("/etc/servers/signatures/servers.ndb", clamav::signatures()),
        recipe("redis", redis, 6379, Check::RedisKey)
            .packages(&["redis-server"])
            .user("redis")
            .file("/etc/servers/redis.conf", include_str!("../../servers/redis.conf")),
        recipe("mariadb", mariadb, 3306, Check::MariaDbSession)
            .packages(&["mariadb-server"])
            .data(&["/var/lib/mysql/"])
            .without(&["/usr/bin/aria_", "/usr/bin/mariadb", "/usr/bin/my", "/usr/lib/mysql/plugin/ha_"]),
        recipe("postgres", &postgres, 5432, Check::PostgresSession)
            .packages(&["postgresql"])
            .data(&["/var/lib/postgresql/"])
            // Needed only with jit=on.
            .without(&["/usr/lib/x86_64-linux-gnu/libLLVM", "/usr/lib/x86_64-linux-gnu/libz3"])
            .user("postgres")
            .file("/etc/servers/postgresql.conf", include_str!("../../servers/postgresql.conf"))
            .file("/etc/servers/pg_hba.conf", "host all all 0.0.0.0/0 trust\nlocal all all trust\n")
            .file("/etc/servers/pg_ident.conf", ""),
        recipe("python", &format!("/usr/bin/python3 /srv/counter.py {HTTP}"), HTTP, Check::Counter)
            .packages(&["python3"])
            .file("/srv/counter.py", include_str!("../../servers/counter.py")),
        recipe("node", &format!("/usr/bin/node /srv/counter.js {HTTP}"), HTTP, Check::Counter)
            .packages(&["nodejs"])
            .file("/srv/counter.js", include_str!("../../servers/counter.js")),
    ])
}

/// Compiles the counter in Java with the machine's compiler, for any Java from 11 on.
fn java(tree: &Tree) -> Result<Recipe, Error> {
    let source = include_str!("../../servers/Counter.java");
    let class = cached("counter-java", &key(&[source.as_bytes()]), ".class", |out| {
        let dir = tempfile::tempdir().map_err(Error::file("make a directory in", std::env::temp_dir()))?;
        let file = dir.path().join("Counter.java");
        std::fs::write(&file, source).map_err(Error::file("write", &file))?;
        let mut command = Command::new("javac");
        command.args(["--release", "11", "-d"]).arg(dir.path()).arg(&file);
        run(&mut command, "install the package default-jdk-headless")?;
        let class = dir.path().join("Counter.class");
        std::fs::copy(&class, out).map(drop).map_err(Error::file("copy", class))
    })?;
    let class = std::fs::read(&class).map_err(Error::file("read", class))?;
    let java = tree.find("/bin/java")?;
    let command =
        format!("{java} -Xshare:auto -Xmx64m -Dsun.net.httpserver.idleInterval=86400 -cp /srv Counter {HTTP}");
    let recipe = recipe("java", &command, HTTP, Check::Counter);
    Ok(recipe.packages(&["default-jre-headless"]).file("/srv/Counter.class", class))
}

/// Compiles the counter in Go with the machine's compiler, static, and puts it alone into a tarball.
fn go() -> Result<Program, Error> {
    let source = include_str!("../../servers/counter.go");
    let tarball = cached("go", &key(&[RECIPES_VERSION, source.as_bytes()]), ".tar", |out| {
        let dir = tempfile::tempdir().map_err(Error::file("make a directory in", std::env::temp_dir()))?;
        let file = dir.path().join("counter.go");
        std::fs::write(&file, source).map_err(Error::file("write", &file))?;
        let program = dir.path().join("counter");
        let mut command = Command::new("go");
        command.args(["build", "-trimpath", "-o"]).arg(&program).arg(&file);
        command.current_dir(dir.path()).env("CGO_ENABLED", "0").env("GOFLAGS", "").env("GOTOOLCHAIN", "local");
        run(&mut command, "install the package golang-go")?;
        let mut overlays = skeleton();
        let content = std::fs::read(&program).map_err(Error::file("read", &program))?;
        overlays.push(Overlay::program("/bin/counter", content));
        tarball::write(out, &overlays)
    })?;
    let recipe = recipe("go", &format!("/bin/counter {HTTP}"), HTTP, Check::Counter);
    Ok(Program { tarball, ..recipe.program })
}

/// Builds what is missing.
pub(super) fn build() -> Result<Vec<Program>, Error> {
    let tree = Tree::open(&debian::TESTS)?;
    let mut recipes = servers(&tree)?;
    recipes.push(java(&tree)?);
    let mut programs = recipes.into_iter().map(|recipe| recipe.extract(&tree)).collect::<Result<Vec<_>, _>>()?;
    programs.push(go()?);
    Ok(programs)
}

/// A tarball with one static program at `/bin/NAME`.
pub(crate) fn static_tarball(name: &str, program: &Path) -> Result<std::path::PathBuf, Error> {
    let content = std::fs::read(program).map_err(Error::file("read", program))?;
    let mut overlays = skeleton();
    let key = key(&[RECIPES_VERSION, &content]);
    overlays.push(Overlay::program(&format!("/bin/{name}"), content));
    cached(name, &key, ".tar", |out| tarball::write(out, &overlays))
}
