//! What the real server does when it is killed, when its disk is full, when its file is lost, and
//! when calls end at the worst moment.
//!
//! [`server`] starts and kills it, [`client`] calls it, [`history`] judges what it answered. The
//! other rooms each cause one kind of fault. Under the `soak` feature they run for longer.

#![cfg(feature = "embedded")]

#[path = "../common/asks.rs"]
mod asks;
#[path = "../common/calls.rs"]
mod calls;
mod client;
mod crash;
mod dice;
mod disk;
mod history;
mod load;
mod lost;
mod paused;
mod races;
mod server;
mod several;
#[path = "../common/small_disk.rs"]
mod small_disk;
mod storm;
