//! The modules of a crate, and which of them names what of which other.
//!
//! Names are resolved from tokens alone: `use` declarations (also those in functions), and paths in code that begin with
//! `crate`, `super`, `self`, a child module or an imported name. An item that a module re-exports belongs to the module that
//! defines it. What cannot be resolved (names of other crates, methods, what macros make) counts for nothing; test code neither.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::rust::is_test;
use super::tokens::{Token, tokens};
use super::tree::Tree;

/// How many re-exports a name may go through. A circle of re-exports ends here.
const REEXPORTS: usize = 16;

/// A module's path from the crate's root, which is empty.
pub(crate) type ModulePath = Vec<String>;

/// That a file names an item of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    pub(crate) file: PathBuf,
    pub(crate) line: usize,
    /// Modules of files; inline modules belong to their file's.
    pub(crate) from: ModulePath,
    pub(crate) to: ModulePath,
    /// The item, from the crate's root.
    pub(crate) name: String,
}

/// A module, which may be inline.
#[derive(Debug, Default)]
struct Module {
    file: PathBuf,
    inline: bool,
    /// Imported name → the path written after `use`.
    imports: BTreeMap<String, ModulePath>,
    /// Paths in front of `::*`.
    globs: Vec<ModulePath>,
    items: BTreeSet<String>,
    /// Lines and paths of all that it names.
    paths: Vec<(usize, ModulePath)>,
}

/// What a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Module(ModulePath),
    Item(ModulePath, String),
}

/// The modules of one crate.
#[derive(Debug, Default)]
pub(crate) struct Modules(BTreeMap<ModulePath, Module>);

impl Modules {
    /// Reads `folder/src`, without tests and without programs in `src/bin`.
    pub(crate) fn read(tree: &Tree, folder: &Path) -> Self {
        let src = folder.join("src");
        let library = tree.files.contains_key(&src.join("lib.rs"));
        let mut modules = Self::default();
        let mut tests = BTreeSet::new();
        for (file, source) in tree.with_extension("rs").filter(|(file, _)| file.starts_with(&src) && !is_test(file)) {
            let Ok(inside) = file.strip_prefix(&src) else { continue };
            if inside.starts_with("bin") || (library && inside == Path::new("main.rs")) {
                continue;
            }
            let path = module_path(inside);
            // Files that are no Rust are reported elsewhere.
            let tokens = tokens(source).unwrap_or_default();
            Reader { modules: &mut modules, tests: &mut tests, file, tokens: &tokens }.read(path);
        }
        modules.0.retain(|path, _| !tests.iter().any(|test: &ModulePath| path.starts_with(test)));
        modules
    }

    /// Everything that a file names of another one.
    pub(crate) fn references(&self) -> Vec<Reference> {
        let mut found = Vec::new();
        for (path, module) in &self.0 {
            let from = self.file_module(path);
            for (line, written) in &module.paths {
                let Some(target) = self.resolve(path, written, REEXPORTS) else { continue };
                let (to, name) = match target {
                    Target::Module(to) => (to.clone(), to.join("::")),
                    Target::Item(to, item) => (to.clone(), [to, vec![item]].concat().join("::")),
                };
                let to = self.file_module(&to);
                if from != to {
                    found.push(Reference { file: module.file.clone(), line: *line, from: from.clone(), to, name });
                }
            }
        }
        found
    }

    /// The module of the file that `path` stands in.
    fn file_module(&self, path: &[String]) -> ModulePath {
        let inline = |path: &[String]| self.0.get(path).is_some_and(|module| module.inline);
        let mut path = path;
        while inline(path) {
            path = &path[..path.len() - 1];
        }
        path.to_owned()
    }

    /// What `written` means in the module `at`.
    fn resolve(&self, at: &[String], written: &[String], left: usize) -> Option<Target> {
        let (first, rest) = written.split_first()?;
        match first.as_str() {
            "crate" => self.walk(Vec::new(), rest, left),
            "self" => self.walk(at.to_owned(), rest, left),
            "super" => {
                let mut module = at.to_owned();
                let mut rest = written;
                while let Some(("super", after)) = rest.split_first().map(|(first, rest)| (first.as_str(), rest)) {
                    module.pop()?;
                    rest = after;
                }
                self.walk(module, rest, left)
            }
            // An import of a name by itself (`use serde;`, `use Kind::A` after `use crate::Kind`) is another crate's or found below.
            name => {
                let known = self.child(at, name).is_some()
                    || self.0.get(at)?.imports.get(name).is_some_and(|path| path != written);
                if known { self.walk(at.to_owned(), written, left) } else { self.through_globs(at, written, left) }
            }
        }
    }

    fn child(&self, at: &[String], name: &str) -> Option<ModulePath> {
        let child = [at, &[name.to_owned()]].concat();
        self.0.contains_key(&child).then_some(child)
    }

