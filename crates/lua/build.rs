//! Compiles Lua, as its authors publish it, with some lines changed so that a heap holds no address of its process.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

// Its sources are compiled here; its own build compiles them as they are.
use lua_src as _;
use sha2::{Digest, Sha256};

/// Our own C, in the order of its names.
const OWN: [&str; 14] = [
    "all.c",
    "arena.h",
    "coroutines.c",
    "crypto.c",
    "files.c",
    "functions.c",
    "functions.h",
    "host.c",
    "io.c",
    "json.c",
    "libraries.c",
    "requests.c",
    "time.c",
    "values.c",
];

/// A line of Lua's source, and what is compiled in its place.
struct Edit {
    file: &'static str,
    line: &'static str,
    instead: &'static str,
}

/// Every line is there once. See `c/functions.h` for the numbers of functions, `c/arena.h` for the node.
const EDITS: [Edit; 27] = [
    Edit {
        file: "lapi.c",
        line: "  if (ttislcf(o)) return fvalue(o);",
        instead: "  if (ttislcf(o)) return torpor_decoded(fvalue(o));",
    },
    Edit { file: "lapi.c", line: "    return clCvalue(o)->f;", instead: "    return torpor_decoded(clCvalue(o)->f);" },
    Edit {
        file: "lapi.c",
        line: "    setfvalue(s2v(L->top.p), fn);",
        instead: "    setfvalue(s2v(L->top.p), torpor_encoded(fn));",
    },
    Edit { file: "lapi.c", line: "    cl->f = fn;", instead: "    cl->f = torpor_encoded(fn);" },
    Edit {
        file: "lapi.c",
        line: "    L->ci->u.c.k = k;  /* save continuation */",
        instead: "    L->ci->u.c.k = torpor_encoded_k(k);",
    },
    Edit {
        file: "lapi.c",
        line: "    ci->u.c.k = k;  /* save continuation */",
        instead: "    ci->u.c.k = torpor_encoded_k(k);",
    },
    // Functions of `table` call these as often as a metamethod `__len` says.
    Edit {
        file: "lapi.c",
        line: "LUA_API int lua_geti (lua_State *L, int idx, lua_Integer n) {",
        instead: "LUA_API int lua_geti (lua_State *L, int idx, lua_Integer n) {\n  torpor_check(L);",
    },
    Edit {
        file: "lapi.c",
        line: "LUA_API void lua_seti (lua_State *L, int idx, lua_Integer n) {",
        instead: "LUA_API void lua_seti (lua_State *L, int idx, lua_Integer n) {\n  torpor_check(L);",
    },
    // Nothing can be repeated without end.
    Edit { file: "lstrlib.c", line: "  if (n <= 0)", instead: "  if (n <= 0 || l + lsep == 0)" },
    // Patterns can take exponential time, searches quadratic time.
    Edit {
        file: "lstrlib.c",
        line: "  if (l_unlikely(ms->matchdepth-- == 0))",
        instead: "  torpor_check(ms->L);\n  if (l_unlikely(ms->matchdepth-- == 0))",
    },
    Edit {
        file: "lstrlib.c",
        line: "static int singlematch (MatchState *ms, const char *s, const char *p,\n                        const char *ep) {",
        instead: "static int singlematch (MatchState *ms, const char *s, const char *p,\n                        const char *ep) {\n  torpor_check(ms->L);",
    },
    Edit {
        file: "lstrlib.c",
        line: "    while (l1 > 0 && (init = (const char *)memchr(s1, *s2, l1)) != NULL) {",
        instead: "    while (l1 > 0 && !torpor_is_spent() && (init = (const char *)memchr(s1, *s2, l1)) != NULL) {",
    },
    // The compiler walks through lists of jumps, of labels and of enclosing functions' names for as many tokens as there are.
    Edit {
        file: "llex.c",
        line: "  ls->lastline = ls->linenumber;",
        instead: "  torpor_check(ls->L);\n  ls->lastline = ls->linenumber;",
    },
    Edit {
        file: "lcode.c",
        line: "static int getjump (FuncState *fs, int pc) {",
        instead: "static int getjump (FuncState *fs, int pc) {\n  torpor_check(fs->ls->L);",
    },
    Edit {
        file: "lparser.c",
        line: "  while (i < gl->n) {",
        instead: "  while (i < gl->n) {\n    torpor_check(ls->L);",
    },
    Edit {
        file: "lparser.c",
        line: "  for (i = bl->firstgoto; i < gl->n; i++) {  /* for each pending goto */",
        instead: "  for (i = bl->firstgoto; i < gl->n; i++) {\n    torpor_check(fs->ls->L);",
    },
    // What has had its time is not caught.
    Edit {
        file: "ldo.c",
        line: "  while (errorstatus(status) && (ci = findpcall(L)) != NULL) {",
        instead: "  while (errorstatus(status) && !torpor_arena(G(L))->spent && (ci = findpcall(L)) != NULL) {",
    },
    // Lua alone halves the list, which leaves a free one beside each that stays.
    Edit {
        file: "ldo.c",
        line: "  luaE_shrinkCI(L);  /* shrink CI list */",
        instead: "  luaE_shrinkCI(L);\n  torpor_shrink_calls(L);",
    },
    // Finalizers end in time, too.
    Edit { file: "lgc.c", line: "    L->allowhook = 0;  /* stop debug hooks during GC metamethod */", instead: "" },
    // A place holder, of which Lua leaves a copy behind the top of its stack: not the address of the buffer.
    Edit {
        file: "lauxlib.c",
        line: "  lua_pushlightuserdata(L, (void*)B);  /* push placeholder */",
        instead: "  lua_pushlightuserdata(L, NULL);",
    },
    // Buffers do without garbage before they fail, as all other memory of Lua's does.
    Edit {
        file: "lauxlib.c",
        line: "  void *temp = allocf(ud, box->box, box->bsize, newsize);",
        instead: "  void *temp = allocf(ud, box->box, box->bsize, newsize);\n  if (temp == NULL && newsize > 0 && !G(L)->gcstopem) {\n    luaC_fullgc(L, 1);\n    temp = allocf(ud, box->box, box->bsize, newsize);\n  }",
    },
    Edit {
        file: "ldo.c",
        line: "  n = (*f)(L);  /* do the actual call */",
        instead: "  torpor_check(L);\n  n = (*torpor_decoded(f))(L);",
    },
    Edit {
        file: "ldo.c",
        line: "    n = (*ci->u.c.k)(L, status, ci->u.c.ctx);  /* call continuation */",
        instead: "    n = (*torpor_decoded_k(ci->u.c.k))(L, status, ci->u.c.ctx);",
    },
    Edit {
        file: "ldo.c",
        line: "        n = (*ci->u.c.k)(L, LUA_YIELD, ci->u.c.ctx); /* call continuation */",
        instead: "        n = (*torpor_decoded_k(ci->u.c.k))(L, LUA_YIELD, ci->u.c.ctx);",
    },
    Edit {
        file: "ldo.c",
        line: "    if ((ci->u.c.k = k) != NULL)  /* is there a continuation? */",
        instead: "    if ((ci->u.c.k = torpor_encoded_k(k)) != NULL)",
    },
    Edit {
        file: "lmathlib.c",
        line: "  lua_Unsigned seed1 = (lua_Unsigned)time(NULL);",
        instead: "  lua_Unsigned seed1 = torpor_arena(G(L))->seed;",
    },
    Edit {
        file: "ltable.c",
        line: "#define dummynode\t\t(&dummynode_)",
        instead: "#define dummynode (torpor_arena(G(L))->dummy_node)",
    },
];

