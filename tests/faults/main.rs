//! What the real server does when it is killed, when its disk is full, when its file is lost, and
//! when calls end at the worst moment.
//!
//! [`server`] starts and kills it, [`client`] calls it, [`history`] judges what it answered. The
//! other rooms each cause one kind of fault. Under the `soak` feature they run for longer.

#![cfg(feature = "embedded")]

use common::{asks, calls, small_disk};

mod client;
mod crash;
mod disk;
mod history;
mod load;
mod lost;
mod paused;
mod races;
mod server;
mod several;
mod storm;