    /// Follows `rest` from a module downwards and through re-exports.
    fn walk(&self, mut at: ModulePath, mut rest: &[String], left: usize) -> Option<Target> {
        while let Some((name, after)) = rest.split_first() {
            let module = self.0.get(&at)?;
            if let Some(child) = self.child(&at, name) {
                at = child;
            } else if let Some(import) = module.imports.get(name) {
                match self.resolve(&at, import, left.checked_sub(1)?)? {
                    Target::Module(found) => at = found,
                    item @ Target::Item(..) => return Some(item),
                }
            } else if module.items.contains(name) {
                return Some(Target::Item(at, name.clone()));
            } else {
                let found = self.through_globs(&at, rest, left);
                return Some(found.unwrap_or_else(|| Target::Item(at, name.clone())));
            }
            rest = after;
        }
        Some(Target::Module(at))
    }

    /// What `rest` means in the modules whose names `at` has all imported.
    fn through_globs(&self, at: &[String], rest: &[String], left: usize) -> Option<Target> {
        let left = left.checked_sub(1)?;
        let name = rest.first()?;
        self.0.get(at)?.globs.iter().find_map(|glob| {
            let Target::Module(module) = self.resolve(at, glob, left)? else { return None };
            let own = self.0.get(&module)?;
            let has = own.items.contains(name) || own.imports.contains_key(name) || self.child(&module, name).is_some();
            if has { self.walk(module, rest, left) } else { self.through_globs(&module, rest, left) }
        })
    }
}

/// The path of a file without its ending, `mod` or the root's name.
fn module_path(inside: &Path) -> ModulePath {
    let mut path: ModulePath =
        inside.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let last = path.last().map_or("", String::as_str);
    if last == "mod" || (path.len() == 1 && (last == "lib" || last == "main")) {
        path.pop();
    }
    path
}

/// Reads one file.
struct Reader<'a> {
    modules: &'a mut Modules,
    /// Modules that only tests have.
    tests: &'a mut BTreeSet<ModulePath>,
    file: &'a Path,
    tokens: &'a [Token],
}

impl Reader<'_> {
    fn read(&mut self, path: ModulePath) {
        self.enter(&path, false);
        // Modules that are open, with the depth of braces in them.
        let mut open = vec![path];
        let mut depths = vec![0];
        let mut depth = 0;
        let mut at = 0;
        while at < self.tokens.len() {
            let Token { text, line, test } = &self.tokens[at];
            let module = open.last().cloned().unwrap_or_default();
            let outermost = depths.last() == Some(&depth);
            match text.as_str() {
                "{" => depth += 1,
                "}" => {
                    depth -= 1;
                    if depths.last().is_some_and(|own| *own > depth) {
                        depths.pop();
                        open.pop();
                    }
                }
                "mod" if self.text(at + 2) == "{" || self.text(at + 2) == ";" => {
                    let child = [module, vec![self.text(at + 1).to_owned()]].concat();
                    if *test {
                        self.tests.insert(child.clone());
                    }
                    if self.text(at + 2) == "{" {
                        self.enter(&child, true);
                        depth += 1;
                        depths.push(depth);
                        open.push(child);
                    }
                    at += 2;
                }
                _ if *test => {}
                "use" if self.text(at + 1) != "<" => {
                    let mut declared = Vec::new();
                    let end = self.use_tree(at + 1, &Vec::new(), &mut declared);
                    declared.into_iter().for_each(|used| self.declare(&module, *line, used));
                    at = end;
                }
                "fn" | "struct" | "enum" | "trait" | "type" | "const" | "static" | "union" if outermost => {
                    let name =
                        if self.text(at + 1) == "mut" { self.text(at + 2) } else { self.text(at + 1) }.to_owned();
                    self.of(&module).items.insert(name);
                }
                "macro_rules" if outermost => {
                    let name = self.text(at + 2).to_owned();
                    self.of(&module).items.insert(name);
                }
                _ if self.begins_path(at) => {
                    let mut path = vec![text.clone()];
                    while self.is_colons(at + 1) && is_name(self.text(at + 3)) {
                        path.push(self.text(at + 3).to_owned());
                        at += 3;
                    }
                    self.of(&module).paths.push((*line, path));
                }
                _ => {}
            }
            at += 1;
        }
    }

    fn enter(&mut self, path: &ModulePath, inline: bool) {
        let module = self.modules.0.entry(path.clone()).or_default();
        (module.file, module.inline) = (self.file.to_owned(), inline);
    }

    fn of(&mut self, path: &ModulePath) -> &mut Module {
        self.modules.0.entry(path.clone()).or_default()
    }

    fn text(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", |token| token.text.as_str())
    }

    fn is_colons(&self, at: usize) -> bool {
        self.text(at) == ":" && self.text(at + 1) == ":"
    }

    /// A name with `::` behind it and none in front.
    fn begins_path(&self, at: usize) -> bool {
        let continued = at >= 2 && self.is_colons(at - 2);
        is_name(self.text(at)) && self.is_colons(at + 1) && !continued
    }

    /// Reads a `use` tree that begins at `at`; the place of the token that ends it.
    fn use_tree(&self, mut at: usize, prefix: &ModulePath, out: &mut Vec<Used>) -> usize {
        let mut path = prefix.clone();
        loop {
            match self.text(at) {
                "{" => {
                    at += 1;
                    while self.text(at) != "}" && at < self.tokens.len() {
                        at = self.use_tree(at, &path, out);
                        at += usize::from(self.text(at) == ",");
                    }
                    return at + 1;
                }
                "*" => {
                    out.push(Used { path, name: None, glob: true });
                    return at + 1;
                }
                ":" => at += 1,
                "as" => {
                    let name = self.text(at + 1).to_owned();
                    out.push(Used { path, name: Some(name).filter(|name| name != "_"), glob: false });
                    return at + 2;
                }
                "self" if !path.is_empty() => at += 1,
                name if is_name(name) => {
                    path.push(name.to_owned());
                    at += 1;
                }
                _ => {
                    let name = path.last().cloned();
                    out.push(Used { path, name, glob: false });
                    return at;
                }
            }
        }
    }

    fn declare(&mut self, module: &ModulePath, line: usize, used: Used) {
        let Used { path, name, glob } = used;
        let module = self.of(module);
        module.paths.push((line, path.clone()));
        if glob {
            module.globs.push(path);
        } else if let Some(name) = name {
            module.imports.insert(name, path);
        }
    }
}