fn main() -> Result<(), Box<dyn Error>> {
    let sources = lua_sources()?;
    let out = PathBuf::from(env::var("OUT_DIR")?).join("lua");
    fs::create_dir_all(&out)?;
    let mut hash = Sha256::new();
    let mut names: Vec<_> =
        fs::read_dir(&sources)?.map(|entry| Ok(entry?.file_name())).collect::<Result<_, std::io::Error>>()?;
    names.sort();
    for name in names {
        let name = name.into_string().map_err(|_| "a name that is not UTF-8")?;
        if name.ends_with(".c") || name.ends_with(".h") {
            let text = edited(&name, fs::read_to_string(sources.join(&name))?)?;
            hash.update(&text);
            fs::write(out.join(&name), text)?;
        }
    }
    hash.update(env::var("TARGET")?);
    let own = OWN.iter().map(|name| Path::new("c").join(name));
    // What an arena looks like, too.
    let layout = ["arena", "image", "windows"].map(|name| Path::new("src").join(name).with_extension("rs"));
    for path in own.chain(layout) {
        hash.update(fs::read(&path)?);
        println!("cargo::rerun-if-changed={}", path.display());
    }
    println!("cargo::rerun-if-changed=build.rs");
    let build: String = hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    println!("cargo::rustc-env=TORPOR_LUA_BUILD={build}");
    cc::Build::new()
        .file("c/all.c")
        .include("c")
        .include(&out)
        .std("c11")
        .define("LUA_USE_POSIX", None)
        .flag("-D_GNU_SOURCE")
        .opt_level(2)
        .warnings(false)
        .compile("torpor_lua");
    Ok(())
}

fn edited(name: &str, mut text: String) -> Result<String, String> {
    for Edit { line, instead, .. } in EDITS.iter().filter(|edit| edit.file == name) {
        let (from, to) = (format!("\n{line}\n"), format!("\n{instead}\n"));
        if text.matches(&from).count() != 1 {
            return Err(format!("{name} does not have this line once: {line}"));
        }
        text = text.replace(&from, &to);
    }
    Ok(text)
}

/// Where cargo keeps the package.
fn lua_sources() -> Result<PathBuf, Box<dyn Error>> {
    let output = Command::new(env::var("CARGO")?)
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", &env::var("TARGET")?])
        .output()?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata: {error}: {}", String::from_utf8_lossy(&output.stderr)))?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let manifest =
        packages.filter(|package| package["name"] == "lua-src").find_map(|package| package["manifest_path"].as_str());
    let folder = manifest.and_then(|path| Path::new(path).parent()).ok_or("cargo metadata has no lua-src")?;
    let mut versions = fs::read_dir(folder)?.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let is_lua = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("lua-5.4."));
    Ok(versions.find(is_lua).ok_or("lua-src has no Lua 5.4")?)
}
