//! The sides of a comparison, and what one turn of a side gave.

use std::any::Any;
use std::future::Future;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::Failure;
use crate::process::{self, Server};

/// One turn of a side.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    pub round: usize,
    pub callers: usize,
    /// Whether all want one lock, instead of one each.
    pub hot: bool,
    pub time: Duration,
}

/// One caller in a turn.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Its number among the callers of the turn.
    pub number: usize,
    /// The lock that it wants. No two sides or rounds share one: stores may walk past what a lock has left.
    pub lock: String,
    pub until: Instant,
}

impl Turn {
    /// Runs `call` for each caller, and counts what they did together.
    pub async fn all<F>(self, side: &str, call: impl Fn(Caller) -> F) -> usize
    where
        F: Future<Output = usize> + Send + 'static,
    {
        let until = Instant::now() + self.time;
        let callers = (0..self.callers).map(|number| {
            let lock = self.lock(side, number);
            tokio::spawn(call(Caller { number, lock, until }))
        });
        let done = futures::future::join_all(callers.collect::<Vec<_>>()).await;
        done.into_iter().map(|done| done.expect("no panic")).sum()
    }

    /// The lock of a caller.
    pub fn lock(self, side: &str, number: usize) -> String {
        let Self {
            round, callers, hot, ..
        } = self;
        let number = if hot { "hot".to_owned() } else { number.to_string() };
        format!("{side}.{callers}.{round}.{number}")
    }
}

type Run = Box<dyn Fn(Turn) -> BoxFuture<'static, Result<usize, Failure>>>;

/// One side: who takes locks and releases them.
pub struct Side {
    pub name: &'static str,
    run: Run,
    /// Whether it takes part with locks of their own, and with a hot one.
    takes: [bool; 2],
}

impl Side {
    pub fn new<F>(name: &'static str, run: impl Fn(Turn) -> F + 'static) -> Self
    where
        F: Future<Output = Result<usize, Failure>> + Send + 'static,
    {
        Self {
            name,
            run: Box::new(move |turn| run(turn).boxed()),
            takes: [true, true],
        }
    }

    /// A side that has no hot lock.
    pub fn only_own(mut self) -> Self {
        self.takes = [true, false];
        self
    }

    /// A side that has a hot lock alone.
    pub fn only_hot(mut self) -> Self {
        self.takes = [false, true];
        self
    }

    pub fn takes(&self, hot: bool) -> bool {
        self.takes[usize::from(hot)]
    }
}

/// What must be reached.
pub struct Bound {
    pub callers: usize,
    pub hot: bool,
    pub side: &'static str,
    pub figure: Figure,
}

/// A figure of a side that is judged.
#[derive(Debug, Clone, Copy)]
pub enum Figure {
    /// At least so many times the rate of another side.
    Beside(&'static str, f64),
    /// At least so many a second.
    Rate(f64),
    /// At most such a part of the CPU time that another side costs the store for each.
    StoreCpu(&'static str, f64),
    /// At most so many of what the store counts for each.
    Counted(f64),
}

/// What a store has counted by now.
pub type Count = Box<dyn Fn() -> u64>;

/// All about one store.
pub struct Bench {
    /// The store, in words.
    pub what: String,
    /// The server over it.
    pub server: Server,
    pub sides: Vec<Side>,
    /// The CPU time that the store has used.
    pub store_cpu: Box<dyn Fn() -> Duration>,
    /// What it counts itself, in words, and the count.
    pub count: Option<(&'static str, Count)>,
    /// How many bytes its table of locks takes, if it has one.
    pub size: Option<Count>,
    pub bounds: Vec<Bound>,
    /// What ends with this.
    #[expect(dead_code, reason = "it is only dropped")]
    pub servers: Box<dyn Any>,
}

/// What the turns of a side gave, one value for each.
pub struct Row<'a> {
    pub side: &'a Side,
    pub rates: Vec<f64>,
    /// Microseconds for each of this process, of the server and of the store.
    pub cpu: [Vec<f64>; 3],
    pub counts: Vec<f64>,
}

impl<'a> Row<'a> {
    pub fn of(side: &'a Side) -> Self {
        Self {
            side,
            rates: Vec::new(),
            cpu: Default::default(),
            counts: Vec::new(),
        }
    }

    /// Runs one turn, and returns how often it was done.
    pub async fn measure(&mut self, bench: &Bench, turn: Turn) -> Result<usize, Failure> {
        let cpu = || [process::own_cpu(), bench.server.cpu(), (bench.store_cpu)()];
        let count = || bench.count.as_ref().map_or(0, |(_, count)| count());
        let (counted, before, began) = (count(), cpu(), Instant::now());
        let all = (self.side.run)(turn).await?;
        let done = all as f64;
        let (took, after) = (began.elapsed(), cpu());
        self.rates.push(done / took.as_secs_f64());
        for ((each, before), after) in self.cpu.iter_mut().zip(before).zip(after) {
            each.push((after.saturating_sub(before)).as_secs_f64() * 1e6 / done);
        }
        self.counts.push((count() - counted) as f64 / done);
        Ok(all)
    }
}
