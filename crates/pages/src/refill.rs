//! Bringing the pages of a dozing app back into its frozen processes.

use std::convert::Infallible;
use std::io;

use torpor_image::{FormatError, Process};

use super::buffer::Buffer;
use super::place::{PlaceError, Placement, Placer};
use super::source::{FetchError, PageSource, Stored};
