//! What a state consists of: the nodes of one lock, the calls of the replicas, their clients.

/// The most calls, and claims, of a world.
pub const CALLS: usize = 4;
pub const CLAIMS: usize = 3;
/// No call.
pub const NOBODY: usize = CALLS;

/// A node `h`: it is there, a later call has adopted it, its version, its token (the zxid of its grant, which names
/// its path too: no path is made twice).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Holder {
    pub is_there: bool,
    pub is_adopted: bool,
    pub version: u8,
    pub token: u8,
}

/// A node `q`: it is there, its session, its place in the queue, and when its claim came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Waiter {
    pub is_there: bool,
    pub session: u8,
    pub place: u8,
    pub arrival: u8,
}

/// The steps of a call, a release and a renewal. Each is one `multi`; the table in the module's documentation has its
/// conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Step {
    #[default]
    Nothing,
    AcquireFree,
    Enqueue,
    AcquireEmpty,
    Promote,
    AdoptWaiter,
    AdoptAndPromote,
    AdoptHolder,
    GrantAgain,
    MoveWaiter,
    RemoveTry,
    UndoWaiter,
    UndoHolder,
    Release,
    Renew,
    /// A flaw: it joins the holders without a place in the queue.
    Join,
}

impl Step {
    pub fn grants(self) -> bool {
        use Step::{AcquireEmpty, AcquireFree, AdoptAndPromote, GrantAgain, Promote};
        matches!(
            self,
            AcquireFree | AcquireEmpty | Promote | AdoptAndPromote | GrantAgain
        )
    }

    pub fn is_undo(self) -> bool {
        matches!(self, Self::UndoWaiter | Self::UndoHolder)
    }
}

/// A `multi`: its step, under which session, sent before the fence was raised, about the node of which call, at which
/// path and version; and whom it promotes besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Multi {
    pub step: Step,
    pub session: u8,
    pub is_fenced: bool,
    pub target: u8,
    pub path: u8,
    pub version: u8,
    /// The next call plus one, and the path of its waiter.
    pub next: u8,
    pub next_path: u8,
}

impl Multi {
    pub fn is_some(&self) -> bool {
        self.step != Step::Nothing
    }

    pub fn next(&self) -> Option<usize> {
        (self.next > 0).then(|| usize::from(self.next) - 1)
    }
}

/// What the store answered a call's step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Holds,
    Waits,
    Removed,
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Stage {
    #[default]
    Idle,
    /// A step is under way.
    Sent,
    /// It is about to watch what is ahead of its waiter.
    SetsAWatch,
    Waits,
    /// A release that is under way promotes it.
    IsNext,
    /// It holds; its answer is not delivered.
    Holds,
    /// The outcome of a step is unknown.
    Unknown,
    Undo,
    Undoing,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Call {
    pub stage: Stage,
    pub sent: Multi,
    /// Steps that were given up and may still take effect.
    pub late: [Multi; 2],
    pub is_unknown: bool,
    /// A step of it that grants was not answered.
    pub is_in_doubt: bool,
    /// It was enqueued, in the session of this epoch.
    pub was_queued: bool,
    pub epoch: u8,
    /// What it holds: whose node, its token, at which version. Without a token its time was over before the answer.
    pub holder: u8,
    pub token: u8,
    pub version: u8,
    /// Its client asks elsewhere by now.
    pub is_abandoned: bool,
    pub watch: Watch,
    /// Flaw: a view from before its own place says that it is next.
    pub judged_early: bool,
    /// Flaw: it has looked, and raises the fence after that.
    pub looked_first: bool,
}

/// What a call watches: a waiter or a holder, by call and path, or all children of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Watch {
    #[default]
    Nothing,
    Waiter(u8, u8),
    Holder(u8, u8),
    Children,
}

/// How far a client's release is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Releasing {
    #[default]
    No,
    Sent,
    Done,
    Unknown,
}

