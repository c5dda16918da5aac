//! Random histories of an app that sleeps and wakes, with a model of its memory: whatever is written behind what, trimmed, folded or killed
//! in between, each page that the app needs is in the image that has to have it.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use proptest::prelude::*;
use torpor_image::{
    Content, Epoch, HEADER_BYTES, Header, Kind, LoadingPart, PAGE, Process, Region, State, Thread, VERSION, checksum,
};

use crate::fold::Fold;
use crate::steps::tests::{die_after, restart};
use crate::{Contents, Durability, Image, ImageFile, Owner, Partial, Store};

const PAGES: usize = 96;
const START: u64 = 0x10_0000;
/// Two areas that touch each other: no region may reach into both.
const BORDER: usize = 40;
const OWNER: Owner = Owner { app: 0, epoch: Epoch::FIRST, boot: [0; 2] };

/// Contents of the memory: a number for each page; 0 is a page of zeros.
type Memory = [u64; PAGES];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    /// It runs, and misses pages of the image if there is one.
    Awake,
    Dozing,
    Warm,
}

#[derive(Clone, Debug)]
enum Operation {
    /// Writes pages, while it runs.
    Write(Vec<usize>),
    /// Reads pages, while it runs.
    Read(Vec<usize>),
    Sleep,
    Wake,
    Backfill,
    Hibernate,
    Fold,
    /// From here on, after so many steps, whoever does this is killed; the next one goes on with what there is.
    Kill(u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    let pages = || {
        let one =
            (0..PAGES, 1..6_usize).prop_map(|(first, pages)| (first..(first + pages).min(PAGES)).collect::<Vec<_>>());
        prop::collection::vec(one, 1..6).prop_map(|runs| runs.concat())
    };
    prop_oneof![
        4 => pages().prop_map(Operation::Write),
        4 => pages().prop_map(Operation::Read),
        6 => Just(Operation::Sleep),
        6 => Just(Operation::Wake),
        1 => Just(Operation::Backfill),
        2 => Just(Operation::Hibernate),
        2 => Just(Operation::Fold),
        1 => (0..8_u64).prop_map(Operation::Kill),
    ]
}

struct App {
    store: Store,
    level: Level,
    memory: Memory,
    missing: [bool; PAGES],
    /// The image of its sleep, or that it misses pages of, and what that contains.
    image: Option<(Image, State)>,
    generation: u64,
    written: u64,
}

impl App {
    fn new(folder: &Path) -> Self {
        let store = Store::of_app(folder);
        Self {
            store,
            level: Level::Awake,
            memory: [0; PAGES],
            missing: [false; PAGES],
            image: None,
            generation: 0,
            written: 0,
        }
    }

    /// Does it if it is possible now. An error: whoever did it was killed.
    fn does(&mut self, operation: &Operation) -> std::io::Result<()> {
        match (operation, self.level) {
            (Operation::Write(pages), Level::Awake) => {
                for page in pages {
                    self.written += 1;
                    // Some pages become zeros.
                    self.memory[*page] = if self.written.is_multiple_of(9) { 0 } else { self.written };
                    self.missing[*page] = false;
                }
            }
            (Operation::Read(pages), Level::Awake) => pages.iter().for_each(|page| self.missing[*page] = false),
            (Operation::Sleep, Level::Awake) => self.captures(Kind::Dozing)?,
            (Operation::Hibernate, Level::Dozing) => {
                // Some of its memory comes back for that.
                self.missing = std::array::from_fn(|page| !page.is_multiple_of(7) && self.memory[page] != 0);
                self.captures(Kind::Complete)?;
            }
            (Operation::Wake, Level::Dozing) => self.runs(),
            (Operation::Wake, Level::Warm) => {
                self.image.as_ref().unwrap().0.consume()?;
                self.runs();
            }
            (Operation::Backfill, Level::Awake) => {
                self.missing = [false; PAGES];
                if let Some((image, _)) = self.image.take() {
                    image.remove()?;
                    image.remove_consumed()?;
                }
            }
            (Operation::Fold, Level::Dozing) => {
                let (image, state) = self.image.as_ref().unwrap();
                let address = |page: usize| START + page as u64 * PAGE;
                let areas = vec![(7, vec![address(0)..address(BORDER), address(BORDER)..address(PAGES)])];
                let folded = Fold::all(image, state, areas)?.expect("nobody gave it up");
                let (state, _) = folded.commit()?;
                self.image.as_mut().unwrap().1 = state;
            }
            _ => {}
        }
        Ok(())
    }

    fn runs(&mut self) {
        self.level = Level::Awake;
        self.missing = std::array::from_fn(|page| self.memory[page] != 0);
    }