/// One path of a `use` declaration.
struct Used {
    path: ModulePath,
    /// What it is called here.
    name: Option<String>,
    glob: bool,
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_') && text != "as"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `from → item` of a crate with these files.
    fn named(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<(String, &str)> =
            files.iter().map(|(path, text)| (format!("crates/a/src/{path}"), *text)).collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let references = Modules::read(&Tree::of(&files), Path::new("crates/a")).references();
        let mut named: Vec<String> =
            references.iter().map(|found| format!("{} → {}", found.from.join("::"), found.name)).collect();
        named.sort();
        named.dedup();
        named
    }

    #[test]
    fn imports_and_paths_are_followed() {
        let b = "use crate::c::{self, D as E, inner::*};\nuse std::fs;\nuse super::{f::G, h};\n\
                 fn x() { c::y(); h::i::j(); super::k::l(); fs::read(); E::new(); z.c(); Deep::m(); }\n";
        let found = named(&[
            ("lib.rs", "mod b; mod c; mod f; mod h; mod k;"),
            ("b.rs", b),
            ("c/mod.rs", "pub struct D; pub fn y() {} pub mod inner;"),
            ("c/inner.rs", "pub struct Deep;"),
            ("f.rs", "pub struct G;"),
            ("h/mod.rs", "pub mod i;"),
            ("h/i.rs", "pub fn j() {}"),
            ("k.rs", "pub fn l() {}"),
        ]);
        let wanted = ["c", "c::D", "c::inner", "c::inner::Deep", "c::y", "f::G", "h", "h::i::j", "k::l"];
        assert_eq!(found, wanted.map(|name| format!("b → {name}")));
    }

    #[test]
    fn what_is_exported_again_is_its_definer_s() {
        let found = named(&[
            ("lib.rs", "mod error; mod b; mod c; pub use error::Error; pub(crate) use c::*;"),
            ("error.rs", "pub struct Error;"),
            ("c/mod.rs", "mod d; pub use d::D;"),
            ("c/d.rs", "pub struct D;"),
            ("b.rs", "use crate::{Error, D};"),
        ]);
        assert!(found.contains(&"b → error::Error".to_owned()), "{found:?}");
        assert!(found.contains(&"b → c::d::D".to_owned()), "{found:?}");
    }

    #[test]
    fn tests_inline_modules_and_circles_of_exports_are_no_trouble() {
        let b = "#[cfg(test)]\nmod checks;\n#[cfg(test)]\nmod tests { use crate::c::X; }\nmod inline { use super::super::c::Y; }\n\
                 fn f() {}\n";
        let found = named(&[
            ("main.rs", "mod b; mod c;"),
            ("b/mod.rs", b),
            ("b/checks.rs", "use crate::c::Z;"),
            ("b/tests.rs", "use crate::c::Z;"),
            ("c.rs", "pub use crate::c::Y;"),
        ]);
        assert_eq!(found, [""; 0]);
        let found =
            named(&[("lib.rs", ""), ("b.rs", "mod inline { use super::super::c::Y; }"), ("c.rs", "pub struct Y;")]);
        assert_eq!(found, ["b → c::Y"]);
    }
}