/// The client of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Client {
    /// It is sure to hold: whose node, its token, by which version of it.
    pub believes: bool,
    pub holder: u8,
    pub token: u8,
    pub version: u8,
    pub was_answered: bool,
    pub releasing: Releasing,
    pub release: Multi,
    pub late_release: Multi,
    pub release_retries: u8,
    pub renewal: Multi,
    pub late_renewal: Multi,
    pub renewals: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Replica {
    pub is_up: bool,
    /// It has its second session.
    pub epoch: u8,
    /// By holder: the version that it watches, plus one.
    pub watched: [u8; CALLS],
    /// An expiry under way: whose node plus one, its path and version.
    pub expires: u8,
    pub expires_path: u8,
    pub expires_version: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct State {
    /// The lock's node is there.
    pub is_used: bool,
    pub holders: [Holder; CALLS],
    pub waiters: [Waiter; CALLS],
    /// Bit by claim: its request's node says that it has ended.
    pub ended: u8,
    /// Bit by session: it lives; its fence is there.
    pub sessions: u8,
    pub fences: u8,
    pub calls: [Call; CALLS],
    pub clients: [Client; CLAIMS],
    pub replicas: [Replica; 2],
    /// By holder: versions (plus one) up to which everything that rests on them has ended.
    pub over: [u8; CALLS],
    pub last_token: u8,
    /// Bit by call: it was answered that it has left.
    pub left: u8,
    pub crashes: u8,
    pub expired: u8,
    pub switched: u8,
    pub forced: u8,
    /// What went wrong on the way here.
    pub wrong: Option<&'static str>,
}

impl State {
    pub fn holds(&self, call: usize) -> bool {
        self.holders[call].is_there
    }

    pub fn waits(&self, call: usize) -> bool {
        self.waiters[call].is_there
    }

    pub fn has_left(&self, call: usize) -> bool {
        self.left >> call & 1 == 1
    }

    pub fn has_ended(&self, claim: usize) -> bool {
        self.ended >> claim & 1 == 1
    }

    /// The holder that a client counts on is there.
    pub fn is_held_by(&self, client: &Client) -> bool {
        let holder = self.holders[usize::from(client.holder)];
        holder.is_there && holder.token == client.token
    }

    /// A watched node is there; children always are.
    pub fn is_watched(&self, watch: Watch) -> bool {
        match watch {
            Watch::Waiter(call, path) => {
                let waiter = self.waiters[usize::from(call)];
                waiter.is_there && waiter.place == path
            }
            Watch::Holder(call, path) => {
                let holder = self.holders[usize::from(call)];
                holder.is_there && holder.token == path
            }
            Watch::Children | Watch::Nothing => true,
        }
    }

    /// Everything that is a place in the store's order.
    fn each_zxid(&mut self, then: &mut dyn FnMut(&mut u8)) {
        let of_multi = |multi: &mut Multi, then: &mut dyn FnMut(&mut u8)| {
            then(&mut multi.path);
            then(&mut multi.next_path);
        };
        for holder in &mut self.holders {
            then(&mut holder.token);
        }
        for waiter in &mut self.waiters {
            then(&mut waiter.place);
            then(&mut waiter.arrival);
        }
        then(&mut self.last_token);
        for call in &mut self.calls {
            then(&mut call.token);
            if let Watch::Waiter(_, path) | Watch::Holder(_, path) = &mut call.watch {
                then(path);
            }
            let sent = call.late.iter_mut().chain([&mut call.sent]);
            sent.for_each(|multi| of_multi(multi, then));
        }
        for client in &mut self.clients {
            then(&mut client.token);
            let Client {
                release,
                late_release,
                renewal,
                late_renewal,
                ..
            } = client;
            for multi in [release, late_release, renewal, late_renewal] {
                of_multi(multi, then);
            }
        }
        for replica in &mut self.replicas {
            then(&mut replica.expires_path);
        }
    }

    /// The zxid of the next transaction.
    pub fn next_zxid(&self) -> u8 {
        let (mut copy, mut most) = (*self, 0);
        copy.each_zxid(&mut |zxid| most = most.max(*zxid));
        most + 1
    }

    /// Numbers them anew, in the same order: only that counts.
    pub fn renumber(&mut self) {
        let mut used = 0_u64;
        self.each_zxid(&mut |zxid| {
            if *zxid != 0 {
                used |= 1 << *zxid;
            }
        });
        self.each_zxid(&mut |zxid| {
            if *zxid != 0 {
                let below = (used & ((1_u64 << *zxid) - 1)).count_ones();
                *zxid = u8::try_from(below).expect("few are used") + 1;
            }
        });
    }

    /// No version is asked for where a read and its step are one.
    pub fn forget_versions(&mut self) {
        for holder in &mut self.holders {
            holder.version = 0;
        }
        for client in &mut self.clients {
            client.version = 0;
            client.release.version = 0;
            client.late_release.version = 0;
            client.renewal.version = 0;
            client.late_renewal.version = 0;
        }
        for call in &mut self.calls {
            call.version = 0;
            call.sent.version = 0;
            call.late.iter_mut().for_each(|multi| multi.version = 0);
        }
    }
}
