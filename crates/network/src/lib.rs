//! Addresses, veth pairs, published ports and packet counts of apps.
#![forbid(unsafe_code)]