    /// Writes an image: behind the one that it misses pages of, if it does.
    fn captures(&mut self, kind: Kind) -> std::io::Result<()> {
        self.generation += 1;
        let image = self.store.image(self.generation);
        let base = self.image.as_ref().filter(|_| self.missing.contains(&true));
        let partial = match base {
            Some((base, _)) => image.begin_behind(base)?,
            None => image.begin()?,
        };
        let state = self.write(&partial, kind, base.map(|(_, state)| state))?;
        let image = partial.commit(Durability::Processes).map_err(crate::CommitError::into_error)?;
        // The journal says so from here on.
        let old = self.image.replace((image, state));
        self.level = if kind == Kind::Dozing { Level::Dozing } else { Level::Warm };
        if let Some((old, _)) = old {
            old.remove()?;
            old.remove_consumed()?;
        }
        let (image, state) = self.image.as_ref().unwrap();
        let live = state.processes[0].regions.iter().filter_map(place);
        if let Some(trim) = image.trim(live)? {
            trim.run()?;
        }
        Ok(())
    }

    fn write(&self, partial: &Partial, kind: Kind, base: Option<&State>) -> std::io::Result<State> {
        let (file, mut at) = (partial.file(), partial.pages_at());
        let mut regions = Vec::new();
        for (page, number) in self.memory.iter().enumerate() {
            let start = START + page as u64 * PAGE;
            let bytes = contents(*number);
            let content = match (base, self.missing[page]) {
                _ if *number == 0 => Content::Zero,
                (Some(base), true) => {
                    let old = |region: &&Region| (region.start..region.start + region.bytes()).contains(&start);
                    let region = base.processes[0].regions.iter().find(old).unwrap();
                    let offset = place(region).unwrap().start + (start - region.start);
                    Content::Stored { offset, checksum: checksum(&bytes) }
                }
                _ => {
                    file.write_all_at(&bytes, at)?;
                    at += PAGE;
                    Content::Stored { offset: at - PAGE, checksum: checksum(&bytes) }
                }
            };
            regions.push(Region { start, pages: 1, writable: true, content });
        }
        let thread = Thread { tid: 7, registers: [0; 27], signal_mask: 0, wait: None };
        // The pages that were written last are needed first.
        let part = |cause: &str, range: Range<u64>| LoadingPart {
            cause: cause.to_owned(),
            start: range.start,
            end: range.end,
        };
        let own = partial.pages_at();
        let loading = vec![part("timer", own..own), part("", own..at)];
        let process = Process { pid: 7, start_ticks: 1, park_address: 0x7000, regions, threads: vec![thread] };
        let state = State { processes: vec![process], loading };
        let encoded = state.encode();
        let header = Header {
            version: VERSION,
            kind,
            generation: partial.generation(),
            pages_bytes: at - HEADER_BYTES,
            state_bytes: encoded.len() as u64,
            state_checksum: checksum(&encoded),
            ..Header::default()
        };
        file.write_all_at(&encoded, at)?;
        partial.finish(&header)?;
        Ok(state)
    }

    /// What the next one does who finds the files of one that was killed.
    fn recovers(&mut self) {
        // The journal names the image.
        let keep = self.image.as_ref().map(|(image, _)| image.generation());
        if let (Level::Warm, Some((image, _))) = (self.level, &self.image) {
            image.unconsume().unwrap();
        }
        self.generation = self.generation.max(self.store.clean(keep, OWNER).unwrap() - 1);
    }

    /// Reads what the app would be woken from, or misses.
    fn check(&mut self) {
        let Some((image, state)) = &mut self.image else { return assert!(!self.missing.contains(&true)) };
        let lease = image.open().or_else(|_| image.open_consumed()).unwrap();
        assert_eq!(lease.header().generation, image.generation());
        if self.level == Level::Dozing {
            let file = ImageFile::open_generation(image.path(), image.generation()).unwrap();
            file.verify(|_| {}).unwrap();
            let Contents::Dozing(found) = file.contents().unwrap() else { panic!("it is not of a dozing app") };
            // A fold may have ended just before whoever did it was killed.
            *state = found;
        }
        for region in &state.processes[0].regions {
            let first = ((region.start - START) / PAGE) as usize;
            let pages = first..first + region.pages as usize;
            assert!(pages.end <= BORDER || pages.start >= BORDER, "a region is in two areas");
            let Some(range) = place(region) else {
                assert!(pages.into_iter().all(|page| self.memory[page] == 0 || self.level == Level::Awake));
                continue;
            };
            let mut found = vec![0; region.bytes() as usize];
            lease.file().read_exact_at(&mut found, range.start).unwrap();
            for (page, bytes) in pages.zip(found.chunks(PAGE as usize)) {
                let needed = self.level != Level::Awake || self.missing[page];
                assert!(!needed || bytes == contents(self.memory[page]), "page {page} is not what it was");
            }
        }
    }
}

fn contents(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(PAGE as usize / 8)
}

fn place(region: &Region) -> Option<Range<u64>> {
    match region.content {
        Content::Zero => None,
        Content::Stored { offset, .. } => Some(offset..offset + region.bytes()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn in_any_history_no_page_is_lost(operations in prop::collection::vec(operation(), 1..80)) {
        let folder = super::folder();
        let mut app = App::new(folder.path());
        for operation in &operations {
            if let Operation::Kill(steps) = operation {
                die_after(*steps);
            }
            if app.does(operation).is_err() {
                restart();
                app.recovers();
            }
            app.check();
        }
        restart();
        // What is not needed has gone.
        app.recovers();
        prop_assert!(fs::read_dir(folder.path()).unwrap().count() <= 2);
    }
}
